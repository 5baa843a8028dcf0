"""The tables of the database of jobs, as the migrations from each version to the next.

A migration stays as it is once a version with it was published; a later one changes what it has made.
"""

import sqlite3
from collections.abc import Callable

_TABLES = """
CREATE TABLE folder (
    revision INTEGER NOT NULL,  -- grows with every transaction that changes something
    paused TEXT  -- while the queue is paused: the jobs that go on with it, as a list in JSON
);
INSERT INTO folder SELECT abs(random() % 1000000000), NULL;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, place REAL NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL,
    video TEXT, frames INTEGER NOT NULL DEFAULT 0,
    message TEXT NOT NULL DEFAULT '', remedy TEXT NOT NULL DEFAULT '', damage TEXT NOT NULL DEFAULT '',
    card TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
    favourite INTEGER NOT NULL DEFAULT 0, press TEXT NOT NULL DEFAULT '', removed REAL,
    deaths INTEGER NOT NULL DEFAULT 0, death TEXT NOT NULL DEFAULT '',
    -- what search and lists need of the files in the job's folder, which alone count for making it
    request TEXT NOT NULL, model TEXT NOT NULL, seconds REAL NOT NULL, words TEXT NOT NULL,
    parent TEXT NOT NULL, kept INTEGER NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, place);
CREATE INDEX jobs_by_place ON jobs (place);
CREATE INDEX jobs_by_time ON jobs (created, id);
CREATE INDEX jobs_by_parent ON jobs (parent);
CREATE INDEX jobs_by_press ON jobs (press);
CREATE VIEW listed AS SELECT * FROM jobs WHERE removed IS NULL;
CREATE TABLE commands (
    job TEXT NOT NULL, command TEXT NOT NULL, content TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, command)
);
CREATE TABLE transitions (job TEXT NOT NULL, time REAL NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX transitions_by_job ON transitions (job);
CREATE TRIGGER forget_job AFTER DELETE ON jobs BEGIN
    DELETE FROM commands WHERE job = old.id;
    DELETE FROM transitions WHERE job = old.id;
END;
"""


def create_tables(database: sqlite3.Connection) -> None:
    statement = ""
    for line in _TABLES.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            database.execute(statement)
            statement = ""


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (create_tables,)

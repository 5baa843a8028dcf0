"""The SQLite index of an outputs folder as one process has it open, whatever happens to its file.

The index can be rebuilt from the folders of the jobs at any moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Generator
from pathlib import Path

from app.jobs.storage.rows import COLUMNS, SCHEMA, VERSION, agree
from app.jobs.storage.trouble import TROUBLE, is_damage
from diffusers_helper.files import make_way, set_aside

INDEX_FOLDER, _FILE = ".longtake", "jobs.sqlite3"
# The waits for a locked index are short: writing delays the page, and necessary writes are repeated; instead
# of the locked index, its last copy is read.
_BUSY_SECONDS, _READ_SECONDS = 2.0, 0.5


class OpenIndex:
    """The index of an outputs folder, for any thread.

    Changes go to the file. Reads come from a copy in memory, which is renewed when the file has changed, so
    they succeed while the file is locked or away. A file that is damaged, replaced or removed is set aside
    and rebuilt by whichever call notices it.

    Attributes:
        revision: A number that changes whenever the copy is renewed.

    Raises:
        OSError, sqlite3.Error: If the file cannot be opened.
    """

    def __init__(self, outputs: Path) -> None:
        self.folder, self.revision = outputs / INDEX_FOLDER, 0
        self._outputs, self._file = outputs, self.folder / _FILE
        self._lock = threading.RLock()  # held while writing
        self._reading = threading.Lock()
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        self._copy.row_factory = sqlite3.Row
        self._open()

    def _open(self) -> None:
        self.folder.mkdir(exist_ok=True)
        database = open_index(self._file)
        with self._reading:
            self._database, self._reader = database, _connect(self._file, _READ_SECONDS)
            self._home, self._identity = _identity_of(self._outputs), _identity_of(self._file)
            self._copied = -1  # the version of the file that was copied

    def _exchange(self, *, is_damaged: bool = False) -> None:
        """Open the file that is there now in place of the former one, which stays if that fails."""
        home = _identity_of(self._outputs)
        # Without its index, another folder in the place of the outputs folder is where its disk was mounted.
        if home is None or (home != self._home and not os.path.lexists(self.folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._outputs))
        if is_damaged and self.is_there:  # no other program has set it aside
            _discard_index(self._file)
        former = self._database, self._reader
        self._open()
        for connection in former:
            connection.close()

    @property
    def is_there(self) -> bool:
        """Return whether the file is the one that was opened. Otherwise its folder may be missing, too."""
        return _identity_of(self._file) == self._identity

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Lock the index for the block. The index gets all changes of the block or none.

        Raises:
            sqlite3.Error: Also if the index was found damaged in the block; then it is whole again.
        """
        with self._lock:
            if self._database.in_transaction:  # a caller has opened the transaction
                yield self._database
                return
            self.renew()  # so that a damaged file is replaced before the block
            if not self.is_there:
                self._exchange()
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                self._roll_back()
                if is_damage(error):
                    self._exchange(is_damaged=True)
                raise
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def select(self, condition: str, *values: object, what: str = COLUMNS) -> list[sqlite3.Row]:
        self.renew()
        with self._reading:
            return self._copy.execute(f"SELECT {what} FROM jobs {condition}", values).fetchall()

    def renew(self) -> None:
        with contextlib.suppress(*TROUBLE):
            if not self.is_there and self._lock.acquire(blocking=False):
                with contextlib.ExitStack() as release:
                    release.callback(self._lock.release)
                    if not self.is_there and not self._database.in_transaction:
                        self._exchange()
            try:
                self._copy_file()
            except sqlite3.DatabaseError as error:
                with self._lock:
                    if not is_damage(error) or self._database.in_transaction:
                        raise
                    self._exchange(is_damaged=True)
                self._copy_file()

    def _copy_file(self) -> None:
        with self._reading:
            ((version,),) = self._reader.execute("PRAGMA data_version").fetchall()  # others' changes count
            if version == self._copied:
                return
            self._reader.execute("BEGIN")  # a copy waits without end for a lock that it does not hold
            try:
                self._reader.execute("SELECT count(id) FROM jobs NOT INDEXED").fetchall()
                self._reader.backup(self._copy)
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")
            self._copied, self.revision = version, self.revision + 1


def open_index(path: Path) -> sqlite3.Connection:
    """Open the index, bring it up to date with the job folders, and set a damaged one aside before."""
    make_way(path)
    try:
        return _open(path)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        _discard_index(path)
        return _open(path)


def _discard_index(path: Path) -> None:
    """Set a damaged index aside, without the journal, which would change the next one."""
    path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another program was faster
        set_aside(path)


def _connect(path: Path, seconds: float) -> sqlite3.Connection:
    """Return a connection for any thread, which waits so long for a lock. It may fail at its first use."""
    database = sqlite3.connect(path, timeout=seconds, isolation_level=None, check_same_thread=False)
    database.row_factory = sqlite3.Row
    return database


def _open(path: Path) -> sqlite3.Connection:
    database = _connect(path, _BUSY_SECONDS)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(database.close)
        # With a write-ahead log, programs would share memory, and damage to its file would end them all.
        database.execute("PRAGMA journal_mode = DELETE")
        # A power cut may damage the index. The folders keep all changes, because their logs are synced before
        # a change is announced, and the next start compares the two.
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN IMMEDIATE")
        ((found,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
        if found != "ok":
            raise sqlite3.DatabaseError(f"the index is malformed: {found}")
        if database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            for statement in SCHEMA.split(";"):
                database.execute(statement)
        agree(database, path.parent.parent)
        database.execute("COMMIT")
        on_failure.pop_all()
    return database


def _identity_of(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

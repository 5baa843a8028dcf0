"""The history of an outputs folder: a search over all its jobs, and the removal of old ones.

Old jobs are removed automatically only if a user sets a limit.
"""

import math
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from app.jobs.job import OVER, Job, JobState
from app.jobs.storage.folders import size_of
from app.jobs.storage.rows import Transition, searchable
from app.jobs.storage.store import JobStore
from app.jobs.storage.trash import TRASH_SECONDS, delete_job, remove_job, removed_jobs
from diffusers_helper.errors import InputError
from diffusers_helper.units import GB

KEEP_DAYS, KEEP_GB = "LONGTAKE_KEEP_DAYS", "LONGTAKE_KEEP_GB"
_DAY = 24 * 3600.0
_MOST_WORDS = 100  # of a search; each is a condition, of which SQLite takes a thousand
# Branches of a video that was removed stay together. Jobs whose parents form a circle, as in a forged
# lineage, have no root, so each is its own.
_TREES = """LEFT JOIN (
    WITH RECURSIVE trees(id, root) AS (
        SELECT id, iif(parent = '', id, parent) FROM listed WHERE parent NOT IN (SELECT id FROM listed)
        UNION SELECT listed.id, root FROM listed JOIN trees ON listed.parent = trees.id
    ) SELECT * FROM trees) USING (id)"""
_ROOT = "coalesce(root, id)"
# The job that went furthest stands for its tree.
_RANKED = f"""id, {_ROOT} AS root, count(*) OVER tree AS count, max(created) OVER tree AS newest,
    row_number() OVER (
        PARTITION BY {_ROOT} ORDER BY state = 'finished' DESC, frames DESC, created DESC, id DESC
    ) AS rank"""


@dataclass(frozen=True, slots=True)
class Stack:
    """The jobs of a tree of branches that a search has met. Its root may have been removed."""

    root: str
    count: int
    newest: float


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of a search, newest first.

    Attributes:
        next: The argument `before` for the next page; "" if this is the last one.
        stacks: Of a search with `stacked`, by the ids of `jobs`, the tree of branches that each stands for.
    """

    jobs: list[Job]
    next: str
    total: int
    stacks: dict[str, Stack]


@dataclass(frozen=True, slots=True)
class Usage:
    """What takes space on the disk of an outputs folder, in bytes; the largest job comes first."""

    jobs: list[tuple[Job, int]]
    removed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A job in a tree of branches.

    Attributes:
        parent: The index in the list of the job that it was branched from; its own for the first job.
        num_kept_sections: The sections that it has from its parent; 0 for the first job.
    """

    job: Job
    parent: int
    num_kept_sections: int


class History:
    def __init__(self, store: JobStore) -> None:
        self.store = store

    def made_by(self, press: str) -> list[Job]:
        """Find the jobs that a press has made, also by a server that has ended since, oldest first."""
        return self.store.jobs("WHERE press = ? AND press != '' ORDER BY created, id", press)

    def search(
        self,
        text: str = "",
        *,
        states: Collection[JobState] = (),
        models: Collection[str] = (),
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        favourites: bool = False,
        stacked: bool = False,
        root: str = "",
        before: str = "",
        limit: int = 50,
    ) -> SearchPage:
        """Find the jobs that meet all conditions, newest first.

        Args:
            text: Words that must all occur in the prompt, the negative prompt or the seed, in any order.
            states, models: Those to include; empty for all.
            stacked: Whether to return one job of each tree of branches.
            root: The first job of the only tree to include; "" for all.
            before: `SearchPage.next` of the previous page.
        """
        conditions: list[tuple[str, Collection[object]]] = [
            ("instr(words, ?)", [word]) for word in searchable(text).split()[:_MOST_WORDS]
        ]
        for column, names in ("state", states), ("model", models):
            if names:
                conditions.append((f"{column} IN ({', '.join('?' * len(names))})", names))
        compared = {"seconds >= ?": min_seconds, "seconds <= ?": max_seconds, f"{_ROOT} = ?": root or None}
        conditions += [(condition, [value]) for condition, value in compared.items() if value is not None]
        if favourites:
            conditions.append(("favourite", []))
        where = " AND ".join(["1", *(condition for condition, _ in conditions)])
        values = [value for _, condition_values in conditions for value in condition_values]
        query = f"{_TREES if stacked or root else ''} WHERE {where}"
        ((total,),) = self.store.select(query, *values, what="count(*)")
        time_column = "newest" if stacked else "created"
        if stacked:
            trees = f"SELECT {_RANKED} FROM listed {query} WINDOW tree AS (PARTITION BY {_ROOT})"
            query = f"JOIN ({trees}) USING (id) WHERE rank = 1"
        if before:
            query += f" AND ({time_column}, id) < (?, ?)"
            values += _cursor(before)
        query += f" ORDER BY {time_column} DESC, id DESC LIMIT ?"
        rows = self.store.select(query, *values, limit + 1)
        has_next = len(rows) > limit > 0
        rows = rows[:limit]
        stacks = {row["id"]: Stack(row["root"], row["count"], row["newest"]) for row in rows if stacked}
        next_page = f"{rows[-1][time_column]!r} {rows[-1]['id']}" if has_next else ""
        return SearchPage(self.store.jobs_of(rows), next_page, total, stacks)

    def count(self, states: Collection[JobState] = ()) -> int:
        condition = f"WHERE state IN ({', '.join('?' * len(states))})" if states else ""
        return self.store.select(condition, *states, what="count(*)")[0][0]

    def models(self) -> list[str]:
        return [model for (model,) in self.store.select("ORDER BY model", what="DISTINCT model")]

    def tree(self, job_id: str, limit: int = 100) -> list[TreeNode]:
        """Find the jobs of a job's tree of branches, each after its parent, the oldest first."""
        root = self.store.job(job_id)
        ancestors = {job_id}
        while parents := self.store.jobs("WHERE id = ?", root.parent):
            root = parents[0]
            if root.id in ancestors:  # a forged lineage
                break
            ancestors.add(root.id)
        nodes = list[TreeNode]()
        ids = set[str]()
        pending = [TreeNode(root, 0, 0)]
        while pending and len(nodes) < limit:
            node = pending.pop()
            if node.job.id in ids:
                continue
            ids.add(node.job.id)
            nodes.append(node)
            children = self.store.jobs("WHERE parent = ? ORDER BY created DESC, id DESC", node.job.id)
            pending += [TreeNode(child, len(nodes) - 1, child.kept) for child in children]
        return nodes

    def usage(self) -> Usage:
        outputs = self.store.outputs
        jobs = [(job, size_of(job.folder)) for job in self.store.jobs("ORDER BY created")]
        jobs.sort(key=lambda entry: -entry[1])
        removed_bytes = sum(map(size_of, removed_jobs(outputs)))
        return Usage(jobs, removed_bytes, shutil.disk_usage(outputs).free)

    def transitions(self, job_id: str) -> list[Transition]:
        self.store.job(job_id)
        return self.store.transitions(job_id)

    def set_favourite(self, job_id: str, favourite: bool) -> Job:
        with self.store.change():
            return self.store.add_facts(job_id, favourite=favourite)


def _cursor(before: str) -> tuple[float, str]:
    created, _, job_id = before.partition(" ")
    try:
        return float(created), job_id
    except ValueError as error:
        raise InputError(
            f"The page after {before[:60]!r} is not known; expected the `next` of an earlier page.",
            "Start with the first page.",
        ) from error


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits beyond which jobs are removed. Favourites, and jobs that are not over, are always kept."""

    seconds: float = math.inf
    size_bytes: float = math.inf

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        return cls(_number(environ, KEEP_DAYS) * _DAY, _number(environ, KEEP_GB) * GB)


def _number(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name, "").strip()
    try:
        number = float(text) if text else math.inf
    except ValueError:
        number = math.nan
    if not number > 0:
        raise InputError(f"{name} is {text[:60]!r}; expected a number above 0.", f"Correct or unset {name}.")
    return number


_MAY_GO = f"NOT favourite AND state IN {OVER}"


def tidy(store: JobStore, retention: Retention) -> list[str]:
    oldest = time.time() - retention.seconds
    condition = f"WHERE {_MAY_GO} AND coalesce(ended, created) < ? ORDER BY created, id"
    gone = list[str]()
    for row in store.select(condition, oldest, what="id"):
        with store.transaction():
            if _may_go(store, store.outputs / row["id"]):
                remove_job(store, row["id"])
                gone.append(row["id"])
    for folder in removed_jobs(store.outputs):
        if time.time() - folder.lstat().st_mtime > TRASH_SECONDS:
            _delete(store, folder)
    with store.transaction() as database:
        database.execute("DELETE FROM jobs WHERE removed < ?", (time.time() - TRASH_SECONDS,))
    return gone if math.isinf(retention.size_bytes) else [*gone, *_reduce(store, retention.size_bytes)]


def _reduce(store: JobStore, most_bytes: float) -> list[str]:
    rows = store.select("ORDER BY created, id", what=f"id, {_MAY_GO} AS may_go")
    trash, folders = removed_jobs(store.outputs), {store.outputs / row["id"]: row["may_go"] for row in rows}
    sizes = {folder: size_of(folder) for folder in [*trash, *folders]}
    size_bytes = sum(sizes.values())
    deleted = list[str]()
    for folder in [*trash, *(folder for folder, may_go in folders.items() if may_go)]:
        if size_bytes <= most_bytes:
            break
        _delete(store, folder)
        size_bytes -= sizes[folder]
        deleted += [] if folder in trash else [folder.name]
    return deleted


def _delete(store: JobStore, folder: Path) -> None:
    with store.transaction():
        if _may_go(store, folder):
            delete_job(store, folder)


def _may_go(store: JobStore, folder: Path) -> bool:
    """Whether a job may still be removed; a user may have changed or restored it in the meantime."""
    is_in_trash = folder.parent != store.outputs
    return folder.exists() if is_in_trash else bool(store.select(f"WHERE id = ? AND {_MAY_GO}", folder.name))

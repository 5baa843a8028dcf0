"""The SQLite database of an outputs folder: its file, its versions, and its transactions.

Only SQLite opens the file, because a process loses its locks on a file when it closes any descriptor of it.
Each use has a connection of its own, so that a file that is away, or back again, needs no care.
"""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from app.jobs.storage.schema import MIGRATIONS
from app.jobs.storage.trouble import TROUBLE, NotADatabase, is_damage
from diffusers_helper.errors import InputError
from diffusers_helper.files import set_aside, sync_folder
from diffusers_helper.machine.file_locks import is_locked, locked_folder

DATABASE_FOLDER, DATABASE_FILE = ".longtake", "longtake.sqlite3"
_APPLICATION_ID = 0x4C6F6E67  # "Long"
_VERSION = len(MIGRATIONS)
# The waits for a lock are short: writing delays the page, and necessary writes are repeated.
_BUSY_SECONDS = 2.0
_RESERVE_BYTES = 2 * 2**20
_CHANGE_BYTES = 2**18  # with less free space, a change gets so much of the reserve

Fill = Callable[[sqlite3.Connection, bool, bool], None]


class Database:
    """The database of one outputs folder, for any thread. Its methods raise OSError or sqlite3.Error.

    A damaged file is set aside by whichever call notices it, and made anew; that call still fails. In a
    folder without a database, and in one that cannot be written, the jobs are read into the memory, and the
    first transaction makes the database or fails.

    Args:
        fill: Adds the folder's jobs to the database at each start. It also gets whether the database is new,
            and whether the folder can be written.
    """

    def __init__(self, outputs: Path, fill: Fill) -> None:
        self._outputs, self._fill = outputs, fill
        self.folder = outputs / DATABASE_FOLDER
        self._file = self.folder / DATABASE_FILE
        self._reserve = self.folder / "reserve"
        self._lock = threading.RLock()
        self._current: sqlite3.Connection | None = None  # of the transaction of the thread with the lock
        self.on_failure = ExitStack()  # what undoes, outside of the database, what that transaction has done
        self._writer = 0  # the id of that thread
        self._memory: sqlite3.Connection | None = None  # keeps the jobs until there is a database to open
        self._memory_address = f"file:longtake-{id(self)}?mode=memory&cache=shared"
        if self.folder.is_dir() and os.access(self.folder, os.W_OK):
            self._open()
        else:
            self._memory = self._copy_to_memory()

    def _open(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir()
            sync_folder(self._outputs)
        if any(is_locked(file) for file in self.folder.glob("maker-*")):
            raise InputError(
                f"A program of version 0.2 makes the jobs in {self._outputs}; expected none.",
                "End it, and try again.",
            )
        self._bring_up_to_date("quick_check")
        with suppress(OSError):
            if shutil.disk_usage(self.folder).free > 4 * _RESERVE_BYTES:
                self._fill_reserve(_RESERVE_BYTES)

    def _bring_up_to_date(self, check: str) -> None:
        with locked_folder(self.folder, waits=True):
            try:
                self._migrate(check)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                for name in (DATABASE_FILE, f"{DATABASE_FILE}-journal"):
                    with suppress(FileNotFoundError):
                        set_aside(self.folder / name)
                self._migrate(check)

    def _migrate(self, check: str) -> None:
        with closing(connect(self._file, "rwc")) as database:
            database.execute("PRAGMA journal_mode = DELETE")  # a WAL cannot be shared over a network
            database.execute("BEGIN IMMEDIATE")
            version = _version_of(database)
            _check(database, version, check)
            if 0 < version < _VERSION:
                file = self.folder / f"{DATABASE_FILE}.before-{version}"
                # A connection with an open transaction would wait for itself.
                with closing(connect(self._file, "ro")) as source, closing(connect(file, "rwc")) as copy:
                    source.backup(copy)
            with self._lent_room():
                if version < _VERSION:
                    _apply(database, version)
                self._fill(database, version == 0, True)
                _commit(database)
        sync_folder(self.folder)

    def _copy_to_memory(self) -> sqlite3.Connection:
        memory = _connect(self._memory_address)
        with suppress(*TROUBLE), closing(connect(self._file, "ro")) as database:
            _check(database, _version_of(database), "quick_check")
            database.backup(memory)
        version = _version_of(memory)
        _apply(memory, version)
        self._fill(memory, version == 0, False)
        return memory

    @property
    def is_there(self) -> bool:
        return self._memory is not None or self._file.exists()

    def _connection(self) -> sqlite3.Connection:
        if self._memory is not None and not os.access(self._file, os.W_OK):
            return _connect(self._memory_address)
        if not self._file.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._file))
        database = connect(self._file, "rw")
        try:
            if _version_of(database) != _VERSION:
                raise OSError(errno.ENOENT, "its list of jobs is of another version", str(self._file))
        except TROUBLE:
            database.close()
            raise
        return database

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        with self._lock:
            if self._current is not None:  # a caller has begun the transaction
                yield self._current
                return
            if self._memory is not None:
                self._open()
                self._memory = None
            with self._mending(), closing(self._connection()) as database, ExitStack() as self.on_failure:
                database.execute("BEGIN IMMEDIATE")  # which needs no space
                self._current, self._writer = database, threading.get_ident()
                try:
                    with self._lent_room():
                        yield database
                        _commit(database)
                    self.on_failure.pop_all()
                finally:
                    self._current, self._writer = None, 0

    def select(self, query: str, *values: object) -> list[sqlite3.Row]:
        if self._current is not None and self._writer == threading.get_ident():
            return self._current.execute(query, values).fetchall()
        with self._mending(), closing(self._connection()) as database:
            return database.execute(query, values).fetchall()

    @contextmanager
    def _mending(self) -> Generator[None, None, None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                self._bring_up_to_date("integrity_check")
            raise

    @contextmanager
    def _lent_room(self) -> Generator[None, None, None]:
        """Give a change a part of the reserve on a full disk, and take it back afterwards.

        What a job writes meanwhile takes such a part at most, and the rest is left for later changes.
        """
        lent_from = 0
        with suppress(OSError):
            if shutil.disk_usage(self.folder).free < _CHANGE_BYTES:
                lent_from = self._reserve.stat().st_size
                os.truncate(self._reserve, max(0, lent_from - _CHANGE_BYTES))
        try:
            yield
        finally:
            with suppress(OSError):
                self._fill_reserve(lent_from)

    def _fill_reserve(self, size: int) -> None:
        if size:
            with self._reserve.open("ab") as file:
                most = file.tell() + shutil.disk_usage(self.folder).free
                os.posix_fallocate(file.fileno(), 0, min(size, most))


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """Open a database: "ro" to read it, "rw" to change it, "rwc" to make it if it is missing."""
    return _connect(f"file:{quote(str(file))}?mode={mode}")


def _connect(address: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA synchronous = EXTRA")  # with FULL, a power cut can undo the last commit
    return database


def _version_of(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def _check(database: sqlite3.Connection, version: int, check: str) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != _APPLICATION_ID and (application or version or tables):
        raise NotADatabase("it is not a database of Longtake")
    ((result,),) = database.execute(f"PRAGMA {check}(1)").fetchall()
    if result != "ok":
        raise NotADatabase(result)
    if version > _VERSION:
        raise InputError(
            f"The list of jobs in this outputs folder is of version {version}; expected at most {_VERSION}.",
            "Use the newer version of Longtake that has written it, or choose another folder.",
        )


def _commit(database: sqlite3.Connection) -> None:
    if database.total_changes:
        database.execute("UPDATE folder SET revision = revision + 1")
    database.execute("COMMIT")


def _apply(database: sqlite3.Connection, version: int) -> None:
    for migrate in MIGRATIONS[version:]:
        migrate(database)
    database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {_VERSION}")

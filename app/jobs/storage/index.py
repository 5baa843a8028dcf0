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

from app.jobs.storage.rows import COLUMNS, SCHEMA, VERSION, agree, check_rows
from app.jobs.storage.trouble import DamagedRow, is_busy, is_damage
from diffusers_helper.files import make_way, set_aside
from diffusers_helper.machine.file_locks import locked_folder

INDEX_FOLDER, _FILE = ".longtake", "jobs.sqlite3"
# The waits for a locked index are short: writing delays the page, and necessary writes are repeated; instead
# of the locked index, its last copy is read.
_BUSY_SECONDS, _READ_SECONDS = 2.0, 0.5


class OpenIndex:
    """The index of an outputs folder, for any thread.

    Changes go to the file. Reads come from a copy in memory, which is renewed when the file has changed, so
    they succeed while the file is locked or away. A file that is damaged, replaced or removed is set aside
    and rebuilt by whichever call notices it; the connections are exchanged only when others are open.
    """

    def __init__(self, outputs: Path) -> None:
        self.folder = outputs / INDEX_FOLDER
        self._outputs, self._file = outputs, self.folder / _FILE
        self._lock = threading.RLock()  # held while writing
        self._reading = threading.Lock()
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        self._copy.row_factory = sqlite3.Row
        self._copies = 0
        self._copied: int = -1  # the version of the file that was copied
        self._home: object = _identity_of(outputs)
        self._database, self._reader = self._open()

    def _open(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            set_aside(self.folder)
        self.folder.mkdir(exist_ok=True)
        database = open_index(self._file)
        self._home, self._identity = _identity_of(self._outputs), _identity_of(self._file)
        self._seen = _version_of(database)
        return database, _connect(self._file, _READ_SECONDS)

    def _exchange(self, *, is_damaged: bool = False) -> None:
        """Open the file that is there now; the former connections stay if that fails."""
        home = _identity_of(self._outputs)
        # Without its index, another folder in the place of the outputs folder is where its disk was mounted.
        if home is None or (home != self._home and not os.path.lexists(self.folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._outputs))
        if is_damaged:
            with locked_folder(self.folder, waits=True):
                if _identity_of(self._file) == self._identity:  # no other program has set it aside
                    _discard_index(self._file)
        former = self._database, self._reader
        opened = self._open()
        with self._reading:
            self._database, self._reader = opened
            self._copied = -1
        for connection in former:
            connection.close()

    @property
    def is_there(self) -> bool:
        """Return whether the file is the one that was opened. Otherwise its folder may be missing, too."""
        return _identity_of(self._file) == self._identity

    @property
    def is_current(self) -> bool:
        """Return whether the file is as this process has left or seen it."""
        with self._lock, contextlib.suppress(sqlite3.Error, OSError):
            return self._is_ours and _version_of(self._database) == self._seen
        return False

    @property
    def _is_ours(self) -> bool:
        # SQLite would follow a log that something has put beside the file.
        return self.is_there and not os.path.lexists(f"{self._file}-wal")

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Lock the index for the block. The index gets all changes of the block or none."""
        with self._lock:
            if self._database.in_transaction:  # a caller has opened the transaction
                yield self._database
                return
            try:
                self._begin()
            except (sqlite3.Error, OSError) as error:
                self._roll_back()
                if is_busy(error):
                    raise
                self._exchange(is_damaged=is_damage(error))
                self._begin()
            database = self._database
            try:
                yield database
                database.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                self._roll_back()
                if is_damage(error):
                    self._exchange(is_damaged=True)
                raise
            finally:
                self._roll_back()

    def _begin(self) -> None:
        if not self.is_there:
            self._exchange()
        elif not self._is_ours:
            raise DamagedRow("another program has written a log beside the index")
        self._database.execute("BEGIN IMMEDIATE")
        while (version := _version_of(self._database)) != self._seen:  # perhaps changed by hand
            agree(self._database, self._outputs)
            self._database.execute("COMMIT")
            self._seen = version
            self._database.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def select(self, condition: str, *values: object, what: str = COLUMNS) -> list[sqlite3.Row]:
        self._renew()
        try:
            return self._select(condition, values, what)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._mend(error)
            return self._select(condition, values, what)

    def _select(self, condition: str, values: tuple[object, ...], what: str) -> list[sqlite3.Row]:
        with self._reading:
            rows = self._copy.execute(f"SELECT {what} FROM jobs {condition}", values).fetchall()
        if what == COLUMNS:
            check_rows(rows)
        return rows

    @property
    def revision(self) -> int:
        """Return a number that changes whenever the index does, by whichever process."""
        self._renew()
        return self._copies

    def _renew(self) -> None:
        """Copy the file to the memory if it has changed. If it cannot be read now, the last copy stays."""
        try:
            with self._reading:
                if self._is_ours and _version_of(self._reader) == self._copied:
                    return
        except sqlite3.DatabaseError as error:
            if is_busy(error):
                return
        self._follow()
        try:
            with self._reading:
                self._copy_file()
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                self._mend(error)

    def _follow(self) -> None:
        """Take note of what another program has done to the file, unless another thread is writing."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not (self._database.in_transaction or self.is_current):
                with contextlib.suppress(sqlite3.Error, OSError), self.transaction():
                    pass
        finally:
            self._lock.release()

    def _copy_file(self) -> None:
        version = _version_of(self._reader)
        if version == self._copied:
            return
        self._reader.execute("BEGIN")  # a copy waits without end for a lock that it does not hold
        try:
            self._reader.execute("SELECT 1 FROM jobs LIMIT 1").fetchall()
            self._reader.backup(self._copy)
        finally:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")
        self._copied, self._copies = version, self._copies + 1

    def _mend(self, error: sqlite3.DatabaseError) -> None:
        """Replace a damaged file, or read the jobs anew whose rows are damaged, and renew the copy."""
        with self._lock:
            if self._database.in_transaction:
                raise error
            with contextlib.suppress(sqlite3.Error, OSError):
                if isinstance(error, DamagedRow):
                    self._seen = -1
                    with self.transaction():
                        pass
                else:
                    self._exchange(is_damaged=True)
                with self._reading:
                    self._copy_file()


def open_index(path: Path) -> sqlite3.Connection:
    """Open the index, bring it up to date with the job folders, and set a damaged one aside before."""
    for beside in ("", "-journal", "-wal", "-shm"):
        make_way(path.with_name(path.name + beside))
    try:
        return _open(path)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        _discard_index(path)
        return _open(path)


def _discard_index(path: Path) -> None:
    """Set a damaged index aside, without the files that would change the next one."""
    for beside in ("-journal", "-wal", "-shm"):
        make_way(path.with_name(path.name + beside))
        path.with_name(path.name + beside).unlink(missing_ok=True)
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
            raise DamagedRow(found)
        if database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            for statement in SCHEMA.split(";"):
                database.execute(statement)
        agree(database, path.parent.parent)
        database.execute("COMMIT")
        on_failure.pop_all()
    return database


def _version_of(connection: sqlite3.Connection) -> int:
    """Return a number that changes whenever another connection changes the file."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _identity_of(file: Path) -> tuple[int, int] | None:
    """Return the numbers that distinguish a file from others of the same name; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""Calls of other programs that write below a folder, of which chosen ones fail."""

import mmap
import struct
import subprocess
from pathlib import Path

from tests.support import bad_disk

_SOURCE = Path(*bad_disk.__path__) / "fail_calls.c"
_INTEGERS = struct.Struct("5i")
_NEVER = 2**30


class BadCalls:
    """A switch for the calls that fail, shared with all programs that have `environment`.

    Attributes:
        environment: The variables that make other programs obey the switch.
    """

    def __init__(self, root: Path, own: Path) -> None:
        """Count the calls below the folder `root`; the switch itself lies in the folder `own`."""
        own.mkdir()
        library, control = own / "fail_calls.so", own / "control"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        control.write_bytes(bytes(8192))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), 0)
        self.environment = {
            "BAD_DISK_ROOT": str(root), "BAD_DISK_CALLS": str(control), "LD_PRELOAD": str(library),
        }  # fmt: skip
        self.relent()

    def fail(self, first: int, number: int, times: int = 1) -> None:
        """Have calls fail with an error, from the `first` one on, counted from now."""
        _INTEGERS.pack_into(self._control, 0, first, times, number, 0, 0)

    def relent(self) -> None:
        self.fail(_NEVER, 0)

    @property
    def count(self) -> int:
        return _INTEGERS.unpack_from(self._control)[3]

    @property
    def failed(self) -> int:
        return _INTEGERS.unpack_from(self._control)[4]

    @property
    def last(self) -> str:
        """The call that failed last, and its path."""
        return self._control[_INTEGERS.size : 4096].replace(b"\0", b" ").decode("utf-8", "replace").strip()

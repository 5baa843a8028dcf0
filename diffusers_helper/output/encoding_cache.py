"""The encodings of texts and pictures that later jobs can use again, as files."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from diffusers_helper.files import sha256_of
from diffusers_helper.output.checkpoints import Tensors, read_tensors, versions, write_tensors

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodingCache:
    """A folder of encodings, up to a total size, beyond which those that were not used for longest go.

    A file's name is a checksum of all that its encodings depend on, so no prompt can be read from it.

    Attributes:
        folder: The folder, which is made when it is needed; None to keep nothing.
        most_bytes: The total size of the files. A prompt of FramePack takes about 2 MB.
    """

    folder: Path | None = None
    most_bytes: int = 256 * 1024**2

    def get(self, facts: Mapping[str, str], otherwise: Callable[[], Tensors]) -> Tensors:
        """Return the encodings that depend on these facts and on the versions of the libraries.

        Args:
            facts: All facts that change a bit of the result.
            otherwise: A function that makes the encodings if there are none.
        """
        if self.folder is None:
            return otherwise()
        key = sha256_of([json.dumps({**versions(), **facts}, sort_keys=True).encode()])
        file = self.folder / f"{key}.safetensors"
        try:
            found, _ = read_tensors(file)
            os.utime(file)  # it is the one that was used last
            return found
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s: %s; the encodings are made again", file, error)
        found = otherwise()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(file, found, {})
            self._tidy()
        except OSError as error:
            _log.warning("%s cannot be written (%s)", file, error)
        return found

    def _tidy(self) -> None:
        """Remove the files that were not used for longest, until the others are small enough."""
        assert self.folder is not None
        kept = 0
        for file in sorted(self.folder.glob("*.safetensors"), key=lambda file: -file.stat().st_mtime_ns):
            kept += file.stat().st_size
            if kept > self.most_bytes:
                file.unlink(missing_ok=True)

"""The state of a section's sampler, stored in the middle of a section, since a clip may take an hour."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from diffusers_helper.files import sha256_of
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.tensor_files import read_tensors, write_tensors

_log = logging.getLogger(__name__)
INTERVAL_SECONDS = 120.0


@dataclass
class SavedSteps:
    """The file with the state of the section that is being sampled.

    `facts` are all that the state depends on; one of other facts is not used.
    """

    file: Path
    facts: Mapping[str, object]
    _next_time: float = field(default_factory=lambda: time.monotonic() + INTERVAL_SECONDS)

    @property
    def _origin(self) -> str:
        return sha256_of([json.dumps(self.facts, sort_keys=True).encode()])

    def read(self) -> dict[str, Tensor] | None:
        """Read the state to go on from; None if there is none."""
        if not self.file.is_file():
            return None
        try:
            state, metadata = read_tensors(self.file)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            if is_storage_trouble(error):
                raise
            _log.warning("%s: %s; the section is sampled from its beginning", self.file, error)
            return None
        return state if metadata.get("origin") == self._origin else None

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Store the state after a step, if the last time was long enough ago."""
        if time.monotonic() < self._next_time:
            return
        self.file.parent.mkdir(exist_ok=True)
        tensors = {name: to_host(tensor.to("cpu", copy=True)) for name, tensor in state.items()}
        write_tensors(self.file, tensors, {"origin": self._origin})
        self._next_time = time.monotonic() + INTERVAL_SECONDS

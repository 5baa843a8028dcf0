"""The state of a section's sampler, stored in the middle of a section, since a clip may take an hour."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from diffusers_helper.files import sha256_of
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.tensor_files import intact_tensors, write_tensors

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
        stored = intact_tensors(self.file, "the section is sampled from its beginning")
        return stored[0] if stored and stored[1].get("origin") == self._origin else None

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Store the state after a step, if the last time was long enough ago."""
        if time.monotonic() < self._next_time:
            return
        self.file.parent.mkdir(exist_ok=True)
        tensors = {name: to_host(tensor.to("cpu", copy=True)) for name, tensor in state.items()}
        write_tensors(self.file, tensors, {"origin": self._origin})
        self._next_time = time.monotonic() + INTERVAL_SECONDS

"""What the parts of the trial share: the model, the device, and how cases are run and measured."""

import gc
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.gpu_trial.parts import model_of
from benchmarks.rows import Rows
from diffusers_helper.errors import first_line
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.loading.networks import load_network
from diffusers_helper.machine.sysfs import host_memory, readings, resident_bytes
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.measuring import measure, wait_for
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.planning.estimates import largest_bucket
from diffusers_helper.request import GenerationRequest

Figures = dict[str, Any]
"""The figures of one case: numbers, short texts, and None for what cannot be measured here."""
Case = tuple[str, Callable[[], Figures] | str]
"""One case of a part: its name, and a function that measures it, or the reason why it is left out."""

NEEDS_GPU = "needs a GPU"
_WATCH_SECONDS = 0.05
_SEED = 7


class _Uncounted(Device):
    """Main memory without an account of the tensors, whose mode torch's compiler would trace."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(frozen=True)
class Trial:
    """The machine and the model that the parts measure.

    Attributes:
        folder: The folder for what several parts use, such as the model's weights.
        is_tiny: Whether the networks are tiny, so that a CPU goes through every part in a minute.
    """

    folder: Path
    is_tiny: bool

    @cached_property
    def device(self) -> Device:
        device = open_device()
        return device if device.has_gpu else _Uncounted()

    @property
    def torch_device(self) -> torch.device:
        return self.device.torch_device

    @property
    def model(self) -> Path:
        return model_of(self.folder, is_tiny=self.is_tiny)

    @property
    def info(self) -> ModelInfo:
        return find_model(str(self.model), allow_folder=True)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the height and width in pixels of the shape that needs most memory."""
        return largest_bucket(self.info.side, self.info.multiple)

    @property
    def runs(self) -> int:
        return 1 if self.is_tiny else 2

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.has_gpu else torch.float32

    @property
    def lacks_kitchen(self) -> str:
        """Return why comfy-kitchen cannot be tried; "" if it is there."""
        return "" if find_spec("comfy_kitchen") else "comfy-kitchen is not installed"

    def models(self) -> Models:
        """Return the model, none of whose parts is loaded."""
        return load_models(self.info, device=str(self.torch_device))

    def network(self, part: str) -> Any:
        """Return a network in main memory, mapped anew from its file."""
        return load_network(part, self.model / part).network

    def random(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """Return the same normally distributed values on the device each time."""
        generator = torch.Generator(self.torch_device).manual_seed(_SEED)
        values = torch.randn(shape, generator=generator, device=self.torch_device, dtype=torch.float32)
        return values.mul_(scale).to(dtype or self.dtype)

    def request(self, **settings: Any) -> GenerationRequest:
        """Return a request for one section whose result diffusers' pipeline should give, too.

        A guidance of 8 is one that diffusers can scale in bf16 without rounding it.
        """
        picture, (height, width) = self.folder / "picture.png", self.shape
        Image.linear_gradient("L").resize((width, height)).convert("RGB").save(picture)
        return GenerationRequest(
            image=str(picture), prompt="the red ball moves right", model=str(self.model), mode="inverted",
            sampler="euler", guidance=8.0, attention="native", seconds=1.2, **settings,
        )  # fmt: skip

    def time(self, work: Callable[[], object], *, warm_up: int = 1, runs: int | None = None) -> Figures:
        """Return the median seconds of work on the device, and its peaks of memory in bytes."""
        warm_up = 0 if self.is_tiny else warm_up
        measured = measure(work, self.device, warm_up=warm_up, runs=runs or self.runs)
        return {
            "seconds": measured.median, "device_bytes": measured.peak_bytes or None,
            "reserved_bytes": measured.peak_reserved_bytes or None,
        }  # fmt: skip

    def speed(self, work: Callable[[], object], num_bytes: int, **options: int) -> Figures:
        """Return the median seconds of work that moves so many bytes, and its speed."""
        seconds = self.time(work, **options)["seconds"]
        return {"seconds": seconds, "moved_bytes": num_bytes, "bytes_per_second": num_bytes / seconds}

    @property
    def compiler(self) -> str:
        """Return the back end of torch's compiler. Without a GPU it generates no code, which takes long."""
        return "inductor" if self.device.has_gpu else "aot_eager"

    def compiled(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        """Return a function as torch compiles it."""
        return torch.compile(function, backend=self.compiler, dynamic=dynamic)

    def clear(self) -> None:
        """Give back the memory of earlier cases, on the device and what was pinned for it."""
        gc.collect()
        if self.device.has_gpu:
            wait_for(self.device)
            torch._C._host_emptyCache()
        self.device.empty_cache()

    def run(self, cases: Iterable[Case], file: Path, facts: Mapping[str, Any]) -> None:
        """Measure cases one after the other, each of which is a row in the file as soon as it is measured.

        A case that fails is a row with the reason, and the next one is measured. In inference mode, streamed
        weights would be tensors of another kind than resident ones, and be compiled for a second time.
        """
        begin = time.monotonic()
        whole = lambda: {**facts, "seconds": time.monotonic() - begin}  # noqa: E731
        with torch.no_grad(), Rows("", file, whole) as rows:
            for name, work in cases:
                rows.add({"name": name, **({"skipped": work} if isinstance(work, str) else _tried(work))})
                self.clear()


def _tried(work: Callable[[], Figures]) -> Figures:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever a case raises is its result
        traceback.print_exc(file=sys.stderr)
        traceback.clear_frames(error.__traceback__)  # their variables hold tensors
        return {"failed": f"{type(error).__name__}: {first_line(error)}"}


def deviation(found: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the difference of two tensors, as a share of the expected one's."""
    found, expected = found.double(), expected.to(found.device).double()
    return math.sqrt((found - expected).square().mean().item() / expected.square().mean().item())


@contextmanager
def host_peak(device: Device) -> Iterator[Figures]:
    """Watch the main memory that this process takes, and yield its peaks, complete when the context ends.

    They are `host_bytes`, the most by which the machine's available memory fell; `own_bytes`, the most that
    no file backs; and `pinned_bytes`, what torch's allocator pinned, None without a GPU.
    """
    found: Figures = {"host_bytes": 0, "own_bytes": 0, "pinned_bytes": None}
    wait_for(device)  # the driver has to be there before its figures
    if device.has_gpu:
        torch.cuda.reset_peak_host_memory_stats()

    def look() -> dict[str, float]:
        own = resident_bytes(os.getpid(), kind="RssAnon")
        return {"available": host_memory().available, "own": own}

    before = look()
    with readings(look, _WATCH_SECONDS) as seen:
        yield found
    after = look()
    found["host_bytes"] = int(
        before["available"] - min(*seen.get("available", ()), after["available"], before["available"])
    )
    found["own_bytes"] = int(max(*seen.get("own", ()), after["own"], before["own"]))
    if device.has_gpu:
        found["pinned_bytes"] = torch.cuda.host_memory_stats().get("allocated_bytes.peak")


def blocks_of(network: Any) -> Sequence[nn.Module]:
    """Return the blocks of FramePack's transformer in the order in which they run."""
    return [*network.transformer_blocks, *network.single_transformer_blocks]

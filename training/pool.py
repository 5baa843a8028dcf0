"""A growing store of encoded clips to train the transformer on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.encoders import Encoders, TextFeatures
from training.render import Renderer
from training.scenes import Case, sample_case
from training.transformer import Conditions

# Clips are encoded in chunks of 17 frames, as diffusers' frame-wise encoding does; motions end at frame 72.
CHUNK = 16
CLIP_FRAMES = 5 * CHUNK + 1
CLIP_LATENTS = 19
# A latent stands for four frames; a single picture's latent is nearest to it so long before the last of them.
BEFORE_LAST = 1.5
# Motions that are learned early are kept less often.
SHARES = {"stays still": 0.6, "pans right": 0.6, "pans left": 0.6, "pans up": 0.6, "pans down": 0.6}


@dataclass
class Item:
    """One clip: latents (16, 19, h, w), the picture's own latent (16, 1, h, w), picture features (4, 64)."""

    latents: torch.Tensor
    start: torch.Tensor
    picture: torch.Tensor
    text: TextFeatures
    prompt: str = ""


@torch.no_grad()
def encode_clip(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled latents of pixels (3, 81, H, W): the clip's (16, 19, h, w), its first frame's (16, 1, h, w)."""
    chunks = pixels.unfold(1, CHUNK + 1, CHUNK).permute(1, 0, 4, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        moments = vae.quant_conv(vae.encoder(chunks.contiguous())).float()
        first = vae.quant_conv(vae.encoder(pixels[None, :, :1].contiguous())).float()
    mean = moments.chunk(2, dim=1)[0] * vae.config.scaling_factor
    start = first.chunk(2, dim=1)[0][0] * vae.config.scaling_factor
    return torch.cat([mean[0], *mean[1:, :, 1:]], dim=1)[:, :CLIP_LATENTS], start


@torch.no_grad()
def encode_frames(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> torch.Tensor:
    """Scaled latents (16, T, h, w) of pixels (3, T, H, W), each frame encoded as a single picture."""
    with torch.autocast("cpu", torch.bfloat16):
        moments = vae.quant_conv(vae.encoder(pixels.transpose(0, 1).unsqueeze(2).contiguous())).float()
    return moments.chunk(2, dim=1)[0].squeeze(2).transpose(0, 1) * vae.config.scaling_factor


def encode_case(
    vae, encoders: Encoders, renderer: Renderer, case: Case, size: tuple[int, int], exact: bool = True
) -> Item:
    """Draw and encode one case.

    Not ``exact``, one frame in four is drawn and encoded as a single picture: ten times as fast, and off by
    3 % (at 64 pixels) to 9 % (at 128) of the motion's energy. Without that the training lives on so few clips
    that it learns them by heart.
    """
    if exact:
        pixels = renderer.case(case, range(CLIP_FRAMES), size)
        latents, start = encode_clip(vae, pixels)
    else:
        times = [0, *(4 * k - BEFORE_LAST for k in range(1, CLIP_LATENTS))]
        pixels = renderer.case(case, times, size)
        latents = encode_frames(vae, pixels)
        start = latents[:, :1]
    picture = encoders.picture(pixels[None, :, 0])[0]
    return Item(latents.bfloat16(), start.bfloat16(), picture, encoders.text(case.prompt), case.prompt)


@dataclass
class Pool:
    """Items by picture size; grows by ``add`` and forgets its oldest items beyond ``limit``."""

    vae: AutoencoderKLHunyuanVideo
    encoders: Encoders
    renderer: Renderer
    rng: np.random.Generator
    limit: int = 6000
    items: dict[tuple[int, int], list[Item]] = field(default_factory=dict)
    added: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, size: tuple[int, int], count: int = 1) -> None:
        """Draw, encode and keep ``count`` new clips of a size."""
        kept = self.items.setdefault(size, [])
        for _ in range(count):
            case = sample_case(self.rng, *size, self.renderer.count)
            while self.rng.random() > SHARES.get(case.motion.name, 1.0):
                case = sample_case(self.rng, *size, self.renderer.count)
            item = encode_case(self.vae, self.encoders, self.renderer, case, size, exact=False)
            place = self.added.get(size, 0)
            self.added[size] = place + 1
            if len(kept) < self.limit:
                kept.append(item)
            else:
                kept[place % self.limit] = item

    def save(self, path: Path) -> None:
        """Write the items, so that a run that goes on need not draw them again."""
        state = [
            {
                "size": size,
                "latents": torch.stack([item.latents for item in items]),
                "start": torch.stack([item.start for item in items]),
                "picture": torch.stack([item.picture for item in items]),
                "prompts": [item.prompt for item in items],
            }
            for size, items in self.items.items()
        ]
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def load(self, path: Path) -> None:
        """Read items that ``save`` wrote."""
        for part in torch.load(path, weights_only=True):
            rows = zip(part["latents"], part["start"], part["picture"], part["prompts"], strict=True)
            kept = self.items.setdefault(tuple(part["size"]), [])
            kept += [Item(a, b, c, self.encoders.text(prompt), prompt) for a, b, c, prompt in rows]

    def batch(self, size: tuple[int, int], count: int) -> tuple[torch.Tensor, torch.Tensor, Conditions]:
        """Clips of a size at random: latents (B, 16, 19, h, w), start (B, 16, 1, h, w) and conditions."""
        kept = self.items[size]
        return collate([kept[int(i)] for i in self.rng.integers(len(kept), size=count)], self.rng)


def collate(
    items: list[Item], rng: np.random.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor, Conditions]:
    """Stack items; the guidance is drawn from all that the page offers, or is the usual 10."""
    count = len(items)
    guidance = np.exp(rng.uniform(0, np.log(32), count)) if rng is not None else np.full(count, 10.0)
    mask = torch.stack([item.text.mask for item in items])
    longest = int(mask.sum(1).max())
    conditions = Conditions(
        tokens=torch.stack([item.text.tokens for item in items])[:, :longest],
        mask=mask[:, :longest],
        pooled=torch.stack([item.text.pooled for item in items]),
        picture=torch.stack([item.picture for item in items]),
        guidance=1000 * torch.tensor(guidance, dtype=torch.float32),
    )
    latents = torch.stack([item.latents for item in items]).float()
    return latents, torch.stack([item.start for item in items]).float(), conditions

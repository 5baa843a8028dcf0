"""The growing pool of encoded clips on which the transformer is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.encoders import Encoders, TextFeatures
from training.render import Renderer
from training.scenes import MOTIONS, Case, sample_case
from training.transformer import Conditions

Size = tuple[int, int]
# Two sections and the picture: a motion ends with frame 72.
CLIP_LATENTS = 19
# A latent stands for four frames. The latent of a single picture is nearest to it if the picture lies this
# many frames before the last of them.
BEFORE_LAST = 1.5
TIMES = (0.0, *(4 * k - BEFORE_LAST for k in range(1, CLIP_LATENTS)))
# Clips are drawn, and pictures encoded, in groups of this size, which fit into the processor's cache.
CLIPS_AT_A_TIME, PICTURES_AT_A_TIME = 8, 8
# The relative frequency of each motion. Motions that are learned early are drawn less often.
SHARES = dict.fromkeys(MOTIONS, 1.0) | {
    "grows": 1.2, "shrinks": 1.2, "spins": 2.0, "zooms in": 1.3, "zooms out": 1.6,
    "pans right": 0.7, "pans left": 0.7, "pans up": 0.7, "pans down": 0.7, "stays still": 0.6,
}  # fmt: skip


@dataclass
class Item:
    """One clip: its latents (16, T, h, w), beginning with the picture's, and its features.

    Attributes:
        picture: The picture's features (4, 64).
    """

    latents: torch.Tensor
    picture: torch.Tensor
    text: TextFeatures
    prompt: str = ""


@torch.no_grad()
def encode_pictures(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> torch.Tensor:
    """Return scaled latents (N, 16, h, w) of single pictures (N, 3, H, W)."""
    groups = pixels.unsqueeze(2).to(vae.dtype).split(PICTURES_AT_A_TIME)
    moments = torch.cat([vae.quant_conv(vae.encoder(group)) for group in groups])
    return moments.float().chunk(2, dim=1)[0].squeeze(2) * vae.config.scaling_factor


def encode_cases(
    vae, encoders: Encoders, renderer: Renderer, cases: list[Case], size: Size, times=TIMES
) -> list[Item]:
    """Draw and encode cases of one size.

    One frame in four is drawn and encoded as a single picture. That is ten times as fast as encoding the
    whole clip, with an error of 3 % (at 64 pixels) to 9 % (at 128) of the motion's energy.
    """
    pixels = torch.stack([renderer.case(case, times, size) for case in cases])
    latents = encode_pictures(vae, pixels.transpose(1, 2).flatten(0, 1)).bfloat16()
    latents = latents.unflatten(0, (len(cases), len(times))).transpose(1, 2)
    pictures = encoders.picture(pixels[:, :, 0])
    return [
        Item(clip, picture, encoders.text(case.prompt), case.prompt)
        for clip, picture, case in zip(latents, pictures, cases, strict=True)
    ]


def draw_case(rng: np.random.Generator, size: Size, canvases: int) -> Case:
    """Return a random case, whose motion is drawn with the frequencies in ``SHARES``."""
    weights = np.array([SHARES[name] for name in MOTIONS])
    wanted = str(rng.choice(MOTIONS, p=weights / weights.sum()))
    while True:
        case = sample_case(rng, *size, canvases)
        if case.motion.name == wanted:
            return case


@dataclass
class Pool:
    """The clips by picture size, of which the newest ``limit`` of each size are kept."""

    vae: AutoencoderKLHunyuanVideo
    encoders: Encoders
    renderer: Renderer
    limit: int = 480
    items: dict[Size, list[Item]] = field(default_factory=dict)

    def add(self, rng: np.random.Generator, size: Size, count: int) -> None:
        """Draw, encode and keep ``count`` new clips of a size."""
        kept = self.items.setdefault(size, [])
        cases = [draw_case(rng, size, self.renderer.count) for _ in range(count)]
        for first in range(0, count, CLIPS_AT_A_TIME):
            some = cases[first : first + CLIPS_AT_A_TIME]
            kept += encode_cases(self.vae, self.encoders, self.renderer, some, size)
        del kept[: -self.limit]

    def grow(self, rng: np.random.Generator, size: Size, batch: int, visits: float) -> None:
        """Add as many clips before a step as are needed for each clip to be used about ``visits`` times."""
        due = batch / visits
        count = int(due) + int(rng.random() < due % 1)
        have = len(self.items.get(size, []))
        if have < batch:
            count = batch - have
        elif have < 2 * batch:
            count = max(count, 2)
        if count:
            self.add(rng, size, count)

    def state(self) -> list[dict]:
        """Return the clips as tensors, which a resumed run loads."""
        return [
            {
                "size": size,
                "latents": torch.stack([item.latents for item in items]),
                "picture": torch.stack([item.picture for item in items]),
                "prompts": [item.prompt for item in items],
            }
            for size, items in self.items.items()
        ]

    def load(self, state: list[dict]) -> None:
        """Replace the clips by those that ``state`` returned."""
        for part in state:
            rows = zip(part["latents"], part["picture"], part["prompts"], strict=True)
            self.items[tuple(part["size"])] = [
                Item(latents, picture, self.encoders.text(prompt), prompt)
                for latents, picture, prompt in rows
            ]

    def batch(self, rng: np.random.Generator, size: Size, count: int) -> tuple[torch.Tensor, Conditions]:
        """Return random clips of a size: latents (B, 16, 19, h, w) and conditions."""
        kept = self.items[size]
        return collate([kept[int(i)] for i in rng.choice(len(kept), count, replace=False)], rng)


def collate(items: list[Item], rng: np.random.Generator | None = None) -> tuple[torch.Tensor, Conditions]:
    """Stack items. The guidance is random, within the page's range, if ``rng`` is given, and otherwise 10."""
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
    return torch.stack([item.latents for item in items]).float(), conditions

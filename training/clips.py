"""The clips on which the transformer is trained, drawn and encoded for each step.

No clip is used twice. A transformer of this size learns clips by heart within a few visits, and then fails
on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.encoders import Encoders, TextFeatures
from training.render import Renderer
from training.scenes import DIRECTIONS, MOTIONS, PLAIN, Case, sample_case
from training.transformer import CLIP_LATENTS, Conditions

Size = tuple[int, int]
# A latent stands for four frames. The latent of a single picture is nearest to it if the picture lies this
# many frames before the last of them.
BEFORE_LAST = 1.5
TIMES = (0.0, *(4 * k - BEFORE_LAST for k in range(1, CLIP_LATENTS)))
# Pictures are encoded in groups of as many pixels, which fit into the processor's cache.
PIXELS_AT_A_TIME = 2 * 128 * 128
# The relative frequency of each motion. Motions that are learned early are drawn less often, and spins, which
# are learned last, most often.
SHARES = dict.fromkeys(MOTIONS, 1.0) | {
    "right": 2.0, "left": 1.6, "up": 2.0, "down": 1.6, "grows": 1.2, "shrinks": 1.4, "spins": 6.0,
    "zooms out": 1.2, "pans right": 0.6, "pans left": 0.6, "pans up": 0.6, "pans down": 0.6,
    "stays still": 0.6,
}  # fmt: skip
# The relative frequency of scenes of none to three things. Which thing a prompt names is hard to learn, so
# scenes of several things are drawn more often than in the evaluation.
THING_COUNTS = (0.04, 0.36, 0.42, 0.18)
# The share of moves of one of several things over a plain ground, where only the other things show that the
# camera does not pan.
PLAIN_MOVES = 0.3


@dataclass
class Item:
    """One clip: its latents (16, T, h, w), beginning with the picture's, and its features.

    Attributes:
        picture: The picture's features (4, 64).
    """

    latents: torch.Tensor
    picture: torch.Tensor
    text: TextFeatures


@torch.no_grad()
def encode_pictures(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> torch.Tensor:
    """Return scaled latents (N, 16, h, w) of single pictures (N, 3, H, W)."""
    at_a_time = max(1, PIXELS_AT_A_TIME // pixels[0, 0].numel())
    groups = pixels.unsqueeze(2).to(vae.dtype).split(at_a_time)
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
        Item(clip, picture, encoders.text(case.prompt))
        for clip, picture, case in zip(latents, pictures, cases, strict=True)
    ]


def draw_case(rng: np.random.Generator, size: Size, canvases: int) -> Case:
    """Return a random case; ``SHARES``, ``THING_COUNTS`` and ``PLAIN_MOVES`` are the frequencies."""
    weights = np.array([SHARES[name] for name in MOTIONS])
    wanted = str(rng.choice(MOTIONS, p=weights / weights.sum()))
    plain = wanted in DIRECTIONS and rng.random() < PLAIN_MOVES
    while True:
        case = sample_case(rng, *size, canvases, THING_COUNTS)
        suits = not plain or (case.scene.background.kind in PLAIN and len(case.scene.things) > 1)
        if case.motion.name == wanted and suits:
            return case


@dataclass
class Clips:
    """A source of random clips."""

    vae: AutoencoderKLHunyuanVideo
    encoders: Encoders
    renderer: Renderer

    def draw(
        self, rng: np.random.Generator, size: Size, count: int, wanted: Sequence[int]
    ) -> tuple[torch.Tensor, Conditions]:
        """Draw and encode ``count`` clips at the times ``wanted``, which must include 0, the picture.

        Returns:
            Latents (B, 16, 19, h, w), with zeros at the other times, and the conditions.
        """
        cases = [draw_case(rng, size, self.renderer.count) for _ in range(count)]
        times = [TIMES[i] for i in wanted]
        some, conditions = collate(
            encode_cases(self.vae, self.encoders, self.renderer, cases, size, times), rng
        )
        latents = some.new_zeros(count, some.shape[1], CLIP_LATENTS, *some.shape[3:])
        latents[:, :, list(wanted)] = some
        return latents, conditions


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

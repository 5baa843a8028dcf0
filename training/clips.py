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
from training.layout import ClipLayout, lay_out
from training.render import Renderer
from training.scenes import (
    DIRECTIONS,
    MOTIONS,
    PLAIN,
    STILL,
    Case,
    Motion,
    make_case,
    sample_scene,
    sample_speed,
    visible,
)
from training.transformer import CLIP_LATENTS, Conditions

Size = tuple[int, int]
# A latent stands for four frames. The latent of a single picture is nearest to it if the picture lies this
# many frames before the last of them.
BEFORE_LAST = 1.5
TIMES = (0.0, *(4 * k - BEFORE_LAST for k in range(1, CLIP_LATENTS)))
# Pictures are encoded in groups of as many pixels. A processor's group fits into its cache.
PIXELS_AT_A_TIME = 2 * 128 * 128
PIXELS_ON_GPU = 512 * 128 * 128
# The relative frequency of each motion. Motions that are learned early are drawn less often, and spins, which
# are learned last, most often.
SHARES = dict.fromkeys(MOTIONS, 1.0) | {
    "right": 2.0, "left": 1.6, "up": 2.0, "down": 1.6, "grows": 1.2, "shrinks": 1.4, "spins": 4.0,
    "zooms in": 1.3, "zooms out": 2.0, "pans right": 0.8, "pans left": 0.8, "pans up": 0.8, "pans down": 0.8,
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
    at_a_time = PIXELS_ON_GPU if pixels.is_cuda else PIXELS_AT_A_TIME
    at_a_time = max(1, at_a_time // pixels[0, 0].numel())
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
    layout = lay_out([(case.scene, case.motion) for case in cases], times)
    return encode(vae, encoders, renderer.draw(layout, size), [case.prompt for case in cases])


def encode(vae, encoders: Encoders, pixels: torch.Tensor, prompts: list[str]) -> list[Item]:
    """Encode clips (B, 3, T, H, W), each frame as a single picture, and their prompts."""
    pixels = pixels.to(vae.device)
    latents = encode_pictures(vae, pixels.transpose(1, 2).flatten(0, 1)).bfloat16()
    latents = latents.unflatten(0, (len(pixels), -1)).transpose(1, 2)
    pictures = encoders.picture(pixels[:, :, 0])
    return [
        Item(clip, picture, encoders.text(prompt))
        for clip, picture, prompt in zip(latents, pictures, prompts, strict=True)
    ]


def draw_case(rng: np.random.Generator, size: Size, canvases: int) -> Case:
    """Return a random case; ``SHARES``, ``THING_COUNTS`` and ``PLAIN_MOVES`` are the frequencies."""
    weights = np.array([SHARES[name] for name in MOTIONS])
    wanted = str(rng.choice(MOTIONS, p=weights / weights.sum()))
    plain = wanted in DIRECTIONS and rng.random() < PLAIN_MOVES
    while True:
        scene = sample_scene(rng, *size, canvases, THING_COUNTS)
        of_thing, of_camera = visible(scene)
        suits = not plain or (scene.background.kind in PLAIN and len(scene.things) > 1)
        if suits and wanted in (STILL, *of_thing, *of_camera):
            speed = "" if wanted == STILL else sample_speed(rng)
            return make_case(rng, scene, Motion(wanted, speed))


@dataclass
class ClipBatch:
    """Random clips of one size, not yet drawn.

    Attributes:
        wanted: The times of the latents that are encoded, which include 0, the picture.
        guidance: The guidance of each clip (B).
    """

    size: Size
    wanted: list[int]
    layout: ClipLayout
    prompts: list[str]
    guidance: np.ndarray


def draw_batch(
    rng: np.random.Generator, size: Size, count: int, wanted: Sequence[int], canvases: int
) -> ClipBatch:
    """Return ``count`` random clips. The guidance is within the page's range."""
    cases = [draw_case(rng, size, canvases) for _ in range(count)]
    layout = lay_out([(case.scene, case.motion) for case in cases], [TIMES[time] for time in wanted])
    guidance = np.exp(rng.uniform(0, np.log(32), count))
    return ClipBatch(size, list(wanted), layout, [case.prompt for case in cases], guidance)


@dataclass
class Clips:
    """The encoders of batches."""

    vae: AutoencoderKLHunyuanVideo
    encoders: Encoders
    renderer: Renderer

    def encode(self, batch: ClipBatch) -> tuple[torch.Tensor, Conditions]:
        """Draw and encode a batch.

        Returns:
            Latents (B, 16, 19, h, w), with zeros at the times that are not wanted, and the conditions.
        """
        pixels = self.renderer.draw(batch.layout, batch.size)
        items = encode(self.vae, self.encoders, pixels, batch.prompts)
        some, conditions = collate(items, batch.guidance)
        latents = some.new_zeros(*some.shape[:2], CLIP_LATENTS, *some.shape[3:])
        latents[:, :, batch.wanted] = some
        return latents, conditions


def collate(items: list[Item], guidance: np.ndarray | None = None) -> tuple[torch.Tensor, Conditions]:
    """Stack items on the device of their latents. The guidance (B) is 10 if it is not given."""
    latents = torch.stack([item.latents for item in items]).float()
    scale = np.full(len(items), 10.0) if guidance is None else guidance
    mask = torch.stack([item.text.mask for item in items])
    longest = int(mask.sum(1).max())
    conditions = Conditions(
        tokens=torch.stack([item.text.tokens for item in items])[:, :longest],
        mask=mask[:, :longest],
        pooled=torch.stack([item.text.pooled for item in items]),
        picture=torch.stack([item.picture for item in items]),
        guidance=1000 * torch.tensor(scale, dtype=torch.float32),
    )
    return latents, conditions.to(latents.device)

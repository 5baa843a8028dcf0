"""The demo transformer: its architecture, its inputs, which are those of inference, and its loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from torch import nn

from diffusers_helper.families.packing import HISTORY, LATENT_WINDOW_SIZE, frame_indices, paddings
from training.encoders import WIDTH

SEED = 31
# Two sections and the picture: a motion ends with frame 72.
CLIP_LATENTS = 2 * LATENT_WINDOW_SIZE + 1
# The weight of moving places relative to the whole picture. The floors suppress the noise of still clips.
MOTION_WEIGHT, LEAST_CHANGE, LEAST_CONTRAST, MOST_WEIGHT = 2.0, 0.02, 0.2, 40.0
# The shift of the noise levels in sampling, which ships with the model. It is large because most of the
# training is at high noise; predictions from little noise have more errors.
SAMPLING_SHIFT = 70.0
# The shift of the noise levels in training: motion is decided near pure noise, where all sampling is.
TRAINING_SHIFT = 120.0


def build_transformer() -> HunyuanVideoFramepackTransformer3DModel:
    """Return the untrained demo transformer, whose output is zero and whose gates are nearly closed."""
    torch.manual_seed(SEED)
    model = HunyuanVideoFramepackTransformer3DModel(
        num_attention_heads=4, attention_head_dim=44, num_layers=1, num_single_layers=7, num_refiner_layers=1,
        text_embed_dim=WIDTH, pooled_projection_dim=WIDTH, rope_axes_dim=(12, 16, 16), rope_theta=32.0,
        guidance_embeds=True, image_proj_dim=WIDTH, has_image_proj=True, has_clean_x_embedder=True,
    )  # fmt: skip
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "norm" in name and name.endswith("linear"):
            module.weight.data.mul_(0.2)
    return model


class StretchedRope(nn.Module):
    """The model's positions, stretched so that a small picture has the range of positions of a large one.

    Weights trained on small pictures, which cost a quarter, then work for large ones. With ``stretch`` 1 this
    equals diffusers' own module.
    """

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.patch_size, self.rope_dim, self.theta = rope.patch_size, rope.rope_dim, rope.theta
        self.stretch = 1.0

    def forward(self, frame_indices: torch.Tensor, height: int, width: int, device: torch.device):
        """Return cosines and sines, each (frames * rows * columns, head dim / 2 of the model)."""
        counts = (height // self.patch_size, width // self.patch_size)
        rows, columns = ((torch.arange(n, device=device) + 0.5) * self.stretch - 0.5 for n in counts)
        axes = torch.meshgrid(frame_indices.to(device, torch.float32), rows, columns, indexing="ij")
        parts = [
            get_1d_rotary_pos_embed(dim, axis.reshape(-1), self.theta, use_real=True)
            for dim, axis in zip(self.rope_dim, axes, strict=True)
        ]
        return torch.cat([part[0] for part in parts], dim=1), torch.cat([part[1] for part in parts], dim=1)


def sigmas_of(steps: int) -> torch.Tensor:
    """Return the noise levels of sampling, from 1 down to 0, (steps + 1)."""
    t = torch.linspace(1, 0, steps + 1)
    return SAMPLING_SHIFT * t / (1 + (SAMPLING_SHIFT - 1) * t)


@dataclass
class SectionTimes:
    """The times of the latents that a section makes, and of those that it sees; None stands for zeros.

    Attributes:
        before: The section whose latents are its whole history besides the picture, if there is one such.
    """

    mode: str
    padding: int
    noisy: list[int]
    history: list[int | None]
    before: SectionTimes | None = None


def _section(mode: str, padding: int, begin: int, last: int) -> SectionTimes:
    """Return the section that makes the latents after time ``begin`` of a video that ends at ``last``."""
    noisy = list(range(begin + 1, begin + LATENT_WINDOW_SIZE + 1))
    if mode == "inverted":
        # The nearest come first: 1x, 2x, 4x.
        following = range(noisy[-1] + 1, noisy[-1] + 1 + HISTORY)
        section = SectionTimes(mode, padding, noisy, [i if i <= last else None for i in following])
        if begin == 0 and last == 2 * LATENT_WINDOW_SIZE:
            section.before = _section(mode, 1, LATENT_WINDOW_SIZE, last)
        return section
    # The oldest come first: 4x, 2x, 1x.
    section = SectionTimes(
        mode, padding, noisy, [i if i >= 0 else None for i in range(begin - HISTORY + 1, begin + 1)]
    )
    if begin == LATENT_WINDOW_SIZE:
        section.before = _section(mode, padding, 0, last)
    return section


def draw_section(rng: np.random.Generator) -> SectionTimes:
    """Return a random section of a video, with the times that the pipeline would use.

    Later sections are drawn less often than they occur in videos, because nothing moves after the first two.
    """
    if rng.random() < 0.45:
        count = int(rng.choice([1, 2, 3, 4, 7], p=[0.38, 0.44, 0.06, 0.07, 0.05]))
        padding = int(rng.choice(paddings(count)))
        return _section("inverted", padding, padding * LATENT_WINDOW_SIZE, count * LATENT_WINDOW_SIZE)
    begin = int(rng.choice([0, 1, 2, 4, 7], p=[0.46, 0.42, 0.05, 0.04, 0.03])) * LATENT_WINDOW_SIZE
    return _section("forward", 0, begin, begin + LATENT_WINDOW_SIZE)


def draw_frames(generator: torch.Generator, count: int) -> torch.Tensor:
    """Return the places of ``count`` random latents of a section, in order."""
    return torch.randperm(LATENT_WINDOW_SIZE, generator=generator)[:count].sort().values


def gather(latents: torch.Tensor, start: torch.Tensor, wanted: list[int | None]) -> torch.Tensor:
    """Return latents (B, 16, n, h, w) at these times; 0 stands for ``start``, None for zeros."""
    frames = []
    for time in wanted:
        if time is None:
            frames.append(torch.zeros_like(start))
        elif time == 0:
            frames.append(start)
        else:
            index = min(time, latents.shape[2] - 1)
            frames.append(latents[:, :, index : index + 1])
    return torch.cat(frames, dim=2)


def model_inputs(
    section: SectionTimes, start: torch.Tensor, history: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return a section's clean inputs from ``start`` (B, 16, 1, h, w) and ``history`` (B, 16, 19, h, w)."""
    indices = frame_indices(section.mode, LATENT_WINDOW_SIZE, section.padding)
    if section.mode == "inverted":
        near, half, quarter = history.split([1, 2, 16], dim=2)
    else:
        quarter, half, near = history.split([16, 2, 1], dim=2)
    return {
        "latents_clean": torch.cat([start, near], dim=2),
        "latents_history_2x": half,
        "latents_history_4x": quarter,
        "indices_latents": torch.tensor(indices.noisy, device=start.device),
        "indices_latents_clean": torch.tensor(indices.clean, device=start.device),
        "indices_latents_history_2x": torch.tensor(indices.history_2x, device=start.device),
        "indices_latents_history_4x": torch.tensor(indices.history_4x, device=start.device),
    }


@dataclass
class Conditions:
    """The inputs that all sections share.

    Attributes:
        tokens: The text's tokens (B, n, 64), with n up to 8.
        mask: True for the tokens that are not padding (B, n).
        pooled: The text's pooled features (B, 64).
        picture: The picture's features (B, 4, 64).
        guidance: The guidance times 1000 (B).
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    pooled: torch.Tensor
    picture: torch.Tensor
    guidance: torch.Tensor

    def to(self, device: torch.device) -> Conditions:
        """Return the conditions on a device."""
        return Conditions(**{name: value.to(device) for name, value in vars(self).items()})

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the transformer's arguments."""
        return {
            "encoder_hidden_states": self.tokens,
            "encoder_attention_mask": self.mask,
            "pooled_projections": self.pooled,
            "image_embeds": self.picture,
            "guidance": self.guidance,
        }


def draw_uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return random numbers (count) in 0..1 on the generator's device."""
    return torch.rand(count, generator=generator, device=generator.device)


def draw_noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return Gaussian noise of the shape of ``like``, on the generator's device, which must be the same."""
    return torch.randn(like.shape, generator=generator, device=generator.device)


def draw_sigmas(batch: int, generator: torch.Generator, shift: float) -> torch.Tensor:
    """Return random, shifted noise levels (B), one from each of B equal intervals."""
    order = torch.randperm(batch, generator=generator, device=generator.device)
    t = ((order + draw_uniform(batch, generator)) / batch).clamp(0.002, 1)
    return shift * t / (1 + (shift - 1) * t)


def motion_weight(clean: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return weights for the places of a clip (B, T, h, w), by their distance from the picture's latent.

    The sum over a clip is about the same whether a small pale thing shrinks or the whole picture pans.
    Otherwise, small motions would hardly count in the loss.
    """
    change = (clean - start).abs().mean(dim=1)
    area = change.mean(dim=(1, 2, 3), keepdim=True) + LEAST_CHANGE
    contrast = change.square().mean(dim=(1, 2, 3), keepdim=True) / area + LEAST_CONTRAST
    return (change / (area * contrast)).clamp(max=MOST_WEIGHT)


def times_of(section: SectionTimes, frames: torch.Tensor, own_history: bool) -> list[int]:
    """Return the times of the clip's latents that a step needs, in order."""
    shown = [] if own_history else [time for time in section.history if time is not None]
    made = [section.noisy[int(place)] for place in frames]
    return sorted({min(time, CLIP_LATENTS - 1) for time in (0, *shown, *made)})


def flow_loss(
    model: nn.Module,
    section: SectionTimes,
    latents: torch.Tensor,
    conditions: Conditions,
    generator: torch.Generator,
    frames: torch.Tensor,
    known: torch.Tensor | None = None,
    shift: float = TRAINING_SHIFT,
) -> torch.Tensor:
    """Return the weighted squared error of one section's velocity (noise minus clean) for each clip (B).

    Args:
        latents: The clips (B, 16, T, h, w). Only the times that ``stage_times`` returns are used.
        frames: The places of the section's latents that are made, in order. Each one's error teaches as much
            as among all nine, and a step on three of them costs half as much.
        known: The clips that the history is taken from, if they are not ``latents`` themselves.
    """
    start = latents[:, :, :1]
    clean = gather(latents, start, section.noisy)[:, :, frames]
    batch = clean.shape[0]
    history = gather(latents if known is None else known, start, section.history)
    # The errors of earlier sections look like noise. A model trained with such noise does not amplify them.
    level = 0.15 * draw_uniform(batch, generator) * (draw_uniform(batch, generator) < 0.5)
    present = (history.abs().amax(dim=(1, 3, 4), keepdim=True) > 0).float()
    dirt = draw_noise(history, generator) * level.view(-1, 1, 1, 1, 1) * present
    inputs = model_inputs(section, start, history + dirt)
    inputs["indices_latents"] = inputs["indices_latents"][frames]
    sigma = draw_sigmas(batch, generator, shift)
    weight = sigma.view(-1, 1, 1, 1, 1)
    noise = draw_noise(clean, generator)
    velocity = model(
        hidden_states=noise * weight + clean * (1 - weight),
        timestep=1000 * sigma,
        **conditions.inputs(),
        **inputs,
        return_dict=False,
    )[0]
    error = (velocity.float() - (noise - clean)).square().mean(dim=1)
    return (error * (1 + MOTION_WEIGHT * motion_weight(clean, start))).mean(dim=(1, 2, 3))

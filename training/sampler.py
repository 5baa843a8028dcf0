"""A small sampler for the monitoring of the training, which makes several whole videos at a time."""

from __future__ import annotations

from itertools import pairwise

import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import nn

from diffusers_helper.families.packing import HISTORY, LATENT_WINDOW_SIZE, paddings
from training.transformer import Conditions, SectionTimes, draw_noise, gather, model_inputs, sigmas_of


@torch.no_grad()
def sample_section(
    model: nn.Module,
    section: SectionTimes,
    start: torch.Tensor,
    history: torch.Tensor,
    conditions: Conditions,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Sample the clean latents (B, 16, 9, h, w) of one section by Euler steps."""
    x = draw_noise(start.expand(-1, -1, LATENT_WINDOW_SIZE, -1, -1), generator)
    sigmas = sigmas_of(steps)
    fixed = conditions.inputs() | model_inputs(section, start, history)
    for sigma, following in pairwise(sigmas):
        timestep = start.new_full((start.shape[0],), 1000 * float(sigma))
        velocity = model(hidden_states=x, timestep=timestep, **fixed, return_dict=False)[0].float()
        x = x + (following - sigma) * velocity
    return x


def with_own_history(
    model: nn.Module,
    section: SectionTimes,
    latents: torch.Tensor,
    conditions: Conditions,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return a clip's latents (B, 16, T, h, w) with those of ``section.before`` as the model makes them.

    A model that is trained on them, as it sees them in videos of two sections, learns to continue its own
    latents.
    """
    before, start = section.before, latents[:, :, :1]
    history = gather(start, start, before.history)
    latents = latents.clone()
    latents[:, :, before.noisy] = sample_section(model, before, start, history, conditions, 1, generator)
    return latents


def sample_latents(
    model: nn.Module,
    mode: str,
    sections: int,
    start: torch.Tensor,
    conditions: Conditions,
    steps: int,
    seed: int,
) -> torch.Tensor:
    """Sample the latents (B, 16, 9 * sections + 1, h, w) of whole videos from ``start`` (B, 16, 1, h, w)."""
    generator = torch.Generator(start.device).manual_seed(seed)
    made: torch.Tensor | None = None
    if mode == "inverted":
        for padding in paddings(sections):
            count = 0 if made is None else made.shape[2]
            times = [i + 1 if i < count else None for i in range(HISTORY)]
            history = gather(_with_blank(made, start), start, times)
            section = SectionTimes(mode, padding, [], [])
            fresh = sample_section(model, section, start, history, conditions, steps, generator)
            made = fresh if made is None else torch.cat([fresh, made], dim=2)
        return torch.cat([start, made], dim=2)
    made = start
    for _ in range(sections):
        blank = torch.zeros_like(start).expand(-1, -1, HISTORY, -1, -1)
        history = torch.cat([blank, made], dim=2)[:, :, -HISTORY:]
        section = SectionTimes(mode, 0, [], [])
        fresh = sample_section(model, section, start, history, conditions, steps, generator)
        made = torch.cat([made, fresh], dim=2)
    return made


def _with_blank(made: torch.Tensor | None, start: torch.Tensor) -> torch.Tensor:
    blank = torch.zeros_like(start)
    return blank if made is None else torch.cat([blank, made], dim=2)


@torch.no_grad()
def decode(vae: AutoencoderKLHunyuanVideo, latents: torch.Tensor) -> torch.Tensor:
    """Decode scaled latents to pixels (B, 3, T, H, W) in -1..1, one video at a time."""
    with torch.autocast(latents.device.type, torch.bfloat16):
        videos = [vae.decode(one[None] / vae.config.scaling_factor).sample[0].float() for one in latents]
    return torch.stack(videos).clamp(-1, 1)

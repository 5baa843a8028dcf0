"""A small sampler for the monitoring of the training, which makes several whole videos at a time."""

from itertools import pairwise

import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import nn

from diffusers_helper.families.packing import LATENT_WINDOW_SIZE
from training.sections import SectionTimes, VideoPlan, gather, model_inputs
from training.transformer import Conditions, draw_noise, sigmas_of


@torch.no_grad()
def sample_section(
    model: nn.Module,
    section: SectionTimes,
    latents: torch.Tensor,
    conditions: Conditions,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Sample a section (B, 16, 9, h, w) by Euler steps; ``latents`` (B, 16, T, h, w) are the video so far."""
    start, history = gather(latents, [section.start]), gather(latents, section.history)
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
    before: SectionTimes,
    latents: torch.Tensor,
    conditions: Conditions,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return a clip's latents (B, 16, T, h, w) with those of the section ``before`` as the model makes them.

    A model that is trained on them, as it sees them in longer videos, learns to continue its own latents.
    """
    latents = latents.clone()
    latents[:, :, before.noisy] = sample_section(model, before, latents, conditions, 1, generator)
    return latents


def sample_video(
    model: nn.Module, plan: VideoPlan, start: torch.Tensor, conditions: Conditions, steps: int, seed: int
) -> torch.Tensor:
    """Sample the latents (B, 16, 9 N + 1, h, w) of videos from ``start`` (B, 16, 1, h, w), in one run."""
    generator = torch.Generator(start.device).manual_seed(seed)
    latents = start.repeat(1, 1, plan.length, 1, 1)
    order = range(plan.count)
    for number in reversed(order) if plan.mode == "inverted" else order:
        section = plan.section(number)
        latents[:, :, section.noisy] = sample_section(model, section, latents, conditions, steps, generator)
    return latents


@torch.no_grad()
def decode(vae: AutoencoderKLHunyuanVideo, latents: torch.Tensor) -> torch.Tensor:
    """Decode scaled latents to pixels (B, 3, T, H, W) in -1..1, one video at a time."""
    with torch.autocast(latents.device.type, torch.bfloat16):
        videos = [vae.decode(one[None] / vae.config.scaling_factor).sample[0].float() for one in latents]
    return torch.stack(videos).clamp(-1, 1)

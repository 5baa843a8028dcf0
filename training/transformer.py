"""The demo transformer: its architecture, its conditions, and its loss."""

from dataclasses import dataclass

import torch
from torch import nn

from training.sections import SectionTimes, gather, model_inputs

# The weight of moving places relative to the whole picture. The floors suppress the noise of still clips.
MOTION_WEIGHT, LEAST_CHANGE, LEAST_CONTRAST, MOST_WEIGHT = 2.0, 0.02, 0.2, 40.0
# The shift of the noise levels in sampling, which ships with the model. It is large because most of the
# training is at high noise; predictions from little noise have more errors.
SAMPLING_SHIFT = 70.0
# The shift of the noise levels in training: motion is decided near pure noise, where all sampling is.
TRAINING_SHIFT = 120.0


def sigmas_of(steps: int) -> torch.Tensor:
    """Return the noise levels of sampling, from 1 down to 0, (steps + 1)."""
    t = torch.linspace(1, 0, steps + 1)
    return SAMPLING_SHIFT * t / (1 + (SAMPLING_SHIFT - 1) * t)


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


def motion_weight(clean: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Return weights for the places of a clip (B, T, h, w), by their distance from the latents at rest.

    The sum over a clip is about the same whether a small pale thing shrinks or the whole picture pans.
    Otherwise, small motions would hardly count in the loss.
    """
    change = (clean - rest).abs().mean(dim=1)
    area = change.mean(dim=(1, 2, 3), keepdim=True) + LEAST_CHANGE
    contrast = change.square().mean(dim=(1, 2, 3), keepdim=True) / area + LEAST_CONTRAST
    return (change / (area * contrast)).clamp(max=MOST_WEIGHT)


def flow_loss(
    model: nn.Module,
    section: SectionTimes,
    latents: torch.Tensor,
    conditions: Conditions,
    generator: torch.Generator,
    shift: float = TRAINING_SHIFT,
    *,
    from_noise: bool = False,
) -> torch.Tensor:
    """Return the weighted squared error of one section's velocity (noise minus clean) for each clip (B).

    Args:
        latents: The clips (B, 16, T, h, w). Only the times that the section makes and sees are used.
        from_noise: Whether the section starts at noise, which says nothing about what moves.
    """
    start, clean = gather(latents, [section.start]), gather(latents, list(section.noisy))
    history = gather(latents, section.history)
    batch = clean.shape[0]
    # The errors of earlier sections look like noise. A model trained with such noise does not amplify them.
    level = 0.15 * draw_uniform(batch, generator) * (draw_uniform(batch, generator) < 0.5)
    present = (history.abs().amax(dim=(1, 3, 4), keepdim=True) > 0).float()
    dirt = draw_noise(history, generator) * level.view(-1, 1, 1, 1, 1) * present
    sigma = draw_sigmas(batch, generator, shift)
    weight = sigma.view(-1, 1, 1, 1, 1)
    noise = draw_noise(clean, generator)
    velocity = model(
        hidden_states=noise * weight + clean * (1 - weight),
        timestep=1000 * sigma,
        **conditions.inputs(),
        **model_inputs(section, start, history + dirt),
        return_dict=False,
    )[0]
    error = (velocity.float() - (noise - clean)).square().mean(dim=1)
    rest = clean.mean((2, 3, 4), keepdim=True) if from_noise else start
    return (error * (1 + MOTION_WEIGHT * motion_weight(clean, rest))).mean(dim=(1, 2, 3))

"""The clips on which the transformer is trained, drawn and encoded for each step.

No clip is used twice. A transformer of this size learns clips by heart within a few visits, and then fails
on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.encoders import Encoders
from training.layout import ClipLayout, lay_out
from training.render import Renderer
from training.sections import VideoPlan
from training.stories import bare_story, draw_story
from training.transformer import Conditions

Size = tuple[int, int]
# Pictures are encoded in groups of as many pixels. A processor's group fits into its cache.
PIXELS_AT_A_TIME = 2 * 128 * 128
PIXELS_ON_GPU = 512 * 128 * 128


@torch.no_grad()
def encode_pictures(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> torch.Tensor:
    """Return scaled latents (N, 16, h, w) of single pictures (N, 3, H, W)."""
    at_a_time = PIXELS_ON_GPU if pixels.is_cuda else PIXELS_AT_A_TIME
    at_a_time = max(1, at_a_time // pixels[0, 0].numel())
    groups = pixels.unsqueeze(2).to(vae.dtype).split(at_a_time)
    moments = torch.cat([vae.quant_conv(vae.encoder(group)) for group in groups])
    return moments.float().chunk(2, dim=1)[0].squeeze(2) * vae.config.scaling_factor


def encode_frames(vae: AutoencoderKLHunyuanVideo, pixels: torch.Tensor) -> torch.Tensor:
    """Return latents (B, 16, T, h, w) of clips (B, 3, T, H, W), each frame encoded as a single picture.

    With one frame in four, this is ten times as fast as encoding the whole clip, with an error of 3 % (at 64
    pixels) to 9 % (at 128) of the motion's energy.
    """
    latents = encode_pictures(vae, pixels.transpose(1, 2).flatten(0, 1))
    return latents.unflatten(0, (len(pixels), -1)).transpose(1, 2)


@dataclass
class ClipBatch:
    """Random clips of one size, not yet drawn.

    Attributes:
        wanted: The times of the latents that are encoded, beginning with 0 if there are pictures.
        length: The number of latents in the video.
        prompts: The prompts of the section in training.
        prompts_before: The prompts of the section that is made before it.
        guidance: The guidance of each clip (B).
    """

    size: Size
    wanted: list[int]
    length: int
    layout: ClipLayout
    prompts: list[str]
    prompts_before: list[str]
    guidance: np.ndarray


def draw_batch(
    rng: np.random.Generator, size: Size, count: int, plan: VideoPlan, section: int, wanted: Sequence[int],
    canvases: int,
) -> ClipBatch:  # fmt: skip
    """Return ``count`` random clips of a video's plan. The guidance is within the page's range."""
    begins = plan.begins()
    stories = [
        draw_story(rng, size, canvases, begins) if plan.has_picture else bare_story(rng, size, begins)
        for _ in range(count)
    ]
    layout = lay_out([(s.scene, s.acts) for s in stories], [plan.frame(time) for time in wanted])
    before = plan.before(section)
    runs = [plan.run_of(number) for number in (section, section if before is None else before)]
    prompts, prompts_before = ([story.prompts[run] for story in stories] for run in runs)
    guidance = np.exp(rng.uniform(0, np.log(32), count))
    return ClipBatch(size, list(wanted), plan.length, layout, prompts, prompts_before, guidance)


@dataclass
class Clips:
    """The encoders of batches."""

    vae: AutoencoderKLHunyuanVideo
    encoders: Encoders
    renderer: Renderer

    def encode(self, batch: ClipBatch) -> tuple[torch.Tensor, Conditions, Conditions]:
        """Draw and encode a batch.

        Returns:
            Latents (B, 16, T, h, w), with zeros at the times that are not wanted, and the conditions of the
            section and of the one before it.
        """
        pixels = self.renderer.draw(batch.layout, batch.size)
        some = encode_frames(self.vae, pixels)
        latents = some.new_zeros(*some.shape[:2], batch.length, *some.shape[3:])
        latents[:, :, batch.wanted] = some
        # Without a picture, the product shows a black one to the encoder of pictures.
        pictures = pixels[:, :, 0] if batch.wanted[0] == 0 else torch.full_like(pixels[:, :, 0], -1.0)
        conditions = self.conditions(batch.prompts, pictures, batch.guidance)
        if batch.prompts_before == batch.prompts:
            return latents, conditions, conditions
        words = self.words(batch.prompts_before, latents.device)
        return latents, conditions, replace(conditions, **words)

    def words(self, prompts: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
        """Return the text's features as attributes of ``Conditions``."""
        texts = [self.encoders.text(prompt) for prompt in prompts]
        mask = torch.stack([text.mask for text in texts])
        longest = int(mask.sum(1).max())
        tokens = torch.stack([text.tokens for text in texts])[:, :longest]
        pooled = torch.stack([text.pooled for text in texts])
        return {
            "tokens": tokens.to(device),
            "mask": mask[:, :longest].to(device),
            "pooled": pooled.to(device),
        }

    def conditions(
        self, prompts: Sequence[str], pictures: torch.Tensor, guidance: np.ndarray | None = None
    ) -> Conditions:
        """Encode prompts and pictures (B, 3, H, W). The guidance (B) is 10 if it is not given."""
        scale = np.full(len(prompts), 10.0) if guidance is None else guidance
        picture = self.encoders.picture(pictures)
        return Conditions(
            **self.words(prompts, picture.device),
            picture=picture,
            guidance=1000 * torch.tensor(scale, dtype=torch.float32, device=picture.device),
        )

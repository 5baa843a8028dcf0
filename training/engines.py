"""Two ways to make a video from a picture and a prompt: the product's pipeline or the training's sampler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from training.encoders import Encoders
from training.pool import Item, collate
from training.sampler import decode, sample_latents


class Engine(Protocol):
    """Makes videos."""

    def make(self, picture: torch.Tensor, prompt: str, mode: str, sections: int, seed: int) -> torch.Tensor:
        """A video (3, T, H, W) in -1..1 from a picture (3, H, W) in -1..1."""

    def vae(self) -> AutoencoderKLHunyuanVideo:
        """The model's VAE."""


class SamplerEngine:
    """The training's own sampler on a shipped model folder."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        facts = json.loads((folder / "longtake.json").read_text(encoding="utf-8"))
        self.steps = steps or facts["steps"]
        self.encoders = Encoders(folder)
        self.transformer = HunyuanVideoFramepackTransformer3DModel.from_pretrained(
            folder / "transformer"
        ).eval()
        self._vae = AutoencoderKLHunyuanVideo.from_pretrained(folder / "vae").float().eval()

    def vae(self) -> AutoencoderKLHunyuanVideo:
        return self._vae

    @torch.no_grad()
    def make(self, picture: torch.Tensor, prompt: str, mode: str, sections: int, seed: int) -> torch.Tensor:
        start = self._vae.encode(picture[None, :, None]).latent_dist.mode() * self._vae.config.scaling_factor
        item = Item(start[0], start[0], self.encoders.picture(picture[None])[0], self.encoders.text(prompt))
        _, start, conditions = collate([item])
        latents = sample_latents(self.transformer, mode, sections, start, conditions, self.steps, seed)
        return decode(self._vae, latents)[0]


def make_engine(kind: str, folder: Path, steps: int | None, cfg: float = 1.0) -> Engine:
    """The engine of a name, ``product`` or ``sampler``; only the product knows classifier-free guidance."""
    if kind == "sampler":
        return SamplerEngine(folder, steps)
    from training.product_engine import ProductEngine

    return ProductEngine(folder, steps, cfg)

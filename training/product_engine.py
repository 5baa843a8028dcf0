"""An engine for the evaluation, which makes videos with the product's own code."""

import json
import tempfile
from pathlib import Path
from typing import cast

import imageio.v3 as imageio
import torch
from diffusers import AutoencoderKLHunyuanVideo
from PIL import Image

from diffusers_helper.cancel import CancelToken
from diffusers_helper.families.packing import FPS, LATENT_WINDOW_SIZE, MODES
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.models.registry import FACTS_FILE, find_model
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest

# The writer's best quality, so that the figures show the model and not the codec.
CRF = 1


def read_frames(video: Path) -> torch.Tensor:
    """Return the frames (3, T, H, W) of a video file, in -1..1."""
    frames = torch.from_numpy(imageio.imread(video, plugin="pyav"))
    return frames.permute(3, 0, 1, 2).float() / 127.5 - 1


class ProductEngine:
    """An engine that makes videos with ``diffusers_helper.pipeline.generate`` and a loaded model."""

    def __init__(self, folder: Path, steps: int | None, cfg: float = 1.0) -> None:
        info = find_model(str(folder), allow_folder=True)
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        self.name, self.steps, self.guidance = str(folder), steps or facts["steps"], facts["guidance"]
        self.side: int = facts["side"]
        self.cfg = cfg
        self.models = load_models(info, device="cpu")
        self.models.load(CancelToken())

    def vae(self) -> AutoencoderKLHunyuanVideo:
        return cast(AutoencoderKLHunyuanVideo, self.models.component("vae"))

    def make(
        self, picture: torch.Tensor | None, prompt: str, mode: str, sections: int, seed: int
    ) -> torch.Tensor:
        """Return the frames (3, T, H, W) of a video, from a picture (3, H, W) or from the prompt alone."""
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {MODES}.")
        with tempfile.TemporaryDirectory() as folder:
            image = Path(folder) / "picture.png"
            if picture is not None:
                pixels = (picture + 1).mul(127.5).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(image)
            request = GenerationRequest(
                image="" if picture is None else str(image),
                prompt=prompt,
                seconds=max(1.0, sections * 4 * LATENT_WINDOW_SIZE / FPS),
                seed=seed,
                steps=self.steps,
                mode=mode,
                guidance=self.guidance,
                cfg=self.cfg,
                crf=CRF,
                model=self.name,
            )
            result = generate(request, self.models, folder=Path(folder) / "job")
            return read_frames(result.video)

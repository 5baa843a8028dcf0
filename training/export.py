"""The assembly of the trained parts into the folder that the product ships."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from diffusers_helper.output.previews import TINY_FILE
from training.examples import ON_PAGE
from training.transformer import SAMPLING_SHIFT
from training.words import vocabulary

PARTS = (
    "transformer", "vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2",
    "image_encoder", "feature_extractor",
)  # fmt: skip
STATIC_FILES = ("README.md", "LICENSE", TINY_FILE)


def facts(steps: int) -> dict:
    """Return the facts that the product must know about the model before it loads it."""
    return {
        "title": "Longtake demo model",
        "modes": ["inverted", "forward"],
        "side": 128,
        "multiple": 16,
        "steps": steps,
        "guidance": 10.0,
        "shift": SAMPLING_SHIFT,
        "vocabulary": vocabulary(),
        "examples": list(ON_PAGE),
    }


@torch.no_grad()
def quiet(vae: AutoencoderKLHunyuanVideo) -> None:
    """Remove the spread from the encoder's posterior, in place.

    The spread was only needed to train the decoder. The pipeline samples the picture's latent, and without
    the spread the first frame is nearer to the picture.
    """
    channels = vae.config["latent_channels"]
    vae.quant_conv.weight[channels:] = 0
    vae.quant_conv.bias[channels:] = -12.0


def export(
    transformer: HunyuanVideoFramepackTransformer3DModel,
    vae: AutoencoderKLHunyuanVideo,
    encoders: Path,
    target: Path,
    steps: int = 4,
    vae_dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a complete model folder beside ``target`` and swap it in; the card and the licence are kept."""
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    fresh.mkdir(parents=True)
    quiet(vae)
    transformer.to(torch.bfloat16).save_pretrained(fresh / "transformer")
    vae.to(vae_dtype).save_pretrained(fresh / "vae")
    for part in PARTS[2:]:
        shutil.copytree(encoders / part, fresh / part)
    (fresh / "longtake.json").write_text(json.dumps(facts(steps), indent=2) + "\n", encoding="utf-8")
    for name in STATIC_FILES:
        if (target / name).exists():
            shutil.copy2(target / name, fresh / name)
    for path in fresh.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)

"""The tiny model with more blocks in its transformer, of which some can be streamed to save memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

DOUBLE_BLOCKS, SINGLE_BLOCKS = 3, 5


def write_deep_model(tiny_model: Path, folder: Path) -> Path:
    """Copy the tiny model and replace its transformer, with the same bytes each time."""
    shutil.copytree(tiny_model, folder)
    config = HunyuanVideoFramepackTransformer3DModel.load_config(folder / "transformer")
    deeper = {**config, "num_layers": DOUBLE_BLOCKS, "num_single_layers": SINGLE_BLOCKS}
    shutil.rmtree(folder / "transformer")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(22)
        made = HunyuanVideoFramepackTransformer3DModel.from_config(deeper)
        made.save_pretrained(folder / "transformer")
    return folder

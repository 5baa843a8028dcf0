"""Starts a training folder from a model folder that was exported before, where its checkpoints are gone."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from training.export import PARTS
from training.train_transformer import CHECKPOINT
from training.vae import save_state

LOG = logging.getLogger(__name__)


def start_from(model: Path, folder: Path) -> bool:
    """Write encoders, VAE and transformer of ``model`` as a training folder; False if it has a checkpoint.

    The VAE's latent space is frozen as it is. The optimiser and the running mean start anew.
    """
    if (folder / CHECKPOINT).exists():
        return False
    for part in PARTS[2:]:
        shutil.copytree(model / part, folder / "model" / part, dirs_exist_ok=True)
    vae = AutoencoderKLHunyuanVideo.from_pretrained(model / "vae").float()
    frozen = {"weights": vae.state_dict(), "scaling_factor": float(vae.config["scaling_factor"])}
    save_state(folder / "vae_frozen.pt", frozen)
    transformer = HunyuanVideoFramepackTransformer3DModel.from_pretrained(model / "transformer").float()
    save_state(folder / CHECKPOINT, {"model": transformer.state_dict(), "spent": 0.0, "step": 0})
    LOG.info("goes on from the weights of %s", model)
    return True


def blend(model: Path, folder: Path, share: float) -> None:
    """Replace a checkpoint's weights by ``share`` of their running mean and the rest of ``model``'s.

    Weights trained on from the same start can be averaged. What was lost since for large pictures comes back,
    and what was learned on small ones stays.
    """
    state = torch.load(folder / CHECKPOINT, weights_only=True)
    old = HunyuanVideoFramepackTransformer3DModel.from_pretrained(model / "transformer").float().state_dict()
    state["model"] = {name: old[name].lerp(value, share) for name, value in state["average"].items()}
    state["average"] = state["model"]
    save_state(folder / CHECKPOINT, state)
    LOG.info("went back by %.2f to the weights of %s", 1 - share, model)

"""The preparation of a training folder from an exported model folder."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel
from torch import nn

from training.export import PARTS
from training.tasks import PHASES
from training.train_transformer import CHECKPOINT
from training.transformer import build_transformer
from training.vae import save_state

LOG = logging.getLogger(__name__)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the transformer's weights in a model folder, in fp32.

    Blocks that the folder's transformer does not have are added. Their output is zero, so that they change
    nothing until they are trained.
    """
    given = HunyuanVideoFramepackTransformer3DModel.from_pretrained(folder / "transformer").float()
    model = build_transformer()
    for block in model.single_transformer_blocks[len(given.single_transformer_blocks) :]:
        nn.init.zeros_(block.proj_out.weight)
        nn.init.zeros_(block.proj_out.bias)
    return model.state_dict() | given.state_dict()


def start_from(model: Path, folder: Path) -> bool:
    """Prepare a training folder from a model folder; do nothing and return False if it has a checkpoint.

    The VAE's latent space is frozen. The optimiser and the running mean start anew, and only the last
    phase, of all frames, is run.
    """
    if (folder / CHECKPOINT).exists():
        return False
    for part in PARTS[2:]:
        shutil.copytree(model / part, folder / "model" / part, dirs_exist_ok=True)
    vae = AutoencoderKLHunyuanVideo.from_pretrained(model / "vae").float()
    frozen = {"weights": vae.state_dict(), "scaling_factor": float(vae.config["scaling_factor"])}
    save_state(folder / "vae_frozen.pt", frozen)
    state = {"model": weights_of(model), "spent": 0.0, "step": 0, "learned": PHASES[-2].until}
    save_state(folder / CHECKPOINT, state)
    LOG.info("continues from the weights of %s", model)
    return True

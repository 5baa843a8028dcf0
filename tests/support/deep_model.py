"""The tiny model with more blocks in its transformer, of which some can be streamed to save memory."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.tiny_model import tiny_transformer

DOUBLE_BLOCKS, SINGLE_BLOCKS = 3, 5


def write_deep_model(tiny_model: Path, folder: Path) -> Path:
    """Copy the tiny model and replace its transformer, with the same bytes each time."""
    shutil.copytree(tiny_model, folder)
    shutil.rmtree(folder / "transformer")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(22)
        deeper = tiny_transformer(num_layers=DOUBLE_BLOCKS, num_single_layers=SINGLE_BLOCKS)
        deeper.save_pretrained(folder / "transformer")
    return folder


def blocks_of(network: Any) -> list[nn.Module]:
    return [*network.transformer_blocks, *network.single_transformer_blocks]


def pass_arguments() -> dict[str, Tensor]:
    """Return the tensors of a forward pass, always the same."""
    generator = torch.Generator().manual_seed(3)

    def latents(num_frames: int) -> Tensor:
        return torch.randn(1, 16, num_frames, 8, 8, generator=generator)

    return {
        "hidden_states": latents(9),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 5, 16, generator=generator),
        "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool),
        "pooled_projections": torch.randn(1, 16, generator=generator),
        "guidance": torch.tensor([10000.0]),
        "image_embeds": torch.randn(1, 4, 16, generator=generator),
        "indices_latents": torch.arange(1, 10),
        "latents_clean": latents(2),
        "indices_latents_clean": torch.tensor([0, 10]),
        "latents_history_2x": latents(2),
        "indices_latents_history_2x": torch.tensor([11, 12]),
        "latents_history_4x": latents(16),
        "indices_latents_history_4x": torch.arange(13, 29),
    }


def run_pass(network: nn.Module, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Run a forward pass on these tensors on a device, and return its result on the CPU."""
    with torch.inference_mode():
        placed = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in pass_arguments().items()
        }
        return network(**placed, return_dict=False)[0].cpu()

"""A complete Wan 2.2 model of the smallest size, with every part's real class and random fp32 weights."""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanTransformer3DModel

from tests.support import tiny_helios
from tests.support.tiny_helios import tiny_umt5, tokenizer
from tests.support.tiny_model import TEXT_DIM


def write_tiny_wan(folder: Path, *, is_fast: bool = False, has_experts: bool = False) -> Path:
    """Write all five parts, as diffusers writes the pipeline, and return the folder.

    With experts, it is an A14B, which has two transformers, and the VAE of Wan 2.1.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        tiny_transformer(has_experts=has_experts).save_pretrained(folder / "transformer")
        if has_experts:
            tiny_transformer(has_experts=True).save_pretrained(folder / "transformer_2")
        (tiny_helios.tiny_vae() if has_experts else tiny_vae()).save_pretrained(folder / "vae")
        tiny_umt5().save_pretrained(folder / "text_encoder")
    tokenizer().save_pretrained(folder / "tokenizer")
    scheduler().save_pretrained(folder / "scheduler")
    pipeline = "WanDMDPipeline" if is_fast else "WanPipeline"
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline, "expand_timesteps": True}))
    return folder


def scheduler() -> UniPCMultistepScheduler:
    """Return the scheduler of the published models."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0, num_train_timesteps=1000
    )


def tiny_transformer(*, has_experts: bool = False) -> WanTransformer3DModel:
    channels = (
        {"in_channels": 36, "out_channels": 16} if has_experts else {"in_channels": 48, "out_channels": 48}
    )
    return WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, text_dim=TEXT_DIM, freq_dim=32, ffn_dim=48,
        num_layers=3, **channels,
    ).eval()  # fmt: skip


def tiny_vae() -> AutoencoderKLWan:
    vae: Any = AutoencoderKLWan(
        base_dim=8, decoder_base_dim=8, z_dim=48, num_res_blocks=1, is_residual=True, in_channels=12,
        out_channels=12, patch_size=2, scale_factor_spatial=16, latents_mean=[0.1] * 48,
        latents_std=[0.8] * 48,
    ).eval()  # fmt: skip
    with torch.inference_mode():
        # Random weights decode to nearly grey, so the output is spread over most of the range from -1 to 1.
        frames = vae.decode(torch.randn(1, 48, 3, 4, 4)).sample
    with torch.no_grad():
        last = vae.decoder.conv_out
        last.weight.mul_(0.4 / frames.std())
        last.bias.mul_(0.4 / frames.std())
    return vae

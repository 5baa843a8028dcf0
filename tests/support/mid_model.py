"""A model folder with random weights, in which weights, activations and streamed blocks all take memory.

It has the tiny model's tokenizers, a wider VAE, and a transformer and encoders with many blocks. The files
have the number formats of the published weights: bf16, fp16 and fp32.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo

from tests.support.tiny_model import tiny_clip, tiny_llama, tiny_siglip, tiny_transformer, write_tiny_model

HEAD_DIM = 64


@dataclass(frozen=True)
class Size:
    """The size of a model.

    Attributes:
        width: The width of the transformer and of Llama, a multiple of 64.
        side_width: The width of CLIP and of SigLIP.
        dual, single, layers: The numbers of the transformer's dual and single blocks, and of Llama's blocks.
        channels: The width of the VAE's first layer.
    """

    width: int = 512
    side_width: int = 256
    dual: int = 4
    single: int = 8
    layers: int = 6
    channels: int = 16


def write_mid_model(folder: Path, size: Size) -> Path:
    """Write all eight parts, with the same bytes each time."""
    write_tiny_model(folder)
    heads, first = size.width // HEAD_DIM, size.channels
    of_sides = {
        "hidden_size": size.side_width, "intermediate_size": 4 * size.side_width, "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        tiny_transformer(
            num_attention_heads=heads, attention_head_dim=HEAD_DIM, rope_axes_dim=(16, 24, 24),
            num_layers=size.dual, num_single_layers=size.single, text_embed_dim=size.width,
            pooled_projection_dim=size.side_width, image_proj_dim=size.side_width,
        ).to(torch.bfloat16).save_pretrained(folder / "transformer")  # fmt: skip
        tiny_llama(
            hidden_size=size.width, intermediate_size=4 * size.width, num_hidden_layers=size.layers,
            num_attention_heads=heads, num_key_value_heads=heads // 2, initializer_range=0.02,
        ).half().save_pretrained(folder / "text_encoder")  # fmt: skip
        clip = tiny_clip(**of_sides, projection_dim=size.side_width, initializer_factor=1.0)
        clip.save_pretrained(folder / "text_encoder_2")
        tiny_siglip(**of_sides).save_pretrained(folder / "image_encoder")
        AutoencoderKLHunyuanVideo(
            block_out_channels=(first, 2 * first, 4 * first, 4 * first), layers_per_block=1, norm_num_groups=8
        ).save_pretrained(folder / "vae")
    return folder

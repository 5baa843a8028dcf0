"""A model folder with random weights, in which weights, activations and streamed blocks all take memory.

It has the tiny model's tokenizers, a wider VAE, and a transformer and encoders with many blocks. The files
have the number formats of the published weights: bf16, fp16 and fp32.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel
from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel, SiglipVisionConfig
from transformers import SiglipVisionModel as SiglipModel

from tests.support.tiny_model import VOCABULARY, write_tiny_model

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        for name, network in (
            ("transformer", _transformer(size).to(torch.bfloat16)), ("text_encoder", _llama(size).half()),
            ("text_encoder_2", _clip(size)), ("image_encoder", _siglip(size)), ("vae", _vae(size)),
        ):  # fmt: skip
            network.save_pretrained(folder / name)
    return folder


def _transformer(size: Size) -> HunyuanVideoFramepackTransformer3DModel:
    return HunyuanVideoFramepackTransformer3DModel(
        num_attention_heads=size.width // HEAD_DIM, attention_head_dim=HEAD_DIM, rope_axes_dim=(16, 24, 24),
        num_layers=size.dual, num_single_layers=size.single, num_refiner_layers=1, text_embed_dim=size.width,
        pooled_projection_dim=size.side_width, image_proj_dim=size.side_width, has_image_proj=True,
        has_clean_x_embedder=True,
    )  # fmt: skip


def _llama(size: Size) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            vocab_size=len(VOCABULARY), hidden_size=size.width, intermediate_size=4 * size.width,
            num_hidden_layers=size.layers, num_attention_heads=size.width // HEAD_DIM,
            num_key_value_heads=size.width // HEAD_DIM // 2, max_position_embeddings=512, pad_token_id=0,
            bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def _clip(size: Size) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(VOCABULARY), hidden_size=size.side_width, intermediate_size=4 * size.side_width,
            num_hidden_layers=3, num_attention_heads=4, projection_dim=size.side_width, pad_token_id=0,
            bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def _siglip(size: Size) -> SiglipModel:
    return SiglipModel(
        SiglipVisionConfig(
            hidden_size=size.side_width, intermediate_size=4 * size.side_width, num_hidden_layers=3,
            num_attention_heads=4, image_size=32, patch_size=16,
        )
    )  # fmt: skip


def _vae(size: Size) -> AutoencoderKLHunyuanVideo:
    first = size.channels
    return AutoencoderKLHunyuanVideo(
        block_out_channels=(first, 2 * first, 4 * first, 4 * first), layers_per_block=1, norm_num_groups=8
    )

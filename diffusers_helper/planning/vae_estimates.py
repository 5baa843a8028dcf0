"""The memory that a video VAE needs besides weights, by its kind, frames at a time, and size of a tile.

Each formula counts tensors of one size that live at the network's fullest moment. The factors were fitted to
peaks of live tensors, which `benchmarks/calibrate_memory.py` measures on the grids named at each.
"""

from __future__ import annotations

import math

from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.networks import Network

_MARGIN = 1.02


def has_stream(network: Network) -> bool:
    """Return whether frames can follow one another exactly, as in Wan's VAE, whose config has `base_dim`."""
    return "base_dim" in network.config


def decode_bytes(
    network: Network, at_once: int, height: int, width: int, *, backend: Backend, latents: int = 1
) -> int:
    """Estimate decoding in pieces.

    Args:
        at_once: Latent frames in one pass (4 n - 3 frames); in a stream, those that leave together.
        height, width: The size of a piece in pixels.
        latents: All latent frames, for a stream, which has all of them on the device.
    """
    size, area = network.dtype_bytes, height * width
    if has_stream(network):
        values = _stream_decode(network, area, latents) + 24 * (at_once > 1) * at_once * area
        return math.ceil(_MARGIN * backend.conv_decode * values * size)
    frames = 4 * at_once - 3
    # The last block's first convolution, whose input is padded by two frames.
    values = (8.85 * frames + 4.35) * area * network.config["block_out_channels"][0]
    return math.ceil(
        _MARGIN * max(values * size * backend.conv_decode, _attention(network, at_once * area, backend))
    )


def encode_bytes(
    network: Network, at_once: int, height: int, width: int, *, backend: Backend, latents: int = 1
) -> int:
    """Estimate encoding in pieces, with the arguments of `decode_bytes`. The input waits on the host."""
    size, area = network.dtype_bytes, height * width
    if has_stream(network):
        values = _stream_encode(network, area, latents)
        return math.ceil(_MARGIN * backend.conv_encode * values * size)
    frames = 4 * at_once - 3
    layers = min(2, network.config["layers_per_block"])
    values = ((3.05 + layers) * frames + 2.15) * area * network.config["block_out_channels"][0]
    values += 3 * frames * area  # the frames themselves; none where a CPU takes them as they are
    attention = 3 * frames * area * size + _attention(network, at_once * area, backend)
    return math.ceil(_MARGIN * max(values * size * backend.conv_encode, attention))


def _attention(network: Network, area: int, backend: Backend) -> int:
    """Estimate HunyuanVideo's middle block: its mask of latents x latents in fp32, and scores if kept.

    Grid: 2 to 9 latent frames of 96x96 to 256x256 pixels, bf16 and fp32.
    """
    if not network.config.get("mid_block_add_attention", True):
        return 0
    size = network.dtype_bytes
    mask = 5 if size == 4 else 4 + size
    return (mask + (8 if backend.attention == "math" else 0)) * (area // 64) ** 2


def _stream_decode(network: Network, area: int, latents: int) -> float:
    """Return the values at the fullest moment of four frames, with those that the convolutions remember.

    Grid: widths of 8 to 32, 1 and 2 layers a block, 1 to 6 latent frames of 64x64 to 128x128 pixels, Wan 2.1
    and 2.2 (which works on patches of 2x2), bf16 and fp32.
    """
    channels = network.config.get("decoder_base_dim") or network.config["base_dim"]
    layers, wide = network.config["num_res_blocks"], network.dtype_bytes < 4
    if network.config.get("is_residual"):
        values = (17.6 + 1.82 * layers) * channels + 12.5
    else:
        values = ((38.2 if wide else 36.4) + 7.25 * layers) * channels + (22 if wide else 15)
    # The first latent frame gives one frame, before anything is remembered.
    share = 0.37 if latents == 1 else 1.0
    return (share * values + 0.5 * latents) * area


def _stream_encode(network: Network, area: int, latents: int) -> float:
    """Return the same for encoding, on the same grid."""
    channels, layers = network.config["base_dim"], network.config["num_res_blocks"]
    wide = network.dtype_bytes < 4
    if network.config.get("is_residual"):
        values = ((6.1 if wide else 5.65) + 2.81 * layers) * channels + 6
    else:
        values = ((24.3 if wide else 22.4) + 7.25 * layers) * channels + (8 if wide else 3)
    share = 0.29 if latents == 1 else 1.0
    return (share * (values + 12) + 0.5 * latents) * area

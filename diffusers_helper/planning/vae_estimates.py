"""Estimates of the memory that a VAE needs besides weights, by kind, number of frames and tile size.

Like those in `estimates`, they are fitted to measured peaks, on the grid of shapes named in each function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.backend import MARGIN, SCORE_BYTES, Backend

# The sides and overlaps of tiles are multiples of this, the pixels per latent of Wan 2.2.
_LATENT_PX = 16


def even_tiles(length: int, size: int, overlap: int) -> tuple[int, int]:
    """Find the number and the size of the fewest tiles of up to `size` that overlap by `overlap` < `size`.

    They are no larger than that needs.
    """
    if length <= size:
        return 1, length
    gaps = -(-(length - size) // (size - overlap))
    return gaps + 1, -(-(length + gaps * overlap) // (gaps + 1))


@dataclass(frozen=True, slots=True)
class Tiles:
    side: int = 0
    overlap: int = 0

    @classmethod
    def of(cls, side: int, share: float = 0.25) -> Self:
        """Round the overlap, a share of the side, up to whole latents of any VAE."""
        return cls(side, -(-int(side * share) // _LATENT_PX) * _LATENT_PX)

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """Compute the height and width in pixels of the tiles of a picture, up to whole latents."""
        sizes = (even_tiles(length, self.side or length, self.overlap)[1] for length in (height, width))
        rows, columns = (-(-size // _LATENT_PX) * _LATENT_PX for size in sizes)
        return min(rows, height), min(columns, width)


@dataclass(frozen=True, slots=True)
class VaeNeeds:
    """The facts about a VAE that the plans need, in the type that it computes in.

    Attributes:
        has_stream: Whether frames can be computed one after the other with the exact result.
        decode_bytes, encode_bytes: Estimate the bytes for a piece, given the latent frames in one pass, the
            sides of the piece in pixels, and all latent frames; see the functions of these names.
    """

    has_stream: bool
    weights_bytes: int
    decode_bytes: Callable[[int, int, int, int], int]
    encode_bytes: Callable[[int, int, int, int], int]


def has_stream(network: Network) -> bool:
    """Tell if frames can be made exactly one by one, as with Wan's VAE (`base_dim`)."""
    return "base_dim" in network.config


def decode_bytes(
    network: Network, num_latents: int, height: int, width: int, all_latents: int = 1, *,
    backend: Backend, is_folded: bool = True,
) -> int:  # fmt: skip
    """Estimate the bytes to decode a piece, with sides in pixels and `num_latents` in one pass.

    A stream keeps all latent frames on the device. HunyuanVideo's VAE enlarges with folded weights
    (`loading.quick_vae`) unless it belongs to another program.
    """
    size, area = network.dtype_bytes, height * width
    if has_stream(network):
        # The frames of the latents before the last wait for it on the device.
        values = _stream_decode(network, area, all_latents) + 12 * (num_latents - 1) * area
        return math.ceil(MARGIN * backend.conv_decode * values * size)
    frames = 4 * num_latents - 3
    widths = network.config["block_out_channels"]
    # The last block's first convolution, whose input is padded by two frames; for small pieces the widest
    # enlargement, whose weights are added up anew.
    per_frame, fixed, weights = (6.07, 4.15, 64 * widths[-1] ** 2) if is_folded else (8.85, 4.35, 0)
    values = (per_frame * frames + fixed) * area * widths[0]
    values = max(values, weights + 4.5 * num_latents * area * widths[0])
    attention = _attention(network, num_latents * area, backend)
    return math.ceil(MARGIN * max(values * size * backend.conv_decode, attention))


def encode_bytes(
    network: Network, num_latents: int, height: int, width: int, all_latents: int = 1, *, backend: Backend
) -> int:
    size, area = network.dtype_bytes, height * width
    if has_stream(network):
        values = _stream_encode(network, area, all_latents)
        return math.ceil(MARGIN * backend.conv_encode * values * size)
    frames = 4 * num_latents - 3
    layers = min(2, network.config["layers_per_block"])
    values = ((3.05 + layers) * frames + 2.15) * area * network.config["block_out_channels"][0]
    values += 3 * frames * area  # the frames in the VAE's type; a CPU may need no such copy
    attention = 3 * frames * area * size + _attention(network, num_latents * area, backend)
    return math.ceil(MARGIN * max(values * size * backend.conv_encode, attention))


def _attention(network: Network, area: int, backend: Backend) -> float:
    """Estimate the bytes of the attention in HunyuanVideo's middle block: its mask, and its scores if kept.

    Grid: 2 to 9 latent frames of 96x96 to 256x256 pixels, bf16 and fp32.
    """
    if not network.config.get("mid_block_add_attention", True):
        return 0
    size = network.dtype_bytes
    mask = 5 if size == 4 else 4 + size
    scores = SCORE_BYTES if backend.attention == "math" else 0
    return (mask + scores) * (area // 64) ** 2 * backend.attention_factor


def _stream_decode(network: Network, area: int, all_latents: int) -> float:
    """Estimate the peak number of values while four frames are decoded, with the convolutions' past inputs.

    Grid: widths of 8 to 32, 1 and 2 layers per block, 1 to 6 latent frames of 64x64 to 128x128 pixels,
    Wan 2.1 and 2.2 (which works on patches of 2x2), bf16 and fp32.
    """
    channels = network.config.get("decoder_base_dim") or network.config["base_dim"]
    layers = network.config["num_res_blocks"]
    is_half = network.dtype_bytes < 4
    if network.config.get("is_residual"):
        values = (17.6 + 1.82 * layers) * channels + 12.5
    else:
        values = ((38.2 if is_half else 36.4) + 7.25 * layers) * channels + (22 if is_half else 15)
    # The first latent frame gives one frame, before anything is remembered.
    share = 0.37 if all_latents == 1 else 1.0
    return (share * values + 0.5 * all_latents) * area


def _stream_encode(network: Network, area: int, all_latents: int) -> float:
    """Estimate the peak number of values while four frames are encoded, on the same grid."""
    channels, layers = network.config["base_dim"], network.config["num_res_blocks"]
    is_half = network.dtype_bytes < 4
    if network.config.get("is_residual"):
        values = ((6.1 if is_half else 5.65) + 2.81 * layers) * channels + 6
    else:
        values = ((24.3 if is_half else 22.4) + 7.25 * layers) * channels + (8 if is_half else 3)
    share = 0.29 if all_latents == 1 else 1.0
    return (share * (values + 12) + 0.5 * all_latents) * area

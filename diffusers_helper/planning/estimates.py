"""Estimates of the memory that each stage needs besides weights: inputs, activations and outputs.

Each formula counts the tensors of one size that are alive when the network uses most memory, fitted to peaks
that `benchmarks/calibrate_memory.py` measured on a CPU, on the grid of shapes named in each function. GPU
kernels need more: the table in `backend` has the factors for that.
"""

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

from diffusers_helper.families.family import Buckets, Family, buckets
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import (
    DEFAULT_CHUNK,
    HISTORY,
    HISTORY_1X,
    HISTORY_2X,
    HISTORY_4X,
    LATENT_WINDOW_SIZE,
)
from diffusers_helper.families.registry import family_of_config
from diffusers_helper.families.step_caches import OFF, STEP_CACHES
from diffusers_helper.families.wan import WAN, WAN_A14B
from diffusers_helper.machine.local import Facts
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.backend import MARGIN, Backend
from diffusers_helper.planning.budget import Demand, Stage
from diffusers_helper.planning.cards.reported import RATIOS
from diffusers_helper.planning.vae_estimates import Tiles, decode_bytes, encode_bytes, has_stream

# The sides of the VAE's tiles that the automatic choice tries, in pixels, largest first.
TILES = (1024, 768, 512, 384, 256, 192, 128, 96, 64)
# The latent frames in one of the VAE's own temporal windows, which decode to 17 frames.
OWN_WINDOW = 5
_SHRINK, _CHANNELS = 8, 16
_SMALL = 8 * 1024  # bytes for buffers and other small tensors
# The side of the transformer's patches in latents; the packed history has patches 2 and 4 times as large.
_PATCH = 2


def calibration_of(calibration: Facts, card: str) -> dict[str, float]:
    """Read the ratios of measured to estimated working memory by stage, on this machine or on such a card."""
    return {**RATIOS.get(card, {}), **calibration.read(card)}


def latent_tokens(height: int, width: int) -> int:
    """Count the tokens of the noisy window and the packed history, for a video of this size in pixels."""
    h, w = height // _SHRINK, width // _SHRINK

    def patches(frames: int, factor: int) -> int:
        side = _PATCH * factor
        return -(-frames // factor) * -(-h // side) * -(-w // side)

    noisy = patches(LATENT_WINDOW_SIZE, 1)
    return noisy + patches(1 + HISTORY_1X, 1) + patches(HISTORY_2X, 2) + patches(HISTORY_4X, 4)


def section_tokens(family: Family, height: int, width: int, num_latents: int) -> int:
    """Count the tokens of a section with all that it sees of others, for a video of this size in pixels."""
    if not family.is_chain:
        return latent_tokens(height, width)
    side = _PATCH * family.spatial_compression
    return num_latents * -(-height // side) * -(-width // side)


def tokens_by_size(tokens: int, height: int, width: int, sizes: int) -> list[float]:
    """Count the tokens at each size of a pyramid, whose noisy windows are halved in each side."""
    noisy = LATENT_WINDOW_SIZE * -(-height // (_SHRINK * _PATCH)) * -(-width // (_SHRINK * _PATCH))
    return [tokens - noisy * (1 - 0.25**halvings) for halvings in range(sizes)]


def vision_tokens(encoder: Network) -> int:
    return (encoder.config["image_size"] // encoder.config["patch_size"]) ** 2


def transformer_bytes(
    network: Network, height: int, width: int, *, text: int, vision: int, backend: Backend, rank: int = 0
) -> int:
    """Estimate the bytes of one forward pass, including the sampler's state.

    A LoRA adds the result of its first matrix, whose size follows from its `rank`.

    The peak is at the rotation of a block's keys, or in its feed-forward part if there are more text tokens
    than latent tokens. Grid: 4 to 24 heads of 32 to 128, 96x176 to 960x416 pixels, 16 to 985 tokens of text
    and picture, bf16 and fp32.
    """
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    size = network.dtype_bytes
    image = latent_tokens(height, width)
    tokens = image + text + vision
    whole, rotated, forward, tables = (3.5, 14.9, 17.3, 3.8) if size < 4 else (4.9, 11.4, 16.7, 3.3)
    attended = (whole * tokens + rotated * image) * backend.attention_factor
    streams = max(attended, forward * tokens) * heads * head_dim * size
    streams += tables * image * head_dim * 4
    # The picture, history and noise in fp32 and in the transformer's type, and the sampler's past predictions
    frame = _CHANNELS * (height // _SHRINK) * (width // _SHRINK)
    history = 2 + HISTORY_1X + HISTORY_2X + HISTORY_4X
    state = frame * (4 * (history + 5 * LATENT_WINDOW_SIZE) + size * (history + LATENT_WINDOW_SIZE))
    scores = backend.score_bytes(heads, tokens, head_dim)
    low = (tokens + rank) * rank * size
    return ceil(MARGIN * streams + state + scores + low)


def cache_bytes(
    network: Network, family: Family, num_latents: int, height: int, width: int, step_cache: str
) -> int:
    if step_cache not in STEP_CACHES:
        return 0
    h, w = height // family.spatial_compression, width // family.spatial_compression
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    return STEP_CACHES[step_cache].state_bytes(
        section_tokens(family, height, width, num_latents), num_latents * (h // _PATCH) * (w // _PATCH),
        heads * head_dim, network.dtype_bytes, 4 * family.channels * num_latents * h * w,
    )  # fmt: skip


def text_bytes(network: Network, tokens: int) -> int:
    return (llama_bytes if "hidden_size" in network.config else umt5_bytes)(network, tokens)


def llama_bytes(network: Network, tokens: int) -> int:
    """Estimate the bytes of a pass of Llama: all hidden states, and the peak within one layer.

    Grid: 3 and 6 layers of 64 to 256, 108 and 351 tokens, fp32 and bf16.
    """
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    layers = network.config["num_hidden_layers"]
    return ceil(MARGIN * tokens * ((layers + 2.7) * width + 3 * inner) * network.dtype_bytes) + _SMALL


def encoder_bytes(network: Network, tokens: int) -> int:
    """Estimate the bytes of a pass of CLIP's text encoder: the peak within one layer.

    Grid: 2 layers of 64 to 256, feed-forward parts 2 and 4 times as wide, 77 tokens, fp32 and bf16.
    """
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    return ceil(MARGIN * tokens * (4 * width + 3 * inner) * network.dtype_bytes) + _SMALL


def vision_bytes(network: Network) -> int:
    """Estimate the bytes of a pass of SigLIP: its picture, or the peak within one layer.

    Grid: as for CLIP, with 4 and 64 patches.
    """
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    pixels = 3 * network.config["image_size"] ** 2
    values = max(vision_tokens(network) * (4 * width + 2 * inner), pixels + vision_tokens(network) * width)
    return ceil(MARGIN * values * network.dtype_bytes) + 3 * _SMALL


def umt5_bytes(network: Network, tokens: int) -> int:
    """Estimate the bytes of a pass of UMT5.

    The peak is in a feed-forward part, at the scores of all heads, or at the pairs of positions.
    Grid: 3 layers of 256 and 512, 4 to 16 heads, 64 to 512 tokens, bf16 and fp32.
    """
    width, inner, heads = (network.config[name] for name in ("d_model", "d_ff", "num_heads"))
    size = network.dtype_bytes
    forward, scores = tokens * (7 * width + 3 * inner), 2.25 * heads * tokens**2 + 8 * tokens * width
    return ceil(MARGIN * max(forward * size, scores * size, 60 * tokens**2 + 6 * tokens * width * size))


def helios_bytes(
    network: Network, height: int, width: int, tokens: int, *, backend: Backend, rank: int = 0
) -> int:
    """Estimate the bytes of one forward pass of Helios' transformer, including the sampler's state.

    Grid: 4 and 8 heads of 32 to 128, 96x160 and 128x128 pixels, bf16 and fp32.
    """
    size = network.dtype_bytes
    frame = _CHANNELS * (height // _SHRINK) * (width // _SHRINK)
    state = frame * (4 * (2 + HISTORY + 6 * LATENT_WINDOW_SIZE) + size * (2 + HISTORY + LATENT_WINDOW_SIZE))
    return modulated_bytes(network, tokens, backend=backend, rank=rank) + state


def wan_bytes(
    network: Network, values: int, tokens: int, *, is_per_token: bool = True, backend: Backend, rank: int = 0
) -> int:
    """Estimate the same for Wan, with the `values` in a clip's latents.

    A clip from words alone has one modulation for all of its tokens, and takes half. Grid: 4 and 8 heads of
    32 to 128, 128x320 to 256x256 pixels, 5 and 9 latent frames, bf16 and fp32.
    """
    size = network.dtype_bytes
    width = network.config["num_attention_heads"] * network.config["attention_head_dim"]
    state = values * (32 + size) + WAN.prompt_format.padded_tokens * width * size
    return modulated_bytes(network, tokens, is_per_token=is_per_token, backend=backend, rank=rank) + state


def modulated_bytes(
    network: Network, tokens: int, *, is_per_token: bool = True, backend: Backend, rank: int
) -> int:
    """Estimate the bytes of one forward pass of a transformer of Wan's kind, without the sampler's state.

    Each token may have its own six vectors of modulation, in the type of the weights and in fp32, which are
    most of the memory then.
    """
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    size, inner = network.dtype_bytes, network.config["ffn_dim"]
    dim = heads * head_dim
    modulation = 6 * dim * (size + 4) * is_per_token
    attended = modulation + dim * (8 * size + 12) * backend.attention_factor
    forward = modulation + dim * (2 * size + 8) + 2 * inner * size
    streams = tokens * (max(attended, modulation + 6 * dim * 4, forward) + 16 * head_dim)
    scores = backend.score_bytes(heads, tokens, head_dim)
    return ceil(MARGIN * streams + scores + (tokens + rank) * rank * size)


def demand_of(
    networks: Mapping[str, Network],
    height: int,
    width: int,
    tile: int,
    *,
    text: int = FRAMEPACK.prompt_format.max_tokens,
    texts: int = 1,
    rank: int = 0,
    step_cache: str = OFF,
    num_latents: int = LATENT_WINDOW_SIZE,
    encoded_latents: int = 1,
    vae_chunk: int = DEFAULT_CHUNK,
    vae_share: float = 1.0,
    backend: Backend = Backend(),
    calibration: Mapping[str, float] = MappingProxyType({}),
) -> Demand:
    """Estimate what the stages of a job need, in their order, if its VAE works in tiles of one size.

    `text` are the tokens that the transformer reads of the longest of `texts` prompts. Of a section's
    `num_latents`, the VAE decodes `vae_chunk` at once; it encodes `encoded_latents`, which is 1 for a
    picture, and may be planned with `vae_share` of the working memory.
    """
    vae, transformer = networks["vae"], networks["transformer"]
    tile_sides = Tiles.of(tile).fitted(height, width)
    # A stream keeps all latents of a section or a picture; a window has two more than the chunk.
    window = min(vae_chunk, num_latents) if has_stream(vae) else vae_chunk + 2
    work = (encode_bytes, encoded_latents, encoded_latents), (decode_bytes, window, num_latents)
    encode, decode = (
        ceil(estimate(vae, window, *tile_sides, all_latents, backend=backend) / vae_share)
        for estimate, window, all_latents in work
    )
    family = family_of_config(transformer.config)
    shape = num_latents, height, width
    encoder, clip, siglip = map(networks.get, ("text_encoder", "text_encoder_2", "image_encoder"))
    sampling = _sampling_bytes(networks, family, *shape, text, backend=backend, rank=rank)
    estimates = {
        "text": (encoder, encoder and text_bytes(encoder, family.prompt_format.head_tokens + text)),
        "text_2": (clip, clip and encoder_bytes(clip, clip.config["max_position_embeddings"])),
        "vae_encode": (vae, encode), "vision": (siglip, siglip and vision_bytes(siglip)),
        "sample": (transformer, sampling), "sample_low": (networks.get("transformer_2"), sampling),
        "decode": (vae, decode),
    }  # fmt: skip
    # Beside the sampler, on the device
    kept_bytes = _embed_values(networks, texts * text) * transformer.dtype_bytes
    kept_bytes += texts * cache_bytes(transformer, family, *shape, step_cache)
    stages = (
        Stage(
            name,
            network.weights,
            ceil(num_bytes * calibration.get(name, 1))
            + network.cast_bytes
            + (kept_bytes if name.startswith("sample") else 0),
        )
        for name, (network, num_bytes) in estimates.items()
        if network and num_bytes
    )
    return Demand(tile, tuple(stages))


def _sampling_bytes(
    networks: Mapping[str, Network], family: Family, num_latents: int, height: int, width: int, text: int, *,
    backend: Backend, rank: int,
) -> int:  # fmt: skip
    network, siglip = networks["transformer"], networks.get("image_encoder")
    if siglip:
        vision = vision_tokens(siglip)
        return transformer_bytes(network, height, width, text=text, vision=vision, backend=backend, rank=rank)
    tokens = section_tokens(family, height, width, num_latents)
    if not family.is_chain:
        return helios_bytes(network, height, width, tokens, backend=backend, rank=rank)
    values = tokens * _PATCH**2 * network.config["in_channels"]
    is_per_token = family is not WAN_A14B  # which gets the pictures as channels
    return wan_bytes(network, values, tokens, is_per_token=is_per_token, backend=backend, rank=rank)


def _embed_values(networks: Mapping[str, Network], text_tokens: int) -> int:
    values = text_tokens * _hidden_size(networks["text_encoder"])
    siglip = networks.get("image_encoder")
    return values + (vision_tokens(siglip) * _hidden_size(siglip) if siglip else 0)


def _hidden_size(encoder: Network) -> int:
    return encoder.config["hidden_size" if "hidden_size" in encoder.config else "d_model"]


def tile_steps(first: int, chosen: int | None = None) -> tuple[int, ...]:
    return (chosen,) if chosen is not None else (first, *(tile for tile in TILES if tile < first))


def largest_bucket(side: int, multiple: int, buckets_for: Buckets = buckets) -> tuple[int, int]:
    """Find the shape (height, width) that needs most memory to sample, for a picture of unknown shape."""
    return max(buckets_for(side, multiple), key=lambda shape: (latent_tokens(*shape), shape[0] * shape[1]))

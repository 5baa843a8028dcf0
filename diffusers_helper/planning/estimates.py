"""The memory that each stage needs besides weights: inputs, activations and outputs.

Each formula counts tensors of one size that live at the network's fullest moment. The factors were fitted
to peaks of live tensors that `benchmarks/calibrate_memory.py` measures, on the grids named at each. They hold
for kernels that keep nothing large between operations, as on a CPU. What GPU kernels add was not measured on
hardware: `Backend` names it, and a local calibration file replaces all estimates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import cast

from diffusers_helper.buckets import buckets
from diffusers_helper.errors import InputError
from diffusers_helper.packing import HISTORY_1X, HISTORY_2X, HISTORY_4X, WINDOW
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.budget import Demand, Stage
from diffusers_helper.planning.networks import NETWORKS, Network
from diffusers_helper.planning.vae_estimates import decode_bytes, encode_bytes

# The sizes of the VAE's tiles in pixels that `auto` tries, largest first.
TILES = (1024, 768, 512, 384, 256, 192, 128, 96, 64)
# The tokens of the template before a prompt (`prompts`), and the most tokens that may follow.
_HEAD_TOKENS, _MAX_TOKENS = 95, 256
# Latent frames in one of the VAE's own windows of time: they give 17 frames.
OWN_WINDOW = 5
_SHRINK, _CHANNELS = 8, 16
# A margin for the scatter of the fits, for buffers and other small tensors.
_MARGIN, _SMALL = 1.02, 8 * 1024
# The transformer's patch has 2 latents a side; history is packed 2 and 4 times as densely.
_PATCH = 2


@dataclass(frozen=True, slots=True)
class Calibration:
    """Ratios of measured to estimated working sets on one machine, by stage; 1 where nothing was measured."""

    factors: Mapping[str, float] = field(default_factory=dict[str, float])

    def apply(self, stage: str, num_bytes: int) -> int:
        """Return an estimate corrected by the ratio of its stage."""
        return ceil(num_bytes * self.factors.get(stage, 1.0))

    @classmethod
    def read(cls, file: Path | None, device: str) -> Calibration:
        """Return the ratios of a device ("cpu", "gfx1100") that `benchmarks/calibrate_memory.py` wrote.

        Raises:
            InputError: If the file cannot be used.
        """
        if file is None:
            return cls()
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            factors = {name: float(value) for name, value in data.get(device, {}).items()}
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{file} is no calibration ({error}).", "Delete it, or measure again."
            ) from error
        if not all(0.1 <= factor <= 100 for factor in factors.values()):
            raise InputError(f"{file} holds factors outside 0.1 to 100.", "Delete it, or measure again.")
        return cls(factors)

    def write(self, file: Path, device: str) -> None:
        """Write the ratios of a device and keep those of other devices that the file has."""
        text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
        known = cast(dict[str, object], json.loads(text))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**known, device: dict(self.factors)}, indent=2) + "\n", encoding="utf-8")


def latent_tokens(height: int, width: int) -> int:
    """Return the tokens of noisy window and history, for pixels as `packing` lays them out (F = 1, 2, 4)."""
    h, w = height // _SHRINK, width // _SHRINK

    def patches(frames: int, factor: int) -> int:
        side = _PATCH * factor
        return -(-frames // factor) * -(-h // side) * -(-w // side)

    return patches(WINDOW, 1) + patches(1 + HISTORY_1X, 1) + patches(HISTORY_2X, 2) + patches(HISTORY_4X, 4)


def vision_tokens(encoder: Network) -> int:
    """Return the number of patches of SigLIP's picture."""
    return (encoder.config["image_size"] // encoder.config["patch_size"]) ** 2


def transformer_bytes(
    network: Network, height: int, width: int, *, text: int, vision: int, backend: Backend
) -> int:
    """Estimate one forward pass with the sampler's state.

    The fullest moment is the rotation of a block's keys, or its feed-forward part where the text is longer
    than the picture. Grid: 4 to 24 heads of 32 to 128, 96x176 to 960x416 pixels, 16 to 985 tokens of text and
    picture, bf16 and fp32.
    """
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    size = network.dtype_bytes
    image = latent_tokens(height, width)
    tokens = image + text + vision
    whole, rotated, forward, tables = (3.5, 14.9, 17.3, 3.8) if size < 4 else (4.9, 11.4, 16.7, 3.3)
    streams = max(whole * tokens + rotated * image, forward * tokens) * heads * head_dim * size
    streams += tables * image * head_dim * 4
    # Picture, history and noise in fp32 and in the transformer's type, and the solver's memory.
    frame = _CHANNELS * (height // _SHRINK) * (width // _SHRINK)
    history = 2 + HISTORY_1X + HISTORY_2X + HISTORY_4X
    state = frame * (4 * (history + 5 * WINDOW) + size * (history + WINDOW))
    scores = 8 * heads * tokens**2 if backend.attention == "math" else 0
    return ceil(_MARGIN * streams + state + scores)


def llama_bytes(network: Network, tokens: int) -> int:
    """Estimate Llama: all hidden states, and the fullest moment of a layer.

    Grid: 3 and 6 layers of 64 to 256, 108 and 351 tokens, fp32 and bf16.
    """
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    layers = network.config["num_hidden_layers"]
    return ceil(_MARGIN * tokens * ((layers + 2.7) * width + 3 * inner) * network.dtype_bytes) + _SMALL


def encoder_bytes(network: Network, tokens: int) -> int:
    """Estimate CLIP's text encoder: the fullest moment of a layer.

    Grid: 2 layers of 64 to 256, feed-forward parts 2 and 4 times as wide, 77 tokens, fp32 and bf16.
    """
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    return ceil(_MARGIN * tokens * (4 * width + 3 * inner) * network.dtype_bytes) + _SMALL


def vision_bytes(network: Network) -> int:
    """Estimate SigLIP: its picture, or the fullest moment of a layer. Grid: as for CLIP, 4 and 64 patches."""
    width, inner = network.config["hidden_size"], network.config["intermediate_size"]
    pixels = 3 * network.config["image_size"] ** 2
    values = max(vision_tokens(network) * (4 * width + 2 * inner), pixels + vision_tokens(network) * width)
    return ceil(_MARGIN * values * network.dtype_bytes) + 3 * _SMALL


def demand_of(
    networks: Mapping[str, Network],
    height: int,
    width: int,
    tile: int,
    *,
    text: int = _MAX_TOKENS,
    texts: int = 1,
    vae_window: int = OWN_WINDOW,
    vae_share: float = 1.0,
    backend: Backend = Backend(),
    calibration: Calibration = Calibration(),
) -> Demand:
    """Return a job's needs with tiles of one size, its stages in the order of the memory document.

    Args:
        text: Tokens of the longest prompt that the transformer reads.
        texts: Number of prompts; 2 with real guidance.
        vae_window: Latent frames in one of the VAE's windows of time.
        vae_share: The share of the memory beside the weights that the VAE may take.
    """
    llama, clip, vae, siglip, transformer = (networks[name] for name in NETWORKS)
    vision, piece = vision_tokens(siglip), (min(tile, height), min(tile, width))
    sampling = transformer_bytes(transformer, height, width, text=text, vision=vision, backend=backend)
    working = {
        "text": (llama, llama_bytes(llama, _HEAD_TOKENS + text)),
        "text_2": (clip, encoder_bytes(clip, clip.config["max_position_embeddings"])),
        "vae_encode": (vae, ceil(encode_bytes(vae, 1, *piece, backend=backend) / vae_share)),
        "vision": (siglip, vision_bytes(siglip)),
        "sample": (transformer, sampling),
        "decode": (vae, ceil(decode_bytes(vae, vae_window, *piece, backend=backend) / vae_share)),
    }
    # The encoders' results are on the device as long as the sampler works.
    kept = texts * text * llama.config["hidden_size"] + vision * siglip.config["hidden_size"]
    after = {"sample": kept * transformer.dtype_bytes}
    stages = (
        Stage(name, network.weights, calibration.apply(name, num_bytes) + after.get(name, 0))
        for name, (network, num_bytes) in working.items()
    )
    return Demand(tile, tuple(stages))


def tile_steps(first: int, wanted: int | None = None) -> tuple[int, ...]:
    """Return the sizes of tiles to try: only `wanted` where it is given, or `first` and all smaller ones."""
    if wanted is not None:
        return (wanted,)
    return (first, *(tile for tile in TILES if tile < first))


def largest_bucket(side: int, multiple: int) -> tuple[int, int]:
    """Return the shape of a resolution whose sampling needs most memory, for an unknown picture."""
    return max(buckets(side, multiple), key=lambda shape: (latent_tokens(*shape), shape[0] * shape[1]))

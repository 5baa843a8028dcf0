"""Bytes, times and stages in words, as the page writes them."""

from __future__ import annotations

import math

from diffusers_helper.planning.budget import GB

# Uses of the networks, as the memory plan names them.
MEMORY_STAGES = {
    "text": "Prompt (Llama)",
    "text_2": "Prompt (CLIP)",
    "vae_encode": "Picture (VAE)",
    "vision": "Picture (SigLIP)",
    "sample": "Denoising",
    "decode": "Decoding",
}


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def gb(count: float, *, up: bool = False) -> str:
    """Bytes as a person reads them beside a slider: one decimal, and more only where there is little."""
    if not count:
        return "0"
    digits = 1 if count >= GB else 2 if count >= GB // 10 else 3
    scale = 10**digits
    whole = math.ceil(count * scale / GB) if up else round(count * scale / GB)
    return f"{whole / scale:.{digits}f}"


def cap_gb(count: float) -> str:
    """As the slider shows it, rounded down and without a decimal that says nothing: 20, 16.5."""
    return f"{math.floor(10 * count / GB) / 10:g}" if count >= GB else gb(count)

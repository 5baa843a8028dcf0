"""The two decoders, one of which uses tiles only if memory is short, and one always."""

from __future__ import annotations

import time
from typing import Any

from diffusers_helper.units import duration
from diffusers_helper.vae.host import unsupported
from diffusers_helper.vae.plan import CHUNKS, VaeSettings
from rocm_nodes.decoding import decode
from rocm_nodes.guide import explained
from rocm_nodes.host import is_rocm
from rocm_nodes.reports import told

_CATEGORY = "ROCm Ninodes/VAE"
_PRECISIONS = ("fp32", "fp16", "bf16")


def _tile_inputs() -> dict[str, Any]:
    return {
        "samples": ("LATENT", {"tooltip": "The latents of pictures or of a video."}),
        "vae": ("VAE", {"tooltip": "The VAE that decodes them. It is not changed."}),
        "tile_size": (
            "INT",
            {
                "default": 768, "min": 256, "max": 2048, "step": 64,
                "tooltip": "The side of tiles in pixels. After a shortage of memory, 512 is worth a try.",
            },
        ),
        "overlap": (
            "INT",
            {
                "default": 96, "min": 32, "max": 512, "step": 16,
                "tooltip": "The smallest overlap of neighbouring tiles, in pixels.",
            },
        ),
    }  # fmt: skip


def _switch(default: bool, tooltip: str) -> tuple[str, dict[str, Any]]:
    return ("BOOLEAN", {"default": default, "tooltip": tooltip})


def _chunk_inputs() -> dict[str, Any]:
    """Return the optional inputs of the first decoder, in the order in which workflows store them."""
    return {
        "video_chunk_size": (
            "INT",
            {
                "default": 8, "min": 1, "max": 32,
                "tooltip": "The number of Wan's latent frames that leave the device together. The "
                "pixels do not depend on it.",
            },
        ),
        "memory_optimization_enabled": _switch(
            True, "Plan with memory_threshold of the free memory, or, if this is off, with all of it."
        ),
        "compatibility_mode": _switch(
            False, "This has no effect: each VAE is decoded in the way that it allows."
        ),
        "chunk_size": (
            ["auto", *map(str, CHUNKS)],
            {
                "default": "auto",
                "tooltip": "The number of latent frames in a piece. Wan is exact with any number; other "
                "video VAEs then work in windows of time, which is approximate. auto avoids that "
                "where possible.",
            },
        ),
        "memory_threshold": (
            "FLOAT",
            {
                "default": 0.8, "min": 0.1, "max": 1.0, "step": 0.05,
                "tooltip": "The share of the free memory that a plan may use.",
            },
        ),
        "cleanup_frequency": (
            "INT",
            {
                "default": 1, "min": 0, "max": 100,
                "tooltip": "The number of pieces after which unused memory goes back to the driver; 0 means "
                "never.",
            },
        ),
        "cpu_offload": _switch(
            True, "Switching this off has no effect: finished frames always leave the device at once."
        ),
        "rocm_preferred": (
            [*_PRECISIONS, "auto"],
            {
                "default": "fp32",
                "tooltip": "The precision on AMD cards if precision_mode is auto; auto is the VAE's own.",
            },
        ),
    }  # fmt: skip


class ROCMOptimizedVAEDecode:
    """A decoder that works in one piece, exactly, if memory allows, and otherwise in smaller pieces."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Decode pictures and video. Wan's video is decoded frame after frame, exactly. After a shortage of "
        "memory, decoding continues in smaller pieces, and a line says so."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                **_tile_inputs(),
                "use_rocm_optimizations": _switch(
                    True,
                    "On an AMD card, use rocm_preferred, and compute failing convolutions in another way.",
                ),
                "precision_mode": (["auto", *_PRECISIONS], {"default": "auto"}),
                "batch_optimization": _switch(
                    True, "Decode as many pictures of a batch together as the memory allows."
                ),
            },
            "optional": _chunk_inputs(),
        }

    def decode(
        self,
        samples: dict[str, Any],
        vae: Any,
        tile_size: int,
        overlap: int,
        use_rocm_optimizations: bool = True,
        precision_mode: str = "auto",
        batch_optimization: bool = True,
        video_chunk_size: int = 8,
        memory_optimization_enabled: bool = True,
        compatibility_mode: bool = False,
        chunk_size: str = "auto",
        memory_threshold: float = 0.8,
        cleanup_frequency: int = 1,
        cpu_offload: bool = True,
        rocm_preferred: str = "fp32",
    ) -> dict[str, Any]:
        precision: Any = precision_mode
        if precision == "auto" and use_rocm_optimizations and is_rocm():
            precision = rocm_preferred
        chunk = int(chunk_size) if chunk_size != "auto" else _stream_chunk(vae, video_chunk_size)
        settings = VaeSettings(
            chunk=chunk,
            fallback_px=_whole(tile_size),
            overlap=_share(overlap, tile_size),
            precision=precision,
            memory_threshold=memory_threshold if memory_optimization_enabled else 1.0,
            cleanup_frequency=cleanup_frequency,
            batch=batch_optimization,
        )
        notes = (
            [] if cpu_offload else ["cpu_offload cannot be switched off: finished frames leave the device."]
        )
        return _decoded("VAE decode", vae, samples, settings, use_rocm_optimizations, notes)


class ROCMOptimizedVAEDecodeTiled:
    """A decoder that always works in tiles, which are blended where they overlap."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Decode in tiles that overlap. The result is close to that of one piece, and is labelled approximate."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        frames = {"min": 8, "max": 4096, "step": 4}
        return {
            "required": {
                **_tile_inputs(),
                "temporal_size": (
                    "INT",
                    {
                        **frames, "default": 64,
                        "tooltip": "The number of frames in a window of time, for video VAEs that need "
                        "windows. Wan needs none.",
                    },
                ),
                "temporal_overlap": (
                    "INT",
                    {
                        **frames, "min": 4, "default": 8,
                        "tooltip": "This has no effect: windows overlap by the frames that their VAE needs.",
                    },
                ),
                "rocm_optimizations": _switch(True, "Compute failing convolutions in another way."),
            }
        }  # fmt: skip

    def decode(
        self,
        samples: dict[str, Any],
        vae: Any,
        tile_size: int,
        overlap: int,
        temporal_size: int,
        temporal_overlap: int,
        rocm_optimizations: bool = True,
    ) -> dict[str, Any]:
        settings = VaeSettings(
            chunk=_window_chunk(vae, samples["samples"], temporal_size),
            largest_px=_whole(tile_size),
            overlap=_share(overlap, tile_size),
        )
        return _decoded("VAE decode (tiled)", vae, samples, settings, rocm_optimizations, [])


def _decoded(
    title: str, vae: Any, samples: dict[str, Any], settings: VaeSettings, has_ladder: bool, notes: list[str]
) -> dict[str, Any]:
    """Decode with the engine, or with ComfyUI if the engine cannot drive the VAE."""
    latents = samples["samples"]
    if reason := unsupported(vae):
        begin = time.perf_counter()
        with explained():
            pictures = vae.decode(latents)
        if pictures.dim() == 5:
            pictures = pictures.reshape(-1, *pictures.shape[-3:])
        words = f"ComfyUI's own decode was used, since the VAE is {reason}."
        return told(title, [words, f"Decoded in {duration(time.perf_counter() - begin)}."], (pictures,))
    with explained():
        found = decode(vae, latents, settings, has_ladder=has_ladder)
    return told(title, [*found.lines, *notes], (found.pictures,))


def _whole(tile_size: int) -> int:
    """Return the side of a tile as a multiple of 32 pixels, as the engine requires."""
    return max(64, tile_size // 32 * 32)


def _share(overlap: int, tile_size: int) -> float:
    return min(0.5, overlap / tile_size)


def _is_wan(vae: Any) -> bool:
    return type(vae.first_stage_model).__name__ == "WanVAE"


def _stream_chunk(vae: Any, frames: int) -> int | None:
    """Return the number of Wan's latent frames that leave the device together; None for other VAEs."""
    return max(one for one in CHUNKS if one <= frames) if _is_wan(vae) else None


def _window_chunk(vae: Any, latents: Any, temporal_size: int) -> int | None:
    """Return the number of latent frames by which windows advance; None if none are needed."""
    stride = vae.temporal_compression_decode() or 1
    window = max(3, temporal_size // stride)
    if latents.dim() != 5 or _is_wan(vae) or latents.shape[2] <= window:
        return None
    return max(one for one in CHUNKS if one + 2 <= window)

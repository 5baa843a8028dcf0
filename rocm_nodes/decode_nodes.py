"""The two decoders, one of which uses tiles only if memory is short, and one always."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from diffusers_helper.planning.vae import CHUNKS, VaeSettings
from diffusers_helper.units import duration
from diffusers_helper.vae.guest import unsupported
from rocm_nodes.decoding import decode
from rocm_nodes.guide import explained
from rocm_nodes.host import comfy, is_rocm
from rocm_nodes.page import Input, choice, idle, number, of_type, reported, switch

_CATEGORY = "ROCm Ninodes/VAE"
_PRECISIONS = ("fp32", "fp16", "bf16")
PREFERRED = choice(
    [*_PRECISIONS, "auto"],
    "The precision on AMD cards where precision_mode is auto and ComfyUI would take fp16. Where it takes "
    "bf16 or fp32, its choice stays.",
    default="fp32",
)


def tile_inputs(does: str) -> dict[str, Input]:
    """Return the inputs for a VAE and its tiles; `does` says what it does with the first input."""
    side = "The side of tiles in pixels. After a shortage of memory, 512 is worth a try."
    return {
        "vae": of_type("VAE", f"The VAE that {does} them. It is not changed."),
        "tile_size": number(768, 256, 2048, side, step=64),
        "overlap": number(96, 32, 512, "The smallest overlap of neighbouring tiles, in pixels.", step=16),
    }


def _decoder_inputs() -> dict[str, Input]:
    return {"samples": of_type("LATENT", "The latents of pictures or of a video."), **tile_inputs("decodes")}


_TILED_IDLE = "temporal_overlap"  # of the tiled decoder, where it is used for some VAEs
# The settings of earlier versions that have no effect, with their defaults and the reason.
_IDLE: dict[str, tuple[float, str]] = {
    "compatibility_mode": (False, "each VAE is decoded in the way that it allows"),
    "cpu_offload": (True, "finished frames always leave the device at once"),
    "mixed_precision": (False, "nothing is trained, and a decoder computes in one type"),
    "enable_hip_memory": (True, "the whole process uses torch's allocator"),
    "attention_optimization": (True, "ComfyUI chooses its attention when it starts"),
    "kernel_tuning": (True, "the search for kernels is a setting of the whole process"),
    "memory_fraction": (0.9, "a limit would apply to all of ComfyUI; memory_threshold limits the plan"),
    "synchronization": (True, "the decoder always waits for frames that leave the device"),
    _TILED_IDLE: (8, "windows overlap by the frames that their VAE needs"),
}


def _idle_notes(given: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that has no effect and was changed."""
    return [
        f"{name} has no effect: {_IDLE[name][1]}."
        for name, value in given.items()
        if name in _IDLE and value != _IDLE[name][0]
    ]


def _chunk_inputs() -> dict[str, Input]:
    """Return the optional inputs of the first decoder, in the order in which workflows store them."""
    rare = {"advanced": True}  # the page shows these on request
    bounds: dict[str, dict[str, Any]] = {"memory_fraction": {"min": 0.1, "max": 1.0, "step": 0.05}}
    unused = {
        name: idle(*facts, **bounds.get(name, {})) for name, facts in _IDLE.items() if name != _TILED_IDLE
    }
    together = (
        "The number of Wan's latent frames that leave the device together. The pixels do not depend on it."
    )
    share = "Plan with memory_threshold of the free memory, or, if this is off, with all of it."
    return {
        "video_chunk_size": number(8, 1, 32, together, **rare),
        "memory_optimization_enabled": switch(True, share, **rare),
        "compatibility_mode": unused.pop("compatibility_mode"),
        "chunk_size": choice(
            ["auto", *map(str, CHUNKS)],
            "The number of latent frames in a piece. Wan is exact with any number; other video VAEs then "
            "work in windows of time, which is approximate. auto avoids that where possible.",
            default="auto",
        ),
        "memory_threshold": number(
            0.8, 0.1, 1.0, "The share of the free memory that a plan may use.", step=0.05, **rare
        ),
        "cleanup_frequency": number(
            1, 0, 100,
            "The number of pieces after which unused memory goes back to the driver; 0 means never.", **rare,
        ),
        "cpu_offload": unused.pop("cpu_offload"),
        "rocm_preferred": PREFERRED,
        "fallback": choice(["fp32"], "The precision after a result that overflows.", default="fp32", **rare),
        **unused,
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
    SEARCH_ALIASES = ("decode latent", "latent to image", "latent to video", "longtake")
    OUTPUT_TOOLTIPS = ("The pictures, or the frames of the video.",)

    @classmethod
    def VALIDATE_INPUTS(
        cls, video_chunk_size: int | None = None, chunk_size: str | None = None
    ) -> bool | str:
        # ComfyUI gives None for what another node makes.
        if video_chunk_size in (None, *range(1, 33)) and chunk_size in (None, "auto", *map(str, CHUNKS)):
            return True
        return (
            f"video_chunk_size is {video_chunk_size} and chunk_size is {chunk_size}; expected 1 to 32, and "
            "auto, 1, 2, 4 or 8. Workflows of newer rocm-ninodes have other inputs here: click on the node "
            "with the right button and choose Fix node (recreate)."
        )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        words = (
            "Compute failing convolutions in another way, and, on an AMD card, take rocm_preferred instead "
        )
        batch = "Decode as many pictures of a batch together as the memory allows."
        return {
            "required": {
                **_decoder_inputs(),
                "use_rocm_optimizations": switch(True, f"{words}of fp16."),
                "precision_mode": choice(
                    ["auto", *_PRECISIONS], "The type in which the VAE computes.", default="auto"
                ),
                "batch_optimization": switch(True, batch),
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
        chunk_size: str = "auto",
        memory_threshold: float = 0.8,
        cleanup_frequency: int = 1,
        rocm_preferred: str = "fp32",
        fallback: str = "fp32",
        **idle: Any,
    ) -> dict[str, Any]:
        preferred = rocm_preferred if use_rocm_optimizations and is_rocm() else "auto"
        precision, why = chosen_precision(vae, precision_mode, preferred)
        chunk = int(chunk_size) if chunk_size != "auto" else _stream_chunk(vae, video_chunk_size)
        settings = VaeSettings(
            chunk=chunk,
            fallback_px=whole_tile(tile_size),
            overlap=overlap_share(overlap, tile_size),
            precision=precision,
            memory_threshold=memory_threshold if memory_optimization_enabled else 1.0,
            cleanup_frequency=cleanup_frequency,
            batch=batch_optimization,
        )
        ladder, notes = use_rocm_optimizations, [why, *_idle_notes(idle)]
        return _decoded("VAE decode", vae, samples, settings, ladder, notes, stock=vae.decode)


class ROCMOptimizedVAEDecodeTiled:
    """A decoder that always works in tiles, which are blended where they overlap."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Decode in tiles that overlap. The result is close to that of one piece, and is labelled approximate."
    )
    SEARCH_ALIASES = ("decode latent", "tiled decode", "out of memory", "longtake")
    OUTPUT_TOOLTIPS = ("The pictures, or the frames of the video.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        size = "The number of frames in a window of time, for video VAEs that need windows. Wan needs none."
        overlap = (
            "The overlap of windows, only for VAEs that ComfyUI's own node decodes. For others, it is the "
            "number of frames that the VAE needs."
        )
        return {
            "required": {
                **_decoder_inputs(),
                "temporal_size": number(64, 8, 4096, size, step=4),
                "temporal_overlap": number(8, 4, 4096, overlap, step=4),
                "rocm_optimizations": switch(True, "Compute failing convolutions in another way."),
            }
        }

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
            largest_px=whole_tile(tile_size),
            overlap=overlap_share(overlap, tile_size),
        )

        def stock(latents: Tensor) -> Tensor:
            if vae.latent_dim == 1:  # sound, which has no tiles
                return vae.decode(latents)
            node = comfy("nodes").VAEDecodeTiled()
            sizes = tile_size, overlap, temporal_size, temporal_overlap
            return node.decode(vae, {"samples": latents}, *sizes)[0]

        ladder, notes = rocm_optimizations, _idle_notes({"temporal_overlap": temporal_overlap})
        return _decoded("VAE decode (tiled)", vae, samples, settings, ladder, notes, stock=stock)


def chosen_precision(vae: Any, wanted: str, preferred: str) -> tuple[Any, str]:
    """Return the precision in which a VAE computes, and a sentence on who has chosen it, "" for the user.

    Args:
        vae: ComfyUI's VAE, whose type ComfyUI has chosen.
        wanted: What the user asks for; "auto" for ComfyUI's choice.
        preferred: What takes the place of fp16; "auto" for nothing.
    """
    if wanted != "auto":
        return wanted, ""
    own = str(vae.vae_dtype).removeprefix("torch.")
    if own == "float16" and preferred not in ("auto", "fp16"):
        why = "which overflows in some VAEs; rocm_preferred or precision_mode changes this"
        return preferred, f"ComfyUI would take {own}, {why}."
    return "auto", f"The precision {own} is ComfyUI's choice."


def _decoded(
    title: str,
    vae: Any,
    samples: dict[str, Any],
    settings: VaeSettings,
    has_ladder: bool,
    notes: list[str],
    *,
    stock: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """Decode with the engine, or with ComfyUI's own `stock` if the engine cannot drive the VAE."""
    latents = samples["samples"]
    if latents.is_nested:
        latents = latents.unbind()[0]  # of video with sound, the pictures
    if reason := unsupported(vae):
        begin = time.perf_counter()
        with explained():
            pictures = stock(latents)
        if pictures.dim() == 5:
            pictures = pictures.reshape(-1, *pictures.shape[-3:])
        words = f"ComfyUI's own decode was used, since the VAE is {reason}."
        return reported(title, [words, f"Decoded in {duration(time.perf_counter() - begin)}."], (pictures,))
    if vae.latent_dim == 2 and latents.dim() == 5 and latents.shape[2] > 1:
        notes = [
            f"Each of the {latents.shape[2]} latent frames is decoded as a picture, where ComfyUI's own node "
            "decodes the first one or none.",
            *notes,
        ]
    with explained():
        found = decode(vae, latents, settings, has_ladder=has_ladder)
    return reported(title, [*found.lines, *notes], (found.pictures,))


def whole_tile(tile_size: int) -> int:
    """Return the side of a tile as a multiple of 32 pixels, as the engine requires."""
    return max(64, tile_size // 32 * 32)


def overlap_share(overlap: int, tile_size: int) -> float:
    """Return the overlap as a share of a tile, of which the engine takes at most a half."""
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

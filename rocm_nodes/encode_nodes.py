"""The two encoders, one of which uses tiles only if memory is short, and one always."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from diffusers_helper.planning.vae import VaeSettings
from diffusers_helper.units import duration
from diffusers_helper.vae.guest import unsupported
from rocm_nodes.decode_nodes import PREFERRED, chosen_precision, overlap_share, tile_inputs, whole_tile
from rocm_nodes.decoding import encode
from rocm_nodes.guide import explained
from rocm_nodes.host import comfy, is_rocm
from rocm_nodes.page import Input, choice, of_type, reported, switch

_CATEGORY = "ROCm Ninodes/VAE"


def _inputs() -> dict[str, Input]:
    return {"pixels": of_type("IMAGE", "The pictures, or the frames of a video."), **tile_inputs("encodes")}


class ROCMOptimizedVAEEncode:
    """An encoder that works in one piece, exactly, if memory allows, and otherwise in tiles."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Encode pictures and video as ComfyUI's VAE Encode does, bit for bit. After a shortage of memory, "
        "encoding continues in tiles, and a line says so."
    )
    SEARCH_ALIASES = ("encode image", "image to latent", "longtake")
    OUTPUT_TOOLTIPS = ("The latents.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        tip = "Compute failing convolutions in another way, and avoid fp16 on AMD cards (rocm_preferred)."
        own = "The precision; auto is ComfyUI's choice."
        return {
            "required": {
                **_inputs(),
                "use_rocm_optimizations": switch(True, tip),
                "precision_mode": choice(["auto", "fp32", "fp16", "bf16"], own, default="auto"),
            },
            "optional": {"rocm_preferred": PREFERRED},
        }

    def encode(
        self,
        pixels: Tensor,
        vae: Any,
        tile_size: int,
        overlap: int,
        use_rocm_optimizations: bool = True,
        precision_mode: str = "auto",
        rocm_preferred: str = "fp32",
    ) -> dict[str, Any]:
        preferred = rocm_preferred if use_rocm_optimizations and is_rocm() else "auto"
        precision, why = chosen_precision(vae, precision_mode, preferred)
        sizes = {"fallback_px": whole_tile(tile_size), "overlap": overlap_share(overlap, tile_size)}
        settings = VaeSettings(precision=precision, **sizes)

        def stock() -> dict[str, Any]:
            return comfy("nodes").VAEEncode().encode(vae, pixels)[0]

        return _encoded("VAE encode", vae, pixels, settings, use_rocm_optimizations, why, stock=stock)


class ROCMOptimizedVAEEncodeTiled:
    """An encoder that always works in tiles, which are blended where they overlap."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Encode in tiles that overlap. The result is close to that of one piece, and is labelled approximate."
    )
    SEARCH_ALIASES = ("encode image", "tiles", "longtake")
    OUTPUT_TOOLTIPS = ("The latents.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                **_inputs(),
                "rocm_optimizations": switch(True, "Compute failing convolutions in another way."),
            }
        }

    def encode(
        self, pixels: Tensor, vae: Any, tile_size: int, overlap: int, rocm_optimizations: bool = True
    ) -> dict[str, Any]:
        settings = VaeSettings(largest_px=whole_tile(tile_size), overlap=overlap_share(overlap, tile_size))

        def stock() -> dict[str, Any]:
            return comfy("nodes").VAEEncodeTiled().encode(vae, pixels, tile_size, overlap)[0]

        return _encoded("VAE encode (tiled)", vae, pixels, settings, rocm_optimizations, "", stock=stock)


def _encoded(
    title: str,
    vae: Any,
    pixels: Tensor,
    settings: VaeSettings,
    has_ladder: bool,
    why: str,
    *,
    stock: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Encode with the engine, or with ComfyUI's own `stock` if the engine would not do the same."""
    if reason := _differs(vae):
        begin = time.perf_counter()
        with explained():
            latent = stock()
        words = f"ComfyUI's own encode was used, since the VAE is {reason}."
        return reported(title, [f"Encoded in {duration(time.perf_counter() - begin)}.", words], (latent,))
    with explained():
        latents, lines = encode(vae, pixels, settings, has_ladder=has_ladder)
    return reported(title, [*lines, why], ({"samples": latents},))


def _differs(vae: Any) -> str:
    """Return what is special about a VAE that only ComfyUI can encode with, or ""."""
    name = type(vae.first_stage_model).__name__
    if reason := unsupported(vae):
        return reason
    if vae.latent_dim == 3 and name != "WanVAE":
        return f"{name}, whose frames depend on each other in another way than Wan's"
    if getattr(vae, "output_channels", 3) != 3 or getattr(vae, "format_encoded", None) is not None:
        return f"{name}, whose pictures or latents have a form of their own"
    return ""

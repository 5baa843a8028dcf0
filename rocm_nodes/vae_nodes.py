"""The decoders and encoders, two of each: one uses tiles only if memory is short, and one always."""

from collections.abc import Sequence
from typing import Any, ClassVar

from diffusers_helper.planning.vae import CHUNKS, VaeSettings
from diffusers_helper.units import duration
from diffusers_helper.vae.borrowed import unsupported
from rocm_nodes.decoding import decode, encode
from rocm_nodes.host import comfy, is_rocm
from rocm_nodes.page import Inputs, Node, choice, number, of_type, reported, switch, timing, unused_input

_PRECISIONS = ("fp32", "fp16", "bf16")
_PREFERRED = choice(
    [*_PRECISIONS, "auto"],
    "The precision on AMD cards where precision_mode is auto and ComfyUI would take fp16. Where it takes "
    "bf16 or fp32, its choice stays.",
    default="fp32",
)
_FALLBACK_SWITCH = switch(True, "Compute failing convolutions in another way.")


def _tile_inputs(does: str) -> Inputs:
    side = "The side of tiles in pixels. After a shortage of memory, 512 is worth a try."
    return {
        "vae": of_type("VAE", f"The VAE that {does} them. It is not changed."),
        "tile_size": number(768, 256, 2048, side, step=64),
        "overlap": number(96, 32, 512, "The smallest overlap of neighbouring tiles, in pixels.", step=16),
    }


_DECODER: Inputs = {
    "samples": of_type("LATENT", "The latents of pictures or of a video."), **_tile_inputs("decodes")
}  # fmt: skip
_ENCODER: Inputs = {
    "pixels": of_type("IMAGE", "The pictures, or the frames of a video."), **_tile_inputs("encodes")
}  # fmt: skip
_RARE = {"advanced": True}  # the page shows these on request


class VaeNode(Node):
    CATEGORY = "ROCm Ninodes/VAE"

    def decoded(
        self, inputs: Any, settings: VaeSettings, has_ladder: bool, note: str, *sizes: int
    ) -> dict[str, Any]:
        vae = inputs.vae
        latents = inputs.samples["samples"]
        if latents.is_nested:
            latents = latents.unbind()[0]  # of video with sound, the pictures
        if reason := unsupported(vae):
            return self._by_comfyui(reason, vae, {"samples": latents}, *sizes)
        pictures, lines = decode(vae, latents, settings, has_ladder=has_ladder)
        if vae.latent_dim == 2 and latents.dim() == 5 and latents.shape[2] > 1:
            note = (
                f"Each of the {latents.shape[2]} latent frames is decoded as a picture, where ComfyUI's own "
                f"node decodes the first one or none. {note}"
            )
        return self._reported([*lines, note], (pictures,), *sizes)

    def encoded(
        self, inputs: Any, settings: VaeSettings, has_ladder: bool, note: str, *sizes: int
    ) -> dict[str, Any]:
        if reason := _unencodable(inputs.vae):
            return self._by_comfyui(reason, inputs.vae, inputs.pixels, *sizes)
        latents, lines = encode(inputs.vae, inputs.pixels, settings, has_ladder=has_ladder)
        return self._reported([*lines, note], ({"samples": latents},), *sizes)

    def _by_comfyui(self, reason: str, vae: Any, content: Any, *sizes: int) -> dict[str, Any]:
        suffix = "Tiled" if sizes and vae.latent_dim != 1 else ""  # sound has no tiles
        node = getattr(comfy("nodes"), f"VAE{self.FUNCTION.capitalize()}{suffix}")()
        with timing() as run:
            result = getattr(node, self.FUNCTION)(vae, content, *(sizes if suffix else ()))
        note = f"ComfyUI's own {self.FUNCTION} was used, since the VAE is {reason}."
        return self._reported([note, f"It took {duration(run.seconds)}."], result, *sizes)

    def _reported(self, lines: Sequence[str], result: tuple[Any, ...], *sizes: int) -> dict[str, Any]:
        return reported(f"VAE {self.FUNCTION}{' (tiled)' if sizes else ''}", lines, result)


class ROCMOptimizedVAEDecode(VaeNode):
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    DESCRIPTION = (
        "Decode pictures and video. Wan's video is decoded frame after frame, exactly. After a shortage of "
        "memory, decoding continues in smaller pieces, and a line says so."
    )
    SEARCH_ALIASES = ("decode latent", "latent to image", "latent to video", "longtake")
    OUTPUT_TOOLTIPS = ("The pictures, or the frames of the video.",)

    REQUIRED: ClassVar = {
        **_DECODER,
        "use_rocm_optimizations": switch(
            True,
            "Compute failing convolutions in another way, and, on an AMD card, take rocm_preferred instead "
            "of fp16.",
        ),
        "precision_mode": choice(
            ["auto", *_PRECISIONS], "The type in which the VAE computes.", default="auto"
        ),
        "batch_optimization": switch(
            True, "Decode as many pictures of a batch together as the memory allows."
        ),
    }  # fmt: skip
    OPTIONAL: ClassVar = {  # in the order in which workflows store them
        "video_chunk_size": number(
            8, 1, 32, "The number of Wan's latent frames that leave the device together. The pixels do not "
            "depend on it.", **_RARE,
        ),
        "memory_optimization_enabled": switch(
            True, "Plan with memory_threshold of the free memory, or, if this is off, with all of it.",
            **_RARE,
        ),
        "compatibility_mode": unused_input(False, "each VAE is decoded in the way that it allows"),
        "chunk_size": choice(
            ["auto", *map(str, CHUNKS)],
            "The number of latent frames in a piece. Wan is exact with any number; other video VAEs then "
            "work in windows of time, which is approximate. auto avoids that where possible.",
            default="auto",
        ),
        "memory_threshold": number(
            0.8, 0.1, 1.0, "The share of the free memory that a plan may use.", step=0.05, **_RARE
        ),
        "cleanup_frequency": number(
            1, 0, 100,
            "The number of pieces after which unused memory goes back to the driver; 0 means never.", **_RARE,
        ),
        "cpu_offload": unused_input(True, "finished frames always leave the device at once"),
        "rocm_preferred": _PREFERRED,
        "fallback": choice(
            ["fp32"], "The precision after a result that overflows.", default="fp32", **_RARE
        ),
        "mixed_precision": unused_input(False, "nothing is trained, and a decoder computes in one type"),
        "enable_hip_memory": unused_input(True, "the whole process uses torch's allocator"),
        "attention_optimization": unused_input(True, "ComfyUI chooses its attention when it starts"),
        "kernel_tuning": unused_input(True, "the search for kernels is a setting of the whole process"),
        "memory_fraction": unused_input(
            0.9, "a limit would apply to all of ComfyUI; memory_threshold limits the plan",
            min=0.1, max=1.0, step=0.05,
        ),
        "synchronization": unused_input(True, "the decoder always waits for frames that leave the device"),
    }  # fmt: skip

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

    def work(self, inputs: Any) -> dict[str, Any]:
        precision, note = chosen_precision(inputs)
        settings = VaeSettings(
            chunk=_chunk(inputs),
            **_tiles(inputs, "fallback_px"),
            precision=precision,
            memory_threshold=inputs.memory_threshold if inputs.memory_optimization_enabled else 1.0,
            cleanup_frequency=inputs.cleanup_frequency,
            batch=inputs.batch_optimization,
        )
        return self.decoded(inputs, settings, inputs.use_rocm_optimizations, note)


class ROCMOptimizedVAEDecodeTiled(ROCMOptimizedVAEDecode):
    DESCRIPTION = (
        "Decode in tiles that overlap. The result is close to that of one piece, and is labelled approximate."
    )
    SEARCH_ALIASES = ("decode latent", "tiled decode", "out of memory", "longtake")
    REQUIRED: ClassVar = {
        **_DECODER,
        "temporal_size": number(
            64, 8, 4096,
            "The number of frames in a window of time, for video VAEs that need windows. Wan needs none.",
            step=4,
        ),
        "temporal_overlap": number(
            8, 4, 4096,
            "The overlap of windows, only for VAEs that ComfyUI's own node decodes. For others, it is the "
            "number of frames that the VAE needs.", step=4,
        ),
        "rocm_optimizations": _FALLBACK_SWITCH,
    }  # fmt: skip
    OPTIONAL: ClassVar = {}

    def work(self, inputs: Any) -> dict[str, Any]:
        settings = VaeSettings(
            chunk=_window_chunk(inputs.vae, inputs.samples["samples"], inputs.temporal_size),
            **_tiles(inputs, "largest_px"),
        )
        sizes = inputs.tile_size, inputs.overlap, inputs.temporal_size, inputs.temporal_overlap
        return self.decoded(inputs, settings, inputs.rocm_optimizations, "", *sizes)


class ROCMOptimizedVAEEncode(VaeNode):
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"
    DESCRIPTION = (
        "Encode pictures and video as ComfyUI's VAE Encode does, bit for bit. After a shortage of memory, "
        "encoding continues in tiles, and a line says so."
    )
    SEARCH_ALIASES = ("encode image", "image to latent", "longtake")
    OUTPUT_TOOLTIPS = ("The latents.",)
    REQUIRED: ClassVar = {
        **_ENCODER,
        "use_rocm_optimizations": switch(
            True, "Compute failing convolutions in another way, and avoid fp16 on AMD cards (rocm_preferred)."
        ),
        "precision_mode": choice(
            ["auto", *_PRECISIONS], "The precision; auto is ComfyUI's choice.", default="auto"
        ),
    }
    OPTIONAL: ClassVar = {"rocm_preferred": _PREFERRED}

    def work(self, inputs: Any) -> dict[str, Any]:
        precision, note = chosen_precision(inputs)
        settings = VaeSettings(**_tiles(inputs, "fallback_px"), precision=precision)
        return self.encoded(inputs, settings, inputs.use_rocm_optimizations, note)


class ROCMOptimizedVAEEncodeTiled(ROCMOptimizedVAEEncode):
    DESCRIPTION = (
        "Encode in tiles that overlap. The result is close to that of one piece, and is labelled approximate."
    )
    SEARCH_ALIASES = ("encode image", "tiles", "longtake")
    REQUIRED: ClassVar = {**_ENCODER, "rocm_optimizations": _FALLBACK_SWITCH}
    OPTIONAL: ClassVar = {}

    def work(self, inputs: Any) -> dict[str, Any]:
        settings = VaeSettings(**_tiles(inputs, "largest_px"))
        sizes = inputs.tile_size, inputs.overlap
        return self.encoded(inputs, settings, inputs.rocm_optimizations, "", *sizes)


def chosen_precision(inputs: Any) -> tuple[Any, str]:
    """Choose the precision in which a VAE computes, and say who has chosen it; "" for the user."""
    if inputs.precision_mode != "auto":
        return inputs.precision_mode, ""
    preferred = inputs.rocm_preferred if inputs.use_rocm_optimizations and is_rocm() else "auto"
    vae_dtype = str(inputs.vae.vae_dtype).removeprefix("torch.")
    if vae_dtype == "float16" and preferred not in ("auto", "fp16"):
        reason = "which overflows in some VAEs; rocm_preferred or precision_mode changes this"
        return preferred, f"ComfyUI would take {vae_dtype}, {reason}."
    return "auto", f"The precision {vae_dtype} is ComfyUI's choice."


def _unencodable(vae: Any) -> str:
    """Say what is special about a VAE that only ComfyUI can encode with; "" for others."""
    name = type(vae.first_stage_model).__name__
    if reason := unsupported(vae):
        return reason
    if vae.latent_dim == 3 and name != "WanVAE":
        return f"{name}, whose frames depend on each other in another way than Wan's"
    if getattr(vae, "output_channels", 3) != 3 or getattr(vae, "format_encoded", None) is not None:
        return f"{name}, whose pictures or latents have a form of their own"
    return ""


def _tiles(inputs: Any, side_setting: str) -> dict[str, Any]:
    return {
        side_setting: max(64, inputs.tile_size // 32 * 32),
        "overlap": min(0.5, inputs.overlap / inputs.tile_size),
    }


def _is_wan(vae: Any) -> bool:
    return type(vae.first_stage_model).__name__ == "WanVAE"


def _chunk(inputs: Any) -> int | None:
    if inputs.chunk_size != "auto":
        return int(inputs.chunk_size)
    return max(chunk for chunk in CHUNKS if chunk <= inputs.video_chunk_size) if _is_wan(inputs.vae) else None


def _window_chunk(vae: Any, latents: Any, temporal_size: int) -> int | None:
    window = max(3, temporal_size // (vae.temporal_compression_decode() or 1))
    if latents.dim() != 5 or _is_wan(vae) or latents.shape[2] <= window:
        return None
    return max(chunk for chunk in CHUNKS if chunk + 2 <= window)

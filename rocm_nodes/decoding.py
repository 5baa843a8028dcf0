"""Decoding and encoding with ComfyUI's VAE, which ComfyUI loads and our engine drives unchanged."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.planning.vae import Task, VaeSettings
from diffusers_helper.planning.variables import CONV_OFF, conv_rung
from diffusers_helper.units import count_text, duration
from diffusers_helper.vae.borrowed import BorrowedVaeOwner, ComfyVae
from diffusers_helper.vae.engine import VaeEngine, VideoPart
from rocm_nodes.host import device, free_bytes, interruptible, management, progress_bar
from rocm_nodes.page import COMFYUI, Run, timing

_QUANTISED_TILE_PX = 512


class ComfyOwner(BorrowedVaeOwner):
    sentences = COMFYUI

    def __init__(self, vae: Any, settings: VaeSettings, *, has_ladder: bool) -> None:
        module = ComfyVae(vae)
        super().__init__(module, device(), settings)
        self.device.adopt(module)
        self._comfy = vae
        self.convolutions = initialize_miopen_fallback(rung=conv_rung(os.environ) if has_ladder else CONV_OFF)

    @contextmanager
    def vae_on_device(self, task: Task, part: VideoPart | None) -> Iterator[nn.Module]:
        with super().vae_on_device(task, part) as module, self.convolutions.install(module):
            yield module

    def _free_bytes(self, num_bytes: int) -> int:
        vae = self._comfy
        is_full_load = getattr(vae, "disable_offload", False)
        management().load_models_gpu([vae.patcher], memory_required=num_bytes, force_full_load=is_full_load)
        # Newer versions also count what dynamic memory gives back at once.
        return int(getattr(vae.patcher, "get_free_memory", free_bytes)(vae.device))


def decode(
    vae: Any, latents: Tensor, settings: VaeSettings, *, has_ladder: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    return _run("Decoded", VaeEngine.decode, vae, latents, settings, has_ladder, partial(pictures_of, vae))


def encode(
    vae: Any, pixels: Tensor, settings: VaeSettings, *, has_ladder: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    source = vae.vae_encode_crop_pixels(pixels[..., :3]).movedim(-1, 1)
    if vae.latent_dim == 3 and getattr(vae, "not_video", False):
        source = source.unsqueeze(2)
    elif vae.latent_dim == 3:
        stride = vae.temporal_compression_decode() or 1
        num_frames = (len(source) - 1) // stride * stride + 1  # Wan leaves out the other frames, too
        source = source[:num_frames].movedim(1, 0).unsqueeze(0)
    dtype = vae.vae_output_dtype() if hasattr(vae, "vae_output_dtype") else torch.float32
    return _run(
        "Encoded", VaeEngine.encode, vae, vae.process_input(source), settings, has_ladder,
        lambda latents: latents.to(vae.output_device).to(dtype),
    )  # fmt: skip


def _run(
    verb: str, work: Callable[..., Tensor], vae: Any, source: Tensor, settings: VaeSettings, has_ladder: bool,
    finish: Callable[[Tensor], Tensor],
) -> tuple[Tensor, tuple[str, ...]]:  # fmt: skip
    notes: list[str] = []
    if dtypes := quantised(vae):
        settings = for_quantised(settings, dtypes)
        notes.append(
            f"The VAE's weights are {dtypes} and keep their type. Pieces are smaller, without batches."
        )
    owner = ComfyOwner(vae, settings, has_ladder=has_ladder)
    with timing() as run, interruptible() as interrupt:
        result = finish(work(VaeEngine(owner), source, progress=progress_bar(), cancel=interrupt))
    return result, (*_lines(verb, owner, run), *notes)


def pictures_of(vae: Any, frames: Tensor) -> Tensor:
    pictures = vae.process_output(frames.to(vae.output_device).float()).movedim(1, -1)
    return pictures.reshape(-1, *pictures.shape[-3:])


def quantised(vae: Any) -> str:
    dtypes = {value.dtype for value in vae.first_stage_model.parameters()}
    float_dtypes = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - float_dtypes))


def for_quantised(settings: VaeSettings, dtypes: str) -> VaeSettings:
    """Adapt settings to quantised weights of these types: tiles of 512 pixels, one frame at a time.

    The plan uses a half of the free memory for fp8 and a quarter for int8, as the notes on these nodes do.
    """
    share = 0.25 if "int8" in dtypes else 0.5
    tile_px = min(settings.largest_px or _QUANTISED_TILE_PX, _QUANTISED_TILE_PX)
    return replace(
        settings,
        precision="auto",
        largest_px=tile_px if settings.largest_px else None,
        fallback_px=tile_px,
        chunk=None if settings.chunk is None else 1,
        memory_threshold=min(settings.memory_threshold, share),
        batch=False,
    )


def _lines(verb: str, owner: ComfyOwner, run: Run) -> list[str]:
    plan = owner.plan
    assert plan is not None
    name = str(owner.dtype).removeprefix("torch.")
    lines = [f"{verb} in {duration(run.seconds)}, in {name}.", plan.reason, run.peak]
    if owner.failures:
        proposal = plan.tiles.side or _QUANTISED_TILE_PX
        lines.append(
            f"Memory ran out in {count_text(owner.failures, 'attempt')} with larger pieces before. The "
            f"tiled node with tile_size {min(proposal, 512)} would begin with smaller ones."
        )
    lines.append(owner.convolutions.statistics())
    return lines

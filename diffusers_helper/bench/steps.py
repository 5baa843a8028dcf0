"""A step of FramePack's transformer at its full width: resident, streamed under caps, and from the disk.

On a CPU the latents are small and the network has few blocks, so the figures hold for comparisons only.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from diffusers_helper.bench.context import (
    WEIGHTS_FILE,
    Case,
    Context,
    Figures,
    disk_bytes,
    driver_peak,
    peaks,
    profile_in,
    stand_in,
    tie_blocks,
    write_network,
)
from diffusers_helper.bench.kernels import TEXT_TOKENS, VISION_TOKENS
from diffusers_helper.families.framepack import CONFIGS, FRAMEPACK
from diffusers_helper.families.packing import (
    HISTORY_1X,
    HISTORY_2X,
    HISTORY_4X,
    LATENT_WINDOW_SIZE,
    frame_indices,
)
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.loading.networks import load_network
from diffusers_helper.loading.reading import drop_pages
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import Network, Weights
from diffusers_helper.planning.budget import Budget, Stage, plan_stage
from diffusers_helper.planning.estimates import largest_bucket, transformer_bytes
from diffusers_helper.units import GB, gb_text

CAPS_GB = (8, 12, 16, 20, 24)
_PART, _SIDE, _MULTIPLE = "transformer", 640, 32
_FEW = {"num_layers": 1, "num_single_layers": 2}
_SMALL_SIDE, _FEW_TOKENS = 64, 16


def step_arguments(
    config: Any, height: int, width: int, device: torch.device, *, text: int, vision: int
) -> dict[str, Any]:
    """Make random arguments like those of the pipeline in forward order, in bf16, for sides in pixels."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    def latents(count: int) -> Tensor:
        return random(1, config["in_channels"], count, height // 8, width // 8)

    indices = frame_indices("forward")
    return {
        "hidden_states": latents(LATENT_WINDOW_SIZE), "indices_latents": torch.tensor(indices.noisy),
        "timestep": torch.tensor([500.0], device=device),
        "guidance": torch.tensor([10000.0], device=device),
        "encoder_hidden_states": random(1, text, config["text_embed_dim"]),
        "encoder_attention_mask": torch.ones(1, text, dtype=torch.bool, device=device),
        "pooled_projections": random(1, config["pooled_projection_dim"]),
        "image_embeds": random(1, vision, config["image_proj_dim"]),
        "latents_clean": latents(1 + HISTORY_1X), "indices_latents_clean": torch.tensor(indices.clean),
        "latents_history_2x": latents(HISTORY_2X),
        "indices_latents_history_2x": torch.tensor(indices.history_2x),
        "latents_history_4x": latents(HISTORY_4X),
        "indices_latents_history_4x": torch.tensor(indices.history_4x), "return_dict": False,
    }  # fmt: skip


@dataclass(frozen=True)
class _Steps:
    context: Context
    config: dict[str, Any]
    height: int
    width: int
    text: int
    vision: int

    @classmethod
    def of(cls, context: Context) -> Self:
        if context.has_gpu:
            return cls(context, CONFIGS[_PART], *largest_bucket(_SIDE, _MULTIPLE), TEXT_TOKENS, VISION_TOKENS)
        return cls.small(context, CONFIGS[_PART] | _FEW)

    @classmethod
    def small(cls, context: Context, config: dict[str, Any]) -> Self:
        return cls(context, config, _SMALL_SIDE, _SMALL_SIDE, _FEW_TOKENS, _FEW_TOKENS)

    def make(self) -> nn.Module:
        if self.context.model and self.context.has_gpu:
            return load_models(find_model(self.context.model, allow_folder=True)).component(_PART)
        return stand_in(_PART, self.context.folder, self.config)

    @cached_property
    def network(self) -> nn.Module:
        return self.make()

    @cached_property
    def stage(self) -> Stage:
        total, blocks = sizes_of(self.network, _blocks(self.network))
        weights = Weights(_PART, total, blocks)
        network = Network(weights, self.config, torch.bfloat16.itemsize, total)
        working = transformer_bytes(
            network, self.height, self.width, text=self.text, vision=self.vision,
            backend=profile_in(self.context).backend,
        )  # fmt: skip
        return Stage("sample", weights, working)

    @cached_property
    def resident(self) -> tuple[float, Tensor]:
        """Time a step in which one block of each kind stands for all; also its result."""
        network = self.make()
        tie_blocks(network, _PART)
        figures, result = self.run(network, ())
        return figures["seconds_per_step"], result

    def run(
        self, network: nn.Module, streamed: Sequence[int], cap_bytes: int | None = None, *, warm_up: int = 1
    ) -> tuple[Figures, Tensor]:
        context = self.context
        device = self.context.device
        runs = 2 if context.has_gpu and not context.is_quick else 1
        warm_up = min(warm_up, int(context.has_gpu))  # a CPU has nothing to compile, and is slow
        results: list[Tensor] = []
        device.limit(cap_bytes)
        staging, blocks = Staging(context.torch_device), _blocks(network)
        try:
            with (
                driver_peak(device) as driver,
                device,
                closing(Resident(network, staging, blocks=blocks, streamed=streamed)) as resident,
            ):
                arguments = step_arguments(
                    self.config, self.height, self.width, context.torch_device,
                    text=self.text, vision=self.vision,
                )  # fmt: skip

                def step() -> None:
                    results[:] = [network(**arguments)[0]]

                measured = context.time(step, warm_up=warm_up, runs=runs)
                result = results[0].float().cpu()
        finally:
            results.clear()
            device.limit(None)
        figures = {
            "seconds_per_step": measured.median, "tensors_peak_bytes": measured.peak_bytes,
            "allocator_peak_bytes": measured.peak_reserved_bytes,
            "copied_bytes": resident.bytes_streamed // (warm_up + runs),
        }  # fmt: skip
        return {**figures, **driver}, result

    def computing(self) -> Figures:
        seconds, _ = self.resident
        return {"seconds_per_step": seconds}

    def planned(self, budget: Budget) -> Figures:
        plan = plan_stage(budget, self.stage)
        cap_bytes = budget.cap_bytes - budget.reserve_bytes
        figures, result = self.run(self.network, plan.streamed_blocks, cap_bytes)
        return {
            **figures, **peaks(plan.peak_bytes - plan.reserve_bytes, figures["tensors_peak_bytes"]),
            "stage": self.stage.name, "working_bytes": self.stage.working_bytes,
            "cap_bytes": budget.cap_bytes, "reserve_bytes": plan.reserve_bytes,
            "resident_bytes": plan.resident_bytes, "planned_copied_bytes": plan.streamed_bytes,
            "streamed_blocks": len(plan.streamed_blocks), "blocks": len(_blocks(self.network)),
            "same_result": torch.equal(result, self.resident[1]),
            "is_finite": bool(result.isfinite().all()), "is_reduced": not self.context.has_gpu,
        }  # fmt: skip

    def planned_with(self, cap_gb: float | None = None, preserved_gb: float | None = None) -> Figures:
        return self.planned(profile_in(self.context).budget(cap_gb, preserved_gb))

    def streamed(self) -> Figures:
        model = self.stage.model
        cap = 2 * model.total_bytes + self.stage.working_bytes
        return self.planned(Budget(cap, cap, cap - model.fixed_bytes, 0))


def _blocks(network: Any) -> list[nn.Module]:
    return [block for name in FRAMEPACK.networks[_PART].block_lists for block in getattr(network, name)]


def steps(context: Context) -> Iterator[Case]:
    steps = _Steps.of(context)
    yield "computing alone", steps.computing
    if context.has_gpu:
        yield "this card's plan", steps.planned_with
        if context.is_quick:
            return
        yield from under_caps(context, steps.planned_with)
    yield "all blocks streamed", steps.streamed


def under_caps(context: Context, measure: Callable[..., Figures]) -> Iterator[Case]:
    total = context.device.total_bytes
    for cap in CAPS_GB:
        reason = f"the card has {gb_text(total)} GB" if cap * GB > total else ""
        yield f"cap of {cap} GB", reason or partial(measure, float(cap))
    yield "whole card", partial(measure, total / GB, 0.0)


def from_disk(context: Context) -> Iterator[Case]:
    yield "all blocks streamed, cold", partial(_from_disk, context)


def _from_disk(context: Context) -> Figures:
    files = context.folder / "whole" / _PART
    start_time = time.perf_counter()
    size = write_network(_PART, CONFIGS[_PART], files)
    write_seconds = time.perf_counter() - start_time
    drop_pages(files / WEIGHTS_FILE)
    network = load_network(_PART, files).network
    start_bytes = disk_bytes()
    figures, _ = _Steps.small(replace(context, is_quick=True), CONFIGS[_PART]).run(
        network, range(len(_blocks(network))), warm_up=0
    )
    read_bytes = disk_bytes() - start_bytes
    (files / WEIGHTS_FILE).unlink()
    return {
        "file_bytes": size, "write_seconds": write_seconds, "seconds_per_step": figures["seconds_per_step"],
        "read_bytes": read_bytes, "copied_bytes": figures["copied_bytes"], "is_reduced": True,
    }  # fmt: skip

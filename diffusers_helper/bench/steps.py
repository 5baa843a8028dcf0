"""A step of FramePack's transformer at its full width: resident, streamed under caps, and from the disk.

On a CPU the latents are small and the network has few blocks, so the figures hold for comparisons only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

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
from diffusers_helper.memory.residency import Residency
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import Network, Weights
from diffusers_helper.planning.budget import Budget, Stage, StagePlan, plan_stage
from diffusers_helper.planning.estimates import largest_bucket, transformer_bytes
from diffusers_helper.units import GB, gb_text

CAPS_GB = (8, 12, 16, 20, 24)
_PART, _SIDE, _MULTIPLE = "transformer", 640, 32
_FEW = {"num_layers": 1, "num_single_layers": 2}
_SMALL_SIDE, _FEW_TOKENS = 64, 16


def step_arguments(
    config: Any, height: int, width: int, device: torch.device, *, text: int, vision: int
) -> dict[str, Any]:
    """Return random arguments like those of the pipeline in forward order, in bf16.

    Args:
        height, width: The video's sides in pixels.
        text, vision: The number of tokens of the prompt and of the picture.
    """
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


class _Bench:
    """The network with its plans, and the figures that the others are compared with."""

    def __init__(self, context: Context) -> None:
        self.context, self.profile = context, profile_in(context)
        has_gpu = context.has_gpu
        self.shape = largest_bucket(_SIDE, _MULTIPLE) if has_gpu else (_SMALL_SIDE, _SMALL_SIDE)
        self.text, self.vision = (TEXT_TOKENS, VISION_TOKENS) if has_gpu else (_FEW_TOKENS, _FEW_TOKENS)
        self.residency = Residency(context.torch_device)
        self._first: Tensor | None = None
        self._computing: float | None = None
        self._copying: float | None = None

    @property
    def config(self) -> dict[str, Any]:
        return CONFIGS[_PART] | ({} if self.context.has_gpu else _FEW)

    def make(self) -> nn.Module:
        """Return a network in main memory, with real weights if the context names a model."""
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
        known = Network(weights, self.config, torch.bfloat16.itemsize, total)
        working = transformer_bytes(
            known, *self.shape, text=self.text, vision=self.vision, backend=self.profile.backend
        )
        return Stage("sample", weights, working)

    def run(
        self, network: nn.Module, streamed: Sequence[int], cap_bytes: int | None = None
    ) -> tuple[Figures, Tensor]:
        """Return the figures of a step with some blocks streamed, and its result."""
        context, device = self.context, self.context.device
        runs = 2 if context.level != "quick" and context.has_gpu else 1
        results: list[Tensor] = []
        before = self.residency.bytes_streamed  # the first blocks are copied as soon as there are slots
        device.limit(cap_bytes)
        try:
            with driver_peak(device) as driver, device:
                self.residency.move_model_to_device_with_memory_preservation(
                    network, blocks=_blocks(network), streamed=streamed
                )
                given = step_arguments(
                    self.config, *self.shape, context.torch_device, text=self.text, vision=self.vision
                )

                def step() -> None:
                    results[:] = [network(**given)[0]]

                warm_up = int(context.has_gpu)  # a CPU has nothing to compile, and is slow
                measured = context.time(step, warm_up=warm_up, runs=runs)
                copied = (self.residency.bytes_streamed - before) // (warm_up + runs)
                result = results[0].float().cpu()
        finally:
            results.clear()
            self.residency.unload_complete_models()
            device.limit(None)
        figures = {
            "seconds_per_step": measured.median, "tensors_peak_bytes": measured.peak_bytes,
            "allocator_peak_bytes": measured.peak_reserved_bytes,
        }  # fmt: skip
        return {**figures, "copied_bytes": copied, **driver}, result

    def computing(self) -> Figures:
        """Measure a step in which nothing is copied; one block of each kind stands for all."""
        network = self.make()
        tie_blocks(network, _PART)
        figures, self._first = self.run(network, ())
        self._computing = figures["seconds_per_step"]
        return {"seconds_per_step": self._computing}

    def copying(self) -> Figures:
        """Measure a step in which all blocks are streamed and none of them computes."""
        network = self.make()
        for block in _blocks(network):
            block.forward = _pass_on
        figures, _ = self.run(network, range(len(_blocks(network))))
        self._copying = figures["seconds_per_step"]
        return {"seconds_per_step": self._copying, "copied_bytes": figures["copied_bytes"]}

    def planned(self, make_budget: Callable[[], Budget]) -> Figures:
        """Return the figures of a step as it is planned in a budget, which is then enforced.

        Raises:
            DoesNotFit: If no plan keeps within the cap.
        """
        budget = make_budget()
        plan = plan_stage(budget, self.stage)
        figures, result = self.run(
            self.network, plan.streamed_blocks, budget.cap_bytes - budget.reserve_bytes
        )
        if not plan.streamed_blocks and self._first is None:
            self._first, self._computing = result, figures["seconds_per_step"]
        return {
            **figures, **peaks(plan.peak_bytes - plan.reserve_bytes, figures["tensors_peak_bytes"]),
            "stage": self.stage.name, "working_bytes": self.stage.working_bytes,
            "cap_bytes": budget.cap_bytes, "reserve_bytes": plan.reserve_bytes,
            "resident_bytes": plan.resident_bytes, "planned_copied_bytes": plan.streamed_bytes,
            "streamed_blocks": len(plan.streamed_blocks), "blocks": len(_blocks(self.network)),
            "hidden_share": self._hidden(plan, figures["seconds_per_step"]),
            "same_result": None if self._first is None else torch.equal(result, self._first),
            "is_finite": bool(result.isfinite().all()), "is_reduced": not self.context.has_gpu,
        }  # fmt: skip

    def _hidden(self, plan: StagePlan, seconds: float) -> float | None:
        """Return the share of the copying, 0 to 1, that took place while the network computed."""
        if not plan.streamed_bytes or self._computing is None or self._copying is None:
            return None
        copying = self._copying * plan.streamed_bytes / sum(self.stage.model.block_bytes)
        return max(0.0, 1 - max(0.0, seconds - self._computing) / copying)

    def share(self, streamed: float) -> Budget:
        """Return a budget under which about this share of the blocks is streamed."""
        model = self.stage.model
        cap = 2 * model.total_bytes + self.stage.working_bytes
        kept = model.fixed_bytes + int((1 - streamed) * sum(model.block_bytes))
        return Budget(cap, cap, cap - kept, 0)


def _blocks(network: Any) -> list[nn.Module]:
    return [block for name in FRAMEPACK.networks[_PART].block_lists for block in getattr(network, name)]


def _pass_on(states: Tensor, text: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return states, text


def steps(context: Context) -> Iterator[Case]:
    """Yield computing and copying alone, and steps under the card's own plan and under caps."""
    bench = _Bench(context)
    if not context.has_gpu:
        yield "no blocks streamed", partial(bench.planned, partial(bench.share, 0.0))
        yield "copying alone", bench.copying
        yield "all blocks streamed", partial(bench.planned, partial(bench.share, 1.0))
        return
    yield "computing alone", bench.computing
    yield "copying alone", bench.copying
    yield "this card's plan", partial(bench.planned, bench.profile.budget)
    if context.is_quick:
        return
    yield from under_caps(context, lambda *caps: bench.planned(partial(bench.profile.budget, *caps)))
    yield "all blocks streamed", partial(bench.planned, partial(bench.share, 1.0))


def under_caps(context: Context, measure: Callable[..., Figures]) -> Iterator[Case]:
    """Yield cases that measure with each cap, and with the whole card and nothing preserved, in GB."""
    total = context.device.total_bytes
    for cap in CAPS_GB:
        reason = f"the card has {gb_text(total)} GB" if cap * GB > total else ""
        yield f"cap of {cap} GB", reason or partial(measure, float(cap))
    yield "whole card", partial(measure, total / GB, 0.0)


def from_disk(context: Context) -> Iterator[Case]:
    """Yield the writing of the whole network, and a cold step with small latents and all blocks streamed."""
    yield "all blocks streamed, cold", partial(_from_disk, context)


def _from_disk(context: Context) -> Figures:
    """Measure a step for which the kernel has to read all weights. Main memory may be smaller than they."""
    place = context.folder / "whole" / _PART
    begin = time.perf_counter()
    size = write_network(_PART, CONFIGS[_PART], place)
    written = time.perf_counter() - begin
    drop_pages(place / WEIGHTS_FILE)
    network = load_network(_PART, place).network
    residency, blocks = Residency(context.torch_device), _blocks(network)
    sides = (_SMALL_SIDE, _SMALL_SIDE, context.torch_device)
    given = step_arguments(CONFIGS[_PART], *sides, text=_FEW_TOKENS, vision=_FEW_TOKENS)
    with context.device:
        residency.move_model_to_device_with_memory_preservation(
            network, blocks=blocks, streamed=range(len(blocks))
        )
        before = disk_bytes()
        measured = context.time(lambda: network(**given), warm_up=0, runs=1)
        read = disk_bytes() - before
        residency.unload_complete_models()
    (place / WEIGHTS_FILE).unlink()
    return {
        "file_bytes": size, "write_seconds": written, "seconds_per_step": measured.median,
        "read_bytes": read, "copied_bytes": residency.bytes_streamed, "is_reduced": True,
    }  # fmt: skip

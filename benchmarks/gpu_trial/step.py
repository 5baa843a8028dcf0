"""Parts 1 and 2: a profile of the transformer's step, and the step with fused element-wise work."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from benchmarks.gpu_trial.trial import Case, Figures, Trial, blocks_of, deviation
from cache.kitchen import kitchen
from diffusers_helper.attention.fused import compiled_blocks, fused_blocks
from diffusers_helper.families.packing import HISTORY, LATENT_WINDOW_SIZE, frame_indices
from diffusers_helper.framepack.work import FramePackCondition, FramePackDenoiser, TextCondition
from diffusers_helper.memory.measuring import wait_for
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.sampling.guidance import CleanLatents

Kind = str
ATTENTION, PRODUCTS = "attention", "products"
# The operators that stand for all that runs within them.
_OPERATORS: Mapping[str, Kind] = {
    "aten::scaled_dot_product_attention": ATTENTION, "comfy_kitchen::int8_attention": ATTENTION,
    **dict.fromkeys(("aten::linear", "aten::addmm", "aten::mm", "aten::bmm", "aten::matmul"), PRODUCTS),
    **dict.fromkeys(("aten::conv3d", "aten::convolution", "aten::_scaled_mm", "aten::_int_mm"), PRODUCTS),
}  # fmt: skip
_TEXT_TOKENS, _VISION_TOKENS, _FEW_TOKENS = 256, 729, 16


class Step:
    """A step of FramePack's transformer as a job takes it, with random inputs and a prompt of full length."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.network = trial, trial.network("transformer")
        self.blocks = blocks_of(self.network)

    @contextmanager
    def placed(self, streamed: int = 0) -> Iterator[Callable[[], Tensor]]:
        """Place the network on the device, with so many of its blocks streamed, and yield the step."""
        count, staging = len(self.blocks), Staging(self.trial.torch_device)
        indices = sorted({place * count // streamed for place in range(streamed)})
        with (
            self.trial.device,
            closing(Resident(self.network, staging, blocks=self.blocks, streamed=indices)),
        ):
            denoiser, noise = self._denoiser(), self._latents(LATENT_WINDOW_SIZE)
            yield lambda: denoiser(noise, torch.tensor(0.5, dtype=torch.float64))

    def _latents(self, count: int) -> Tensor:
        height, width = (side // 8 for side in self.trial.shape)
        return self.trial.random(1, 16, count, height, width, dtype=torch.float32)

    def _denoiser(self) -> FramePackDenoiser:
        trial, config = self.trial, self.network.config
        few = trial.is_tiny and _FEW_TOKENS
        text = trial.random(1, few or _TEXT_TOKENS, config.text_embed_dim)
        condition = FramePackCondition(
            positive=TextCondition(text, trial.random(1, config.pooled_projection_dim)), negative=None,
            image_embeds=trial.random(1, few or _VISION_TOKENS, config.image_proj_dim), guidance=8.0, cfg=1.0,
            cfg_rescale=0.0,
        )  # fmt: skip
        latents = self._latents(1 + HISTORY)
        context = CleanLatents.after(frame_indices("inverted"), latents[:, :, :1], latents[:, :, 1:])
        return FramePackDenoiser(self.network, condition, context)


def profiled(trial: Trial) -> Iterator[Case]:
    """Yield a step with all weights on the device, by the clock, by the profiler, and by its operations."""
    with Step(trial).placed() as step:
        yield "one step", partial(trial.time, step)
        yield "the same by the profiler", partial(_profile, trial, step)
        yield "its operations", partial(_operations, step)


def _operations(step: Callable[[], Tensor]) -> Figures:
    attends = torch.ops.aten
    more = (attends._scaled_dot_product_flash_attention_for_cpu, attends._scaled_dot_product_cudnn_attention)
    counted = {one: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value) for one in more}
    with FlopCounterMode(display=False, custom_mapping=counted) as counter:
        step()
    counts = counter.get_flop_counts()["Global"]
    attention = sum(count for operator, count in counts.items() if "attention" in str(operator))
    return {"products_operations": sum(counts.values()) - attention, "attention_operations": attention}


def _profile(trial: Trial, step: Callable[[], Tensor]) -> Figures:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if trial.device.has_gpu else [])]
    for _ in range(2):  # the first one starts the profiler's tools, which takes longer than a step
        with profile(activities=activities) as profiler:
            step()
            wait_for(trial.device)
    return split(profiler.events() or (), has_gpu=trial.device.has_gpu)


def split(events: Any, *, has_gpu: bool) -> Figures:
    """Return the seconds of a profiled step by kind, and those in which the device that computes did nothing.

    The time of a kernel belongs to the operator that started it, or to the outermost one that `_OPERATORS`
    names. Without a GPU, the operators' own time on the CPU counts.
    """
    events = [one for one in events if not one.is_user_annotation]
    on_device = [one for one in events if (one.device_type != DeviceType.CPU) == has_gpu]
    on_host = [one for one in events if one.device_type == DeviceType.CPU]
    found: dict[Kind, float] = {PRODUCTS: 0.0, ATTENTION: 0.0}
    for event in on_host:
        kind = kind_of(event)
        if kind in found:
            own = sum(one.duration for one in event.kernels) if has_gpu else event.self_cpu_time_total
            found[kind] += own / 1e6
    spans = sorted((one.time_range.start, one.time_range.end) for one in on_device)
    busy, end = 0.0, spans[0][0]
    for first, last in spans:
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    total, busy = (end - spans[0][0]) / 1e6, busy / 1e6
    return {
        "seconds": total, **{f"{kind}_seconds": seconds for kind, seconds in found.items()},
        "elementwise_seconds": busy - sum(found.values()), "idle_seconds": total - busy,
        "kernels": len(on_device),
    }  # fmt: skip


def kind_of(event: FunctionEvent | None) -> Kind:
    """Return the kind of an operator, which is that of the outermost operator around it that is known."""
    kind = ""
    while event is not None:
        kind = _OPERATORS.get(event.name, kind)
        event = event.cpu_parent
    return kind


Change = Callable[[nn.Module], AbstractContextManager[Any]]


def fused(trial: Trial) -> Iterator[Case]:
    """Yield the plain step, with comfy-kitchen's kernels, and with compiled blocks: resident and streamed."""
    step, expected = Step(trial), list[Tensor]()
    changes: dict[str, Change] = {
        "plain": lambda network: nullcontext(), "comfy-kitchen": kitchen_blocks,
        "compiled blocks": lambda network: compiled_blocks(network, blocks_of(network), trial.compiler),
    }  # fmt: skip
    count = len(step.blocks)
    for where, streamed in {"resident": 0, "half streamed": count // 2, "all streamed": count}.items():
        for name, change in changes.items():
            lacks = "" if name != "comfy-kitchen" else trial.lacks_kitchen
            yield f"{name}, {where}", lacks or partial(_changed, step, change, streamed, expected)


def _changed(step: Step, change: Change, streamed: int, expected: list[Tensor]) -> Figures:
    """Measure a step, whose first call may compile. The result of the very first one is the expected one."""
    trial = step.trial
    with change(step.network) as backends, step.placed(streamed) as run:
        begin = time.perf_counter()
        found = run().cpu()
        first = time.perf_counter() - begin
        figures = trial.time(run, warm_up=0, runs=1 if streamed else trial.runs)
    expected.append(found)
    return {
        **figures, "first_seconds": first, "streamed_blocks": streamed, "backends": backends,
        "deviation": deviation(found, expected[0]),
    }  # fmt: skip


@contextmanager
def kitchen_blocks(network: nn.Module) -> Iterator[list[str]]:
    """Let blocks use comfy-kitchen's kernels as a job does, and yield the back ends that it has here."""
    with fused_blocks(network):
        yield [name for name, backend in kitchen().list_backends().items() if backend["available"]]

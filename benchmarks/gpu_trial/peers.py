"""Parts 4 and 5: FramePack by this product and by diffusers' pipeline, with the same weights and inputs.

diffusers' pipeline gets the noise of our job. In part 4 it also gets our encodings of prompt and picture, so
that the latents of both can be compared; in part 5 it encodes for itself.
"""

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from app.trials import local_with_trials
from benchmarks.gpu_trial.trial import Case, Figures, Trial, deviation, host_peak
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event, StepDone
from diffusers_helper.families.framepack import COMPONENTS
from diffusers_helper.families.packing import LATENT_WINDOW_SIZE
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.measuring import wait_for
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for

_CAPS_GB = (24, 16, 12, 8)
_TINY_SHARE = 1000  # of which a tiny model's caps are one
_PRESERVED_GB = 128.0  # more than a card has, so that it has all blocks streamed
_STEPS, _SECTION_STEPS = 3, 8  # the first of the three is the warm-up
_TILE_PX = 256  # the VAE's tiles under every cap, so that the start picture has the same latents
_SECTION_FRAMES = 33  # of which diffusers makes one section
_DIFFUSERS = "diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack"
Place = Callable[[Any, torch.device], None]


def _group(offload_type: str, **more: Any) -> Place:
    """Return diffusers' group offloading of the transformer. Its streams need a GPU."""

    def place(pipeline: Any, device: torch.device) -> None:
        streams = {"use_stream": True, "record_stream": True, **more} if device.type == "cuda" else {}
        pipeline.transformer.enable_group_offload(
            onload_device=device, offload_device=torch.device("cpu"), offload_type=offload_type,
            num_blocks_per_group=1, **streams,
        )  # fmt: skip
        pipeline.vae.to(device)

    return place


PLACES: Mapping[str, Place] = {
    "resident": lambda pipeline, device: pipeline.to(device),
    "group offload by block": _group("block_level"),
    "group offload by block, low_cpu_mem_usage": _group("block_level", low_cpu_mem_usage=True),
    "group offload by leaf": _group("leaf_level"),
    "model offload": lambda pipeline, device: pipeline.enable_model_cpu_offload(device=device),
}


def side_by_side(trial: Trial) -> Iterator[Case]:
    """Yield three steps by each way to place the weights, of which the first is the warm-up."""
    jobs = Jobs(trial, trial.request(steps=_STEPS, vae_tile=_TILE_PX), Local({}, trial.folder / "cache"))
    yield "longtake, first job", jobs.ours  # encodes prompt and picture, which later jobs find in the cache
    yield "longtake, resident", jobs.ours
    for cap in _CAPS_GB:
        given = cap / _TINY_SHARE if trial.is_tiny else cap
        yield f"longtake, cap of {cap} GB", partial(jobs.ours, vram_cap_gb=given)
    yield "longtake, all streamed", partial(jobs.ours, preserved_gb=_PRESERVED_GB)
    for name, place in PLACES.items():
        yield f"diffusers, {name}", partial(jobs.theirs, place)


def one_section(trial: Trial) -> Iterator[Case]:
    """Yield one section from prompt and picture to frames, without anything from earlier jobs."""
    jobs = Jobs(trial, trial.request(steps=_SECTION_STEPS))
    yield "longtake, first job", jobs.ours  # which starts the libraries for the others, too
    yield "longtake", jobs.ours
    lacks = trial.lacks_kitchen
    yield "longtake, comfy-kitchen", lacks or partial(jobs.ours, kernels="fused")
    yield "longtake, fast 8 bit", lacks or partial(jobs.ours, kernels="fast8", weight_dtype="int8")
    with_trials = replace(local_with_trials(os.environ), folder=trial.folder / "trials")
    yield "longtake, first with trials of kernels", partial(jobs.ours, with_trials)
    yield "longtake, as trials chose", partial(jobs.ours, with_trials)
    yield "diffusers, model offload", partial(jobs.theirs, PLACES["model offload"], is_whole=True)


@dataclass
class Jobs:
    """Runs of one request by both, whose latents are compared with those of the first one.

    Attributes:
        folder: The folder of our latest job.
    """

    trial: Trial
    request: GenerationRequest
    local: Local = field(default_factory=Local)
    expected: Tensor | None = None
    folder: Path = Path()

    @cached_property
    def models(self) -> Models:
        models = self.trial.models()
        models.load(CancelToken())
        return models

    def ours(self, local: Local | None = None, **settings: Any) -> Figures:
        """Make the section with `generate`."""
        request, models = replace(self.request, **settings), self.models
        self.folder = Path(tempfile.mkdtemp(dir=self.trial.folder, prefix="job-"))

        def make(tick: Callable[[], None]) -> Tensor:
            def on_event(event: Event) -> None:
                if isinstance(event, StepDone):
                    tick()

            result = generate(
                request, models, folder=self.folder, on_event=on_event, local=local or self.local
            )
            return result.latents[:, :, -LATENT_WINDOW_SIZE:]

        figures = self._measured(make)
        record = json.loads((self.folder / "memory.json").read_text(encoding="utf-8"))
        stages = defaultdict[str, float](float)
        for stage in record["stages"]:
            stages[stage["stage"].removesuffix("_2")] += stage["end"] - stage["begin"]
        sample = next(stage for stage in reversed(record["stages"]) if stage["stage"] == "sample")
        return figures | {
            "cap_bytes": record["cap_bytes"], "device_bytes": sample["measured_bytes"],
            "planned_bytes": sample["predicted_bytes"], "copied_bytes": sample["streamed_bytes"],
            "stage_seconds": dict(stages),
        }  # fmt: skip

    def theirs(self, place: Place, *, is_whole: bool = False) -> Figures:
        """Sample the same latents with diffusers' pipeline, or make the section as a whole."""
        trial, device = self.trial, self.trial.torch_device
        parts: dict[str, Any] = dict.fromkeys(COMPONENTS) if not is_whole else self._parts()
        parts |= {"transformer": trial.network("transformer"), "vae": _plain_vae(trial)}
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
        pipeline: Any = HunyuanVideoFramepackPipeline(**parts, scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        inputs: dict[str, Any] = {"prompt": self.request.prompt, "output_type": "np"}
        with ExitStack() as stack:
            if not is_whole:
                inputs = stack.enter_context(self._encoded(pipeline)) | {"output_type": "latent"}
            stages = stack.enter_context(timed(pipeline, trial, is_whole=is_whole))

            def make(tick: Callable[[], None]) -> Tensor:
                place(pipeline, device)
                return self._call(pipeline, tick, **inputs)

            figures = self._measured(make)
        none = dict.fromkeys(("cap_bytes", "planned_bytes", "copied_bytes"))
        return figures | none | {"stage_seconds": dict(stages)}

    def _parts(self) -> dict[str, Any]:
        models = self.trial.models()  # others than ours, since the pipeline moves them
        models.load(CancelToken())
        return {name: models.component(name) for name in COMPONENTS}

    @contextmanager
    def _encoded(self, pipeline: Any) -> Iterator[dict[str, Any]]:
        """Give the pipeline the encodings of our job, as arguments and as the results of its own methods."""
        found = load_file(self.folder / "encodings.safetensors", device=str(self.trial.torch_device))
        states, start = found["states_0"], found["start"].float()
        with (
            patch.object(pipeline, "encode_image", lambda image, device: found["vision"]),
            patch.object(pipeline, "prepare_image_latents", lambda *_, **__: start),
        ):
            yield {
                "prompt_embeds": states, "pooled_prompt_embeds": found["pooled_0"],
                "prompt_attention_mask": torch.ones_like(states[..., 0]),
            }  # fmt: skip

    def _call(self, pipeline: Any, tick: Callable[[], None], **inputs: Any) -> Tensor:
        """Run the pipeline with the noise of our job, and return the latents of its last step."""
        request, (height, width), latents = self.request, self.trial.shape, list[Tensor]()

        def on_step(_pipeline: Any, _step: int, _time: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
            tick()
            latents[:] = [state["latents"]]
            return {}

        def noise(
            purpose: Any, number: int, shape: Any, device: Any = None, dtype: Any = None, **_: Any
        ) -> Tensor:
            return noise_for(request.seed, purpose, number, tuple(shape)).to(device, dtype)

        with (
            patch(f"{_DIFFUSERS}.randn_tensor", partial(noise, "noise", 1)),
            patch("diffusers.models.autoencoders.vae.randn_tensor", partial(noise, "start_latent", 0)),
        ):
            pipeline(
                image=Image.open(request.image), height=height, width=width, num_frames=_SECTION_FRAMES,
                num_inference_steps=request.steps, guidance_scale=request.guidance,
                sampling_type="inverted_anti_drifting", callback_on_step_end=on_step, **inputs,
            )  # fmt: skip
        return latents[0].float().cpu()

    def _measured(self, make: Callable[[Callable[[], None]], Tensor]) -> Figures:
        """Return the figures of a run, which calls its argument after each step and returns the latents.

        What torch's allocator held is that at the end of the last step. The latents of our first run are kept
        for comparison.
        """
        device, ends, peaks = self.trial.device, list[float](), [0, 0]

        def tick() -> None:
            wait_for(device)
            ends.append(time.perf_counter())
            peaks[:] = device.peak_bytes(), device.peak_reserved_bytes()

        device.reset_peak()
        begin = time.perf_counter()
        with host_peak(device) as host:
            latents = make(tick)
        seconds = [after - before for before, after in pairwise(ends)]
        figures = {
            "seconds_per_step": sum(seconds) / len(seconds), "step_seconds": seconds,
            "first_step_seconds": ends[0] - begin, "seconds": time.perf_counter() - begin,
            "device_bytes": peaks[0] if device.has_gpu else None,
            "reserved_bytes": peaks[1] if device.has_gpu else None, **host,
        }  # fmt: skip
        self.expected = latents if self.expected is None else self.expected
        return figures | {
            "deviation": deviation(latents, self.expected),
            "same_bits": torch.equal(latents, self.expected),
        }


def _plain_vae(trial: Trial) -> nn.Module:
    """Return the VAE as diffusers makes it, without our faster blocks."""
    ours: Any = trial.network("vae")
    plain = empty_network("vae", {**ours.config, "_class_name": type(ours).__name__})
    plain.load_state_dict(ours.state_dict(), assign=True)
    return plain.eval().requires_grad_(False)


@contextmanager
def timed(pipeline: Any, trial: Trial, *, is_whole: bool) -> Iterator[Mapping[str, float]]:
    """Yield the seconds by stage that a pipeline takes within the context, named as those of our jobs.

    Where weights are moved when they are needed, a stage includes that. Of a pipeline that does not make a
    section as a whole, only the sampling counts.
    """
    seconds, begun = defaultdict[str, float](float), dict[str, float]()

    def begin(stage: str, *_: Any) -> None:
        wait_for(trial.device)
        begun[stage] = time.perf_counter()

    def end(stage: str, *_: Any) -> None:
        wait_for(trial.device)
        seconds[stage] += time.perf_counter() - begun[stage]

    def watched(stage: str, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        begin(stage)
        result = work(*arguments, **named)
        end(stage)
        return result

    methods = {
        "text": (pipeline, "encode_prompt"), "vision": (pipeline, "encode_image"),
        "vae_encode": (pipeline, "prepare_image_latents"), "decode": (pipeline.vae, "decode"),
    }  # fmt: skip
    with ExitStack() as stack:
        for stage, (owner, name) in methods.items() if is_whole else ():
            work = partial(watched, stage, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, work))
        # Hooks of torch run outside of those of diffusers and accelerate, which take the place of `forward`.
        before = pipeline.transformer.register_forward_pre_hook(partial(begin, "sample"))
        after = pipeline.transformer.register_forward_hook(partial(end, "sample"))
        stack.callback(before.remove)
        stack.callback(after.remove)
        yield seconds

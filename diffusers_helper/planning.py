"""The memory plan of a video before anything is loaded, and its cost: for the page, `plan` and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffusers_helper.memory.budget import Demand, JobPlan, gb_text, plan_job
from diffusers_helper.memory.estimates import (
    Calibration,
    largest_bucket,
    text_tokens,
    tile_steps,
)
from diffusers_helper.memory.estimates import demands as demands_of
from diffusers_helper.memory.networks import Network, networks
from diffusers_helper.packing import plan_sections
from diffusers_helper.profiles import Profile
from diffusers_helper.registry import ModelInfo
from diffusers_helper.request import GenerationRequest

_PER_SECTION = ("sample", "decode")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one stage does over a whole video.

    Attributes:
        runs: how often its model comes onto the device.
        passes: forward passes in one run.
        streamed_bytes: copied in for one pass.
        copied_bytes: copied in over the whole video, with the weights that stay while a run lasts.
    """

    stage: str
    runs: int
    passes: int
    streamed_bytes: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """The plan of one video.

    Attributes:
        height, width: pixels; for a picture that is not known, the shape that needs most.
        waiting_bytes: weights that wait in main memory while they are streamed; they lie in files, so that
            the kernel may drop them and read them again.
        seconds_per_step: where main memory cannot hold them, by the disk's speed; None where it can, or the
            disk's speed is not known.
        notes: sentences for people.
    """

    job: JobPlan
    height: int
    width: int
    sections: int
    frames: int
    costs: tuple[Cost, ...]
    waiting_bytes: int
    seconds_per_step: float | None
    notes: tuple[str, ...]


def known_networks(info: ModelInfo, profile: Profile) -> dict[str, Network]:
    """The networks of a model as this machine computes with them.

    Raises:
        LongtakeError: if a local model's files cannot be read.
    """
    return networks(info, on_cpu=profile.machine.kind == "cpu", vae_bytes=profile.vae_bytes)


def demands_for(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    height: int,
    width: int,
    calibration: Calibration | None = None,
) -> tuple[Demand, ...]:
    """What a job needs, with the tiles that it may use.

    Raises: as `known_networks`.
    """
    prompts = (request.prompt, request.negative if request.cfg > 1 else "")
    return demands_of(
        known_networks(info, profile),
        height,
        width,
        tile_steps(profile.vae_tile.value, request.vae_tile),
        text=max(map(text_tokens, prompts)),
        backend=profile.backend,
        calibration=calibration or Calibration(),
    )


def plan_video(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    *,
    shape: tuple[int, int] | None = None,
    calibration: Calibration | None = None,
    demands: Sequence[Demand] | None = None,
    free_ram_bytes: int | None = None,
    disk_bytes_per_second: float | None = None,
) -> VideoPlan:
    """The plan of a request and its cost.

    Args:
        shape: height and width of the video in pixels; None where the picture is not known.
        demands: what `demands_for` gave for the same, so that no file is read.
        free_ram_bytes: what main memory has left for files.
        disk_bytes_per_second: of the disk with the weights.

    Raises:
        DoesNotFit: if no plan keeps within the cap.
        LongtakeError: if a local model's files cannot be read.
    """
    height, width = shape or largest_bucket(request.resolution or info.side, info.multiple)
    budget = profile.budget(request.vram_cap_gb, request.preserved_gb)
    if demands is None:
        demands = demands_for(request, info, profile, height, width, calibration)
    job = plan_job(budget, demands)
    sections = plan_sections(request.seconds, mode=request.mode)
    passes = request.steps * (2 if request.cfg > 1 else 1)
    costs = tuple(_cost(job, stage.stage, len(sections), passes) for stage in job.stages)
    waiting = job.stage("sample").streamed_bytes
    slow = free_ram_bytes is not None and waiting > free_ram_bytes
    seconds = None
    if slow and disk_bytes_per_second:
        seconds = waiting * passes / request.steps / disk_bytes_per_second
    notes = _notes(job, profile, waiting, free_ram_bytes if slow else None, seconds)
    return VideoPlan(job, height, width, len(sections), sections.total_frames, costs, waiting, seconds, notes)


def _cost(job: JobPlan, name: str, sections: int, passes: int) -> Cost:
    plan = job.stage(name)
    runs = sections if name in _PER_SECTION else 1
    per_run = passes if name == "sample" else 1
    loads = 1 if job.keep_all_resident else runs
    copied = plan.resident_bytes * loads + plan.streamed_bytes * per_run * runs
    return Cost(name, runs, per_run, plan.streamed_bytes, copied)


def _notes(
    job: JobPlan, profile: Profile, waiting: int, free_ram: int | None, seconds: float | None
) -> tuple[str, ...]:
    notes: list[str] = []
    if job.keep_all_resident:
        notes.append("Everything fits at once and stays on the device.")
    if job.vae_tile_px != profile.vae_tile.value and job.vae_tile_px is not None:
        notes.append(
            f"The VAE works in tiles of {job.vae_tile_px} pixels instead of {profile.vae_tile.value}; "
            "the pixels differ slightly."
        )
    if free_ram is not None:
        how_long = (
            f"about {seconds:.0f} s a step for that" if seconds else "the disk's speed was not measured"
        )
        notes.append(
            f"{gb_text(waiting)} GB of streamed weights do not fit into {gb_text(free_ram)} GB of free main "
            f"memory, so that each step reads them from the disk again: {how_long}. Weights in 8 bit would "
            "need half of it."
        )
    return tuple(notes)

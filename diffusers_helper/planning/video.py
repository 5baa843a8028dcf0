"""The memory plan of a video and its cost, made before anything is loaded, for page, command and engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from diffusers_helper.attention.ways import SLICED, slice_bytes
from diffusers_helper.conditions.prompts import check_prompt, encoded_tokens, texts_in
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.machine.local import Local, shape_key, speeds
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import Network, check_loras, networks, with_loras
from diffusers_helper.planning.budget import PLAIN_ATTENTION, Demand, JobPlan
from diffusers_helper.planning.estimates import (
    OWN_WINDOW,
    calibration_of,
    demand_of,
    largest_bucket,
    latent_tokens,
    tile_steps,
    vision_tokens,
)
from diffusers_helper.planning.ladder import Ladder, first_plan, limit_notes
from diffusers_helper.planning.profiles import YOU, Profile, Setting, VaeDtype
from diffusers_helper.planning.streaming import Bus, bus_of, fewest_copies
from diffusers_helper.planning.vae import OWN_CHUNK
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import duration, gb_text
from diffusers_helper.weights.lora_files import loras_of, rank_of
from diffusers_helper.weights.reading import weight_files

_FP32_BYTES = 4
_PER_SECTION = ("sample", "decode")
_HELPED = (
    "A second card encodes texts and pictures and decodes, so the transformer stays on the first one between "
    "the sections."
)
# The command that deletes the smaller plans remembered from earlier shortages.
FORGET = "python -m app doctor --forget-smaller-plans"


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one stage over a whole video, whose first run may have more passes than the others.

    All bytes of weights that are copied to the device count as `copied_bytes`, streamed or not.
    """

    stage: str
    runs: int
    passes: int
    all_passes: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """The plan of one video.

    Attributes:
        height, width: The video's size in pixels; for an unknown picture, the shape that needs most memory.
        waiting_bytes: The size of the streamed weights in their files, which main memory should hold. The
            kernel may drop them and read them again.
        seconds_per_step: The time that each step takes for `disk_bytes`; None for none, or if the disk's
            speed is not known.
        fewest_copies: The plan with the preserved memory that leads to the fewest copies; None if only this
            plan is left after shortages.
        weight_dtype: The type of the transformer's weights, which the plan has chosen if it was left open.
        bus: The way on which streamed weights come to the card; None without a card.
        step_bytes: The bytes that are streamed to the device in each step, in all of its passes.
        disk_bytes: The bytes that each step reads from the disk; 0 if main memory can hold them.
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
    fewest_copies: JobPlan | None = None
    weight_dtype: str = SETTINGS["weight_dtype"].default
    bus: Bus | None = None
    step_bytes: int = 0
    disk_bytes: int = 0
    attention: Setting[str] = PLAIN_ATTENTION

    @property
    def copy_seconds(self) -> float:
        """Return the time that the copies of each step take on the bus; 0 without a card."""
        return self.step_bytes / self.bus.bytes_per_second if self.bus else 0.0

    @property
    def time_words(self) -> str:
        """Return a phrase for that time, and how it is known; empty if nothing is copied to a card."""
        if self.bus is None or not self.step_bytes:
            return ""
        time = f"about {duration(self.copy_seconds)} over {self.bus.name} ({self.bus.source})"
        return f"{time}, while the card computes"

    @property
    def streaming(self) -> str:
        """Return a sentence on what streaming costs in each step; empty if nothing is copied to a card."""
        words = self.time_words
        return f"{gb_text(self.step_bytes)} GB are streamed per step: {words}." if words else ""

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes fewer each forward pass of the transformer copies with the fewest copies."""
        now, then = (one.stage("sample").streamed_bytes for one in (self.job, self.fewest_copies or self.job))
        return max(0, now - then)

    @property
    def preserved_words(self) -> str:
        """Return why memory is left idle and what the other value would save; empty for nothing."""
        saved = self.saved_bytes
        if self.fewest_copies is None or not saved:
            return ""
        budget, sample = self.job.budget, self.job.stage("sample")
        why = "as docs/amd-memory.md sets it against fragmentation" if budget.is_default else "as was set"
        then, least = self.fewest_copies.stage("sample"), self.fewest_copies.preserved_bytes
        passes = next(one.all_passes for one in self.costs if one.stage == "sample")
        return (
            f"{gb_text(self.job.preserved_bytes)} of {gb_text(budget.cap_bytes)} GB are preserved, {why}, "
            f"so {gb_text(sample.resident_bytes)} GB of the transformer stay on the device and "
            f"{gb_text(sample.streamed_bytes)} GB are streamed in each pass. If only "
            f"{gb_text(least)} GB were preserved, as the estimates allow, {gb_text(then.resident_bytes)} GB "
            f"would stay and each pass would copy {gb_text(saved)} GB less, which is "
            f"{gb_text(passes * saved)} GB in the whole video."
        )


def known_networks(
    info: ModelInfo, profile: Profile, in_fp32: str = "", weight_dtype: str = "default"
) -> dict[str, Network]:
    """Return the networks of a model in the number formats that this machine computes in.

    Args:
        in_fp32: The name of a network that computes in fp32; "" for none.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    return networks(
        info, on_cpu=profile.machine.kind == "cpu", widths={"vae": profile.vae_bytes, in_fp32: _FP32_BYTES},
        weight_dtype=weight_dtype, has_bf16=profile.has_bf16,
    )  # fmt: skip


def weights_file(info: ModelInfo) -> Path | None:
    """Return the largest file of the transformer's weights, or None if they are not on this machine."""
    source = info.parts["transformer"]
    files = weight_files(source.folder) if source.folder.exists() and not source.is_missing else ()
    return max(files, key=lambda file: file.stat().st_size, default=None)


def profile_of(request: GenerationRequest, profile: Profile, info: ModelInfo) -> Profile:
    """Return the profile with the number format for the VAE, and with slices that suit its cap."""
    slices = profile.slice_bytes or slice_bytes(profile.budget(request.vram_cap_gb).cap_bytes)
    profile = replace(profile, slice_bytes=slices)
    if request.vae_precision == "auto":
        if not info.family.vae_precision or profile.vae_dtype.source == YOU:
            return profile
        dtype, reason = cast(VaeDtype, info.family.vae_precision), "the format in which its authors decode"
        return replace(profile, vae_dtype=Setting(dtype, reason, info.family.name))
    dtype = cast(VaeDtype, request.vae_precision)
    return replace(profile, vae_dtype=Setting(dtype, "set for the job", YOU))


def demands_for(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    height: int,
    width: int,
    calibration: Mapping[str, float],
    in_fp32: str = "",
    transformer: Network | None = None,
) -> tuple[Demand, ...]:
    """Return the needs of a job for each size of tiles that it may use, the largest first.

    Args:
        height, width: The sides of the video in pixels.
        calibration: See `calibration_of`.
        in_fp32: The name of a network that computes in fp32; "" for none.
        transformer: The transformer, if it is not that of the model's files.

    Raises:
        LongtakeError: If a local model's files cannot be read.
        InputError: If the model's tokenizer or a LoRA cannot be used.
    """
    loras = [lora for _, lora in loras_of(request.lora)]
    known = known_networks(info, profile, in_fp32, request.weight_dtype)
    known["transformer"] = with_loras(transformer or known["transformer"], loras)
    text = longest_text(request, info)
    shape = attention_shape(request, known, height, width, text)
    profile = replace(profile, attention=profile.attention_for(request, shape_key(*shape)))
    with_tiles = partial(
        demand_of, known, height, width,
        text=text, texts=len(request.texts), rank=rank_of(loras), step_cache=request.step_cache,
        encoded=OWN_WINDOW if request.video else 1,
        vae_window=request.vae_chunk + 2, vae_share=request.vae_threshold,
        backend=profile.backend, calibration=calibration,
    )  # fmt: skip
    tiles = tile_steps(profile.vae_tile.value, request.vae_tile)
    return tuple(replace(with_tiles(tile), attention=profile.attention) for tile in tiles)


def attention_shape(
    request: GenerationRequest, known: Mapping[str, Network], height: int, width: int, text: int
) -> tuple[int, int, int, str]:
    """Return the heads, tokens, values per head and type with which the transformer computes attention."""
    network, encoder = known["transformer"], known.get("image_encoder")
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    # Helios' attention to the text is a second one, and smaller.
    tokens = latent_tokens(height, width) + (text + vision_tokens(encoder) if encoder else 0)
    half = "float16" if request.weight_dtype == "fp16" else "bfloat16"
    return heads, tokens, head_dim, half if network.dtype_bytes < _FP32_BYTES else "float32"


def longest_text(request: GenerationRequest, info: ModelInfo) -> int:
    """Return the number of tokens of the longest prompt that is used.

    Raises:
        InputError: If the model's tokenizer cannot be used.
    """
    return max(encoded_tokens(text, info) for _, text in texts_in(request))


def plan_video(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    *,
    shape: tuple[int, int] | None = None,
    transformer: Network | None = None,
    local: Local = Local(),  # noqa: B008 - frozen
    free_ram_bytes: int | None = None,
    disk_speed: Callable[[Path | None], float | None] = lambda file: None,
) -> VideoPlan:
    """Check a request, and plan it and its cost.

    Args:
        shape: The height and width of the video in pixels; None for an unknown picture.
        transformer: The transformer, if it is not that of the model's files.
        local: The facts that `doctor`, jobs and calibrations have stored about the machine.
        free_ram_bytes: The main memory that is free for streamed weights; None if not known.
        disk_speed: Returns the bytes per second of the disk with a file, if weights have to be read again.

    Raises:
        DoesNotFit: If no plan keeps within the cap.
        InputError: If the model cannot make this video, or does not fit a LoRA.
        LongtakeError: If a local model's files cannot be read, or only the driver knows the card's size.
    """
    info.check(request)
    check_prompt(request, info)
    check_loras(request.lora, info)
    side = request.resolution or info.side
    height, width = shape or largest_bucket(side, info.multiple, info.family.offered)
    profile = profile_of(request, profile, info)
    calibration = calibration_of(local.calibration, profile.machine.card)

    def read(profile: Profile, request: GenerationRequest, height: int, width: int) -> Sequence[Demand]:
        return demands_for(request, info, profile, height, width, calibration, transformer=transformer)

    request, profile, ladder, why = first_plan(request, info, profile, height, width, read, local.learned)
    job = ladder.plan
    sections, texts = info.family.sections(request), len(request.texts)
    passes = [texts * steps for steps in steps_of(request, info)]
    costs = tuple(_cost(job, stage.stage, passes) for stage in job.all_stages)
    waiting = job.stage("sample").streamed_bytes
    if request.weight_dtype != SETTINGS["weight_dtype"].default:
        network = known_networks(info, profile, weight_dtype=request.weight_dtype)["transformer"]
        waiting = waiting * network.file_bytes // network.weights.total_bytes
    notes = _notes(ladder, profile, request, info, max(height, width), why)
    measured, from_disk, seconds = speeds(local.speeds, profile.machine.card), 0, None
    if free_ram_bytes is not None and waiting > free_ram_bytes:
        from_disk = waiting * texts
        speed = disk_speed(weights_file(info)) or measured.disk_read_bytes_per_second
        seconds = from_disk / speed if speed else None
        notes.append(_slow_note(waiting, free_ram_bytes, seconds))
    demand = next(one for one in ladder.demands if one.vae_tile_px == job.vae_tile_px)
    return VideoPlan(
        job, height, width, len(sections), sections.total_frames, costs, waiting, seconds, tuple(notes),
        None if ladder.reason else fewest_copies(job, demand),
        request.weight_dtype,
        bus_of(profile.machine, measured), texts * job.stage("sample").streamed_bytes, from_disk,
        ladder.demands[0].attention,
    )  # fmt: skip


def attention_note(attention: Setting[str]) -> str:
    """Return a sentence on attention that is sliced although the user has not asked for it, or ""."""
    if attention.value != SLICED or attention.source == YOU:
        return ""
    return f"Attention is computed in slices, which takes longer, because {attention.reason}."


def _cost(job: JobPlan, name: str, of_sections: Sequence[int]) -> Cost:
    """Return the cost of a stage, given the transformer's passes in each section."""
    plan, keeps = job.stage(name), job.of(name).keep_all_resident
    passes = of_sections if name == "sample" else [1] * (len(of_sections) if name in _PER_SECTION else 1)
    runs = len(passes)
    copied = plan.resident_bytes * (1 if keeps else runs) + plan.streamed_bytes * sum(passes)
    return Cost(name, runs, passes[-1], sum(passes), copied)


def _notes(
    ladder: Ladder, profile: Profile, request: GenerationRequest, info: ModelInfo, side: int, why: str
) -> list[str]:
    """Return sentences on limits, on what the VAE's tiles and chunk change, and on weights and attention."""
    job, largest, tile = ladder.plan, ladder.demands[0], ladder.plan.vae_tile_px
    notes = limit_notes(job, profile)
    if job.helper:
        notes.append(_HELPED)
    elif job.keep_all_resident:
        notes.append("Everything fits at once and stays on the device.")
    if ladder.reason:
        card = "machine" if profile.machine.kind == "cpu" else "card"
        notes.append(
            f"Memory ran out on this {card} before, so the plan is smaller than it could be: "
            f"{ladder.reason}. `{FORGET}` discards this."
        )
    if tile and tile < side:
        instead = f" instead of {largest.vae_tile_px}" if tile != largest.vae_tile_px else ""
        notes.append(f"The VAE works in tiles of {tile} pixels{instead}, which changes the pixels slightly.")
    if request.vae_chunk != OWN_CHUNK and "vae_chunk" not in info.family.ignored:
        notes.append(
            f"The VAE chunk is {request.vae_chunk} instead of the VAE's own {OWN_CHUNK}, which changes the "
            "pixels slightly."
        )
    said = profile.preserved_advice(job.budget), why, attention_note(largest.attention)
    return [*notes, *filter(None, said)]


def _slow_note(waiting: int, free_ram: int, seconds: float | None) -> str:
    how_long = (
        f"this adds about {duration(seconds)} per step" if seconds else "the disk's speed is not known yet"
    )
    return (
        f"{gb_text(waiting)} GB of streamed weights do not fit into {gb_text(free_ram)} GB of free main "
        f"memory, so each step reads them from the disk again ({how_long}). A copy with 8-bit weights, which "
        "python -m app models convert writes, would need about two thirds as much."
    )

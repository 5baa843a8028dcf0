"""The memory plan of a video and its cost, made before anything is loaded, for page, command and engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from diffusers_helper.attention.backends import slice_bytes
from diffusers_helper.conditions.prompts import check_prompt, encoded_tokens, named_prompts
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import decode_work
from diffusers_helper.machine.local import Facts, Local, shape_key, speeds
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import (
    TRANSFORMERS,
    Network,
    check_loras,
    networks,
    own_loras,
    with_loras,
)
from diffusers_helper.planning.budget import Demand, JobPlan
from diffusers_helper.planning.cards.speeds import (
    MEASURED,
    Bus,
    Duration,
    StepWork,
    bus_of,
    copies_of,
    decode_time,
    disk_of,
    step_key,
    step_time,
    work_of,
)
from diffusers_helper.planning.estimates import (
    OWN_WINDOW,
    calibration_of,
    demand_of,
    largest_bucket,
    section_tokens,
    tile_steps,
    tokens_by_size,
    vision_tokens,
)
from diffusers_helper.planning.notes import notes_of, slow_note
from diffusers_helper.planning.profiles import YOU, Profile, Setting, VaeDtype
from diffusers_helper.planning.smaller_plans import FirstPlan, fewest_copies, first_plan, waiting_bytes
from diffusers_helper.request import OWN, GenerationRequest
from diffusers_helper.units import duration, gb_text
from diffusers_helper.weights.lora_files import loras_of, rank_of
from diffusers_helper.weights.reading import weight_files

_FP32_BYTES = 4
_PER_SECTION = ("sample", "sample_low", "decode")


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one stage over a whole video, whose first run may have more passes than the others."""

    stage: str
    runs: int
    passes: int
    all_passes: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """The plan of one video.

    Attributes:
        waiting_bytes: The size of the streamed weights in their files, which main memory should hold. The
            kernel may drop them and read them again.
        fewest_copies: The plan with the preserved memory that leads to the fewest copies; None if memory ran
            out in earlier jobs.
        disk_bytes: The bytes that each step reads from the disk; 0 if main memory can hold them.
    """

    first: FirstPlan = field(compare=False)
    job: JobPlan
    height: int
    width: int
    sections: int
    frames: int
    costs: tuple[Cost, ...]
    waiting_bytes: int
    notes: tuple[str, ...]
    fewest_copies: JobPlan | None
    bus: Bus | None
    step_bytes: int
    disk_bytes: int
    copies: Bus | None
    disk: Bus
    steps: tuple[int, ...]
    latents: tuple[int, ...]
    work: StepWork
    computing: Duration | None
    decoding: Duration | None

    @property
    def weight_dtype(self) -> str:
        return self.first.request.weight_dtype

    @property
    def attention(self) -> Setting[str]:
        return self.first.levels.demands[0].attention

    @property
    def seconds_per_step(self) -> float | None:
        """The time in which each step reads its `disk_bytes`; None for none, or if it is not known."""
        return self.disk.seconds(self.disk_bytes) if self.disk_bytes else None

    @property
    def copy_seconds(self) -> float:
        return self.step_bytes / self.copies.bytes_per_second if self.copies else 0.0

    @property
    def step(self) -> Duration | None:
        """The time of a step, which computes and copies at once; None if it is not known."""
        computing, copies = self.computing, self.copies
        if computing is None or copies is None or computing.source == MEASURED:
            return computing
        copying = Duration(self.copy_seconds, f"limited by {copies.name}, {copies.source}")
        return max(computing, copying, key=lambda time: time.seconds)

    @property
    def copy_time_text(self) -> str:
        if self.copies is None or not self.step_bytes:
            return ""
        limit = f"{self.copies.name} ({self.copies.source})"
        return f"about {duration(self.copy_seconds)}, limited by {limit}, while the card computes"

    @property
    def streaming(self) -> str:
        time = self.copy_time_text
        return f"{gb_text(self.step_bytes)} GB are streamed per step: {time}." if time else ""

    @property
    def saved_bytes(self) -> int:
        """How many bytes fewer each pass of the transformer copies with the fewest copies."""
        fewest = self.fewest_copies or self.job
        return max(0, self.job.stage("sample").streamed_bytes - fewest.stage("sample").streamed_bytes)

    @property
    def preserved_text(self) -> str:
        """Why memory is left idle, and what the other value would save; "" for nothing."""
        saved_bytes = self.saved_bytes
        if self.fewest_copies is None or not saved_bytes:
            return ""
        budget, sample = self.job.budget, self.job.stage("sample")
        reason = "as docs/amd-memory.md sets it against fragmentation" if budget.is_default else "as was set"
        fewest_resident = gb_text(self.fewest_copies.stage("sample").resident_bytes)
        passes = next(cost.all_passes for cost in self.costs if cost.stage == "sample")
        return (
            f"{gb_text(self.job.preserved_bytes)} of {gb_text(budget.cap_bytes)} GB are preserved, {reason}, "
            f"so {gb_text(sample.resident_bytes)} GB of the transformer stay on the device and "
            f"{gb_text(sample.streamed_bytes)} GB are streamed in each pass. If only "
            f"{gb_text(self.fewest_copies.preserved_bytes)} GB were preserved, as the estimates allow, "
            f"{fewest_resident} GB would stay and each pass would copy {gb_text(saved_bytes)} GB less, which "
            f"is {gb_text(passes * saved_bytes)} GB in the whole video."
        )


def known_networks(
    info: ModelInfo, profile: Profile, in_fp32: str = "", weight_dtype: str = "default"
) -> dict[str, Network]:
    dtype_bytes = {"vae": profile.vae_bytes, in_fp32: _FP32_BYTES}
    return networks(
        info, on_cpu=profile.machine.kind == "cpu", dtype_bytes=dtype_bytes, weight_dtype=weight_dtype,
        has_bf16=profile.has_bf16,
    )  # fmt: skip


def weights_file(info: ModelInfo) -> Path | None:
    source = info.components["transformer"]
    files = weight_files(source.folder) if source.folder.exists() and not source.is_missing else ()
    return max(files, key=lambda file: file.stat().st_size, default=None)


def profile_of(request: GenerationRequest, profile: Profile, info: ModelInfo) -> Profile:
    """Complete the profile with the number format for the VAE, and with slices that suit its cap."""
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
    """Estimate what a job needs for each size of tiles that it may use, the largest first."""
    loras = [*own_loras(info), *(lora for _, lora in loras_of(request.lora))]
    model_networks = known_networks(info, profile, in_fp32, request.weight_dtype)
    if transformer:
        model_networks["transformer"] = transformer
    names = [name for name in TRANSFORMERS if name in model_networks]
    for name in names:
        suitable = [lora for lora in loras if lora.suits(name) or not names[1:]]
        model_networks[name] = with_loras(model_networks[name], suitable)
    text = longest_text(request, info)
    sections = info.family.plain_sections(request)
    shape = attention_shape(request, info.family, model_networks, height, width, text)
    profile = replace(profile, attention=profile.attention_for(request, shape_key(*shape)))
    demand_with_tile = partial(
        demand_of, model_networks, height, width,
        text=text, texts=len(request.prompts), rank=rank_of(loras), step_cache=request.step_cache,
        num_latents=sections.latent_window_size,
        encoded_latents=max(OWN_WINDOW if request.video else 1, sections.encoded_latents),
        vae_chunk=request.vae_chunk, vae_share=request.vae_threshold,
        backend=profile.backend, calibration=calibration,
    )  # fmt: skip
    largest_tile = 0 if profile.vae_tile.source == YOU else info.family.vae_tile
    tiles = tile_steps(max(profile.vae_tile.value, largest_tile), request.vae_tile)
    return tuple(replace(demand_with_tile(tile), attention=profile.attention) for tile in tiles)


def attention_shape(
    request: GenerationRequest, family: Family, model_networks: Mapping[str, Network], height: int,
    width: int, text: int,
) -> tuple[int, int, int, str]:  # fmt: skip
    """Give the heads, tokens, values per head and dtype with which the transformer computes attention."""
    network, encoder = model_networks["transformer"], model_networks.get("image_encoder")
    heads, head_dim = network.config["num_attention_heads"], network.config["attention_head_dim"]
    # Helios' attention to the text is a second one, and smaller.
    tokens = section_tokens(family, height, width, family.plain_sections(request).latent_window_size)
    if encoder:
        tokens += text + vision_tokens(encoder)
    half_dtype = "float16" if request.weight_dtype == "fp16" else "bfloat16"
    return heads, tokens, head_dim, half_dtype if network.dtype_bytes < _FP32_BYTES else "float32"


def longest_text(request: GenerationRequest, info: ModelInfo) -> int:
    return max(encoded_tokens(text, info) for _, text in named_prompts(request))


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
    info.check(request)
    check_prompt(request, info)
    check_loras(request.lora, info)
    side = request.resolution or info.side
    height, width = shape = shape or largest_bucket(side, info.multiple, info.family.buckets)
    profile = profile_of(request, profile, info)
    calibration = calibration_of(local.calibration, profile.machine.card)

    def demands_of(profile: Profile, request: GenerationRequest, height: int, width: int) -> Sequence[Demand]:
        return demands_for(request, info, profile, height, width, calibration, transformer=transformer)

    first = first_plan(request, info, profile, *shape, demands_of, local.smaller_plans, free_ram_bytes)
    request, profile, job = first.request, first.profile, first.levels.plan
    sections = info.family.sections(request)
    num_prompts = len(request.prompts)
    steps = tuple(steps_of(request, info))
    file_bytes = waiting_bytes(request, job, lambda request: demands_of(profile, request, height, width))
    notes = notes_of(first, info, max(height, width))
    fewest = None if first.levels.reason else fewest_copies(job, first.levels.demands)
    measured_speeds = speeds(local.speeds, profile.machine.card)
    streamed_bytes = num_prompts * job.stage("sample").streamed_bytes
    disk, disk_bytes = disk_of(measured_speeds.disk_read_bytes_per_second), 0
    if free_ram_bytes is not None and file_bytes > free_ram_bytes:
        disk_bytes = file_bytes * num_prompts
        disk = disk_of(disk_speed(weights_file(info)) or measured_speeds.disk_read_bytes_per_second)
        notes.append(slow_note(file_bytes, free_ram_bytes, disk.seconds(disk_bytes), fewest))
    work, computing, decoding = compute_times(request, info, profile, height, width, local.step_times)
    return VideoPlan(
        first=first, job=job, height=height, width=width, sections=len(sections),
        frames=sections.total_frames,
        costs=tuple(
            _cost(job, stage.stage, [num_prompts * _share(stage.stage, n, request, info) for n in steps])
            for stage in job.all_stages
        ),
        waiting_bytes=file_bytes, notes=tuple(notes), fewest_copies=fewest,
        bus=bus_of(profile.machine, measured_speeds), step_bytes=streamed_bytes, disk_bytes=disk_bytes,
        copies=copies_of(profile.machine, measured_speeds, disk.reading(disk_bytes, streamed_bytes)),
        disk=disk, steps=steps, latents=decode_work(sections, request.vae_chunk),
        work=work, computing=computing, decoding=decoding,
    )  # fmt: skip


def compute_times(
    request: GenerationRequest, info: ModelInfo, profile: Profile, height: int, width: int, step_times: Facts
) -> tuple[StepWork, Duration | None, Duration | None]:
    model_networks = known_networks(info, profile)
    key = step_key(profile.machine, info)
    text = longest_text(request, info)
    tokens = attention_shape(request, info.family, model_networks, height, width, text)[1]
    tokens_of_sizes = tokens_by_size(tokens, height, width, info.sizes)
    work = work_of(model_networks["transformer"], tokens_of_sizes, len(request.prompts))
    return (
        work,
        step_time(profile.machine, work, step_times, key),
        decode_time(profile.machine, model_networks["vae"], height * width, step_times, key)
        if request.decoder == OWN
        else None,
    )


def _share(stage: str, steps: int, request: GenerationRequest, info: ModelInfo) -> int:
    """Count the steps of a section that are taken in one of the stages that sample."""
    num_high = info.family.high_steps(steps, request.shift or info.shift or 0.0)
    return steps - num_high if stage == "sample_low" else num_high


def _cost(job: JobPlan, name: str, section_passes: Sequence[int]) -> Cost:
    plan = job.stage(name)
    passes = section_passes
    if not name.startswith("sample"):
        passes = [1] * (len(section_passes) if name in _PER_SECTION else 1)
    num_loads = 1 if job.of(name).keep_all_resident else len(passes)
    copied_bytes = plan.resident_bytes * num_loads + plan.streamed_bytes * sum(passes)
    return Cost(name, len(passes), passes[-1], sum(passes), copied_bytes)

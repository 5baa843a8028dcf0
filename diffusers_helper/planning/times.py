"""The time that a person waits for a video: that of each stage, of a section, and of the whole video."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffusers_helper.events import Stage
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.cards.speeds import MEASURED, NOT_MEASURED, Duration
from diffusers_helper.planning.profiles import YOU, Profile
from diffusers_helper.planning.video import VideoPlan, known_networks
from diffusers_helper.units import about, duration

# The trial of attention, 15 to 20 s on a Radeon, and MIOpen's first search for FramePack's 56 shapes of
# convolutions, 0.5 to 2 minutes; the middle of each
ATTENTION = {
    "rocm": Duration(18, NOT_MEASURED),
    "cuda": Duration(9, "docs/log/gpu.md, measured on an H200"),
}
_PER_SECTION: tuple[Stage, ...] = ("sample", "decode")
_CONVOLUTIONS = {"rocm": Duration(75, NOT_MEASURED)}


def expected_times(
    plan: VideoPlan, profile: Profile, info: ModelInfo, *, is_first: bool, section: int = 1
) -> Mapping[Stage, Duration]:
    """Estimate how long the stages of a job take; those that are not known are left out.

    "sample" and "decode" are those of one section; the others come once. The first job of its kind on a
    machine reads weights from the disk and tries kernels.
    """
    durations = dict[Stage, Duration]()
    if is_first:
        kind = profile.machine.kind
        disk = plan.disk
        size = sum(network.file_bytes for network in known_networks(info, profile).values())
        durations["load"] = Duration(size / disk.bytes_per_second, f"{disk.name}, {disk.source}")
        if kind in ATTENTION and plan.attention.source not in (YOU, "measured"):
            durations["attention"] = ATTENTION[kind]
        if kind in _CONVOLUTIONS:
            durations["convolutions"] = _CONVOLUTIONS[kind]
    if plan.copies:
        copied_bytes = sum(cost.copied_bytes for cost in plan.costs if cost.stage in ("text", "text_2"))
        source = f"{plan.copies.name}, {plan.copies.source}"
        durations["text"] = Duration(copied_bytes / plan.copies.bytes_per_second, source)
    if plan.step:
        seconds = plan.steps[section - 1] * plan.step.seconds
        if plan.copies and not plan.job.keep_all_resident:
            stages = (stage for stage in plan.job.all_stages if stage.stage.startswith("sample"))
            seconds += sum(stage.resident_bytes for stage in stages) / plan.copies.bytes_per_second
        durations["sample"] = Duration(seconds, plan.step.source)
    if plan.decoding:
        seconds = plan.latents[section - 1] * plan.decoding.seconds
        durations["decode"] = Duration(seconds, plan.decoding.source)
    return durations


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds from a job's start: in the first job on a machine, which tries kernels, and in later ones."""

    first_job: float
    later: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long a person waits for the first section with its decoding, for its end, and for the video.

    `step` has the source of the figures, which contain the time to decode if it is known.
    """

    step: Duration
    section_seconds: float
    first_second_seconds: Wait
    video_seconds: Wait
    has_decode: bool

    @property
    def video_text(self) -> str:
        omission = "" if self.has_decode else ", without the time to decode, which is not known"
        return f"{self._in_jobs(self.video_seconds)}{omission} ({self.step.source_words})"

    @property
    def text(self) -> str:
        return (
            f"A step takes about {duration(self.step.seconds)}, a section {about(self.section_seconds)}. The "
            f"first second of video comes after {self._in_jobs(self.first_second_seconds)}; the whole video "
            f"takes {self.video_text}."
        )

    def _in_jobs(self, wait: Wait) -> str:
        first, later = about(wait.first_job), about(wait.later)
        if self.step.source == MEASURED or first == later:  # if measured, the first job is over
            return later
        return f"{first} in a first job, {later} later"


def forecast(plan: VideoPlan, profile: Profile, info: ModelInfo) -> Forecast | None:
    if plan.step is None:
        return None
    stages_of_first_job = expected_times(plan, profile, info, is_first=True)
    numbers = range(1, plan.sections + 1)
    sections = [expected_times(plan, profile, info, is_first=False, section=n) for n in numbers]
    section_seconds = [_sum(times, _PER_SECTION) for times in sections]
    start = Wait(_sum(stages_of_first_job), _sum(sections[0]))
    later_sections = sum(section_seconds[1:])
    return Forecast(
        plan.step, section_seconds[0], start,
        Wait(start.first_job + later_sections, start.later + later_sections), plan.decoding is not None,
    )  # fmt: skip


def _sum(times: Mapping[Stage, Duration], stages: Sequence[Stage] | None = None) -> float:
    return sum(times[stage].seconds for stage in stages or times if stage in times)

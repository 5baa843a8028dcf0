"""The set-up of one job: the checks and the files that need no loaded model."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import av
import torch
from PIL import Image
from torch import nn

from cache.conv_rungs import CHOSEN_RUNGS
from diffusers_helper.attention.backends import (
    BACKENDS,
    KITCHEN,
    LIBRARIES,
    NATIVE,
    PLAIN,
    TORCHS_CHOICE,
    backend_problem,
)
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.picture_file import plain_png
from diffusers_helper.conditions.pictures import Contents, JobPictures, load_pictures, store_files
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.conditions.timeline import Timeline, all_prompts, cuts_of
from diffusers_helper.conditions.times import time_notes
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Stage
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import Section, SectionPlan
from diffusers_helper.families.step_caches import STEP_CACHES
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.job.memory import JobMemory, MemoryPlans
from diffusers_helper.job.original import Original
from diffusers_helper.job.plans import kernels_problem, kind_of
from diffusers_helper.job.trials import choose_convolutions, with_trials_of
from diffusers_helper.loading.casting import find_scales
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.lora_adapters import Loras
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.packages import kernels_version, kitchen_problem
from diffusers_helper.models.registry import DEFAULT_MODEL
from diffusers_helper.models.sizes import TRANSFORMERS, own_loras
from diffusers_helper.output.capture import Recorder
from diffusers_helper.output.checkpoints import Checkpoints, EncodingCache, Origins, versions
from diffusers_helper.output.previews import Preview
from diffusers_helper.output.report import Report
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.planning.times import ATTENTION
from diffusers_helper.planning.variables import DEBUG_VARIABLE, ENCODINGS_VARIABLE
from diffusers_helper.provenance.job_folder import CrashRecord, JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import Recipe, VaeUse, read_uses, record_use, write_uses
from diffusers_helper.request import AFTER, AUTO, KERNELS, START_PICTURE, GenerationRequest
from diffusers_helper.sampling import OnStep
from diffusers_helper.sampling.step_cache import Blocks, Passes, open_passes
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.passes import DTYPES, Progress
from diffusers_helper.weights.lora_files import loras_of

_T = TypeVar("_T")
_Result = TypeVar("_Result", torch.Tensor, dict[str, torch.Tensor])


@dataclass(frozen=True, slots=True)
class SectionRun:
    """One of the runs of a sampler for a section, of which all but the last make drafts."""

    section: Section
    number: int = 1
    count: int = 1


@dataclass(frozen=True, slots=True)
class OpenJob:
    """The state of one job. `earlier_folder` is of an earlier run whose results are reused."""

    request: GenerationRequest
    models: Models
    cancel: CancelToken
    pictures: JobPictures
    original: Original | None
    sections: SectionPlan
    folder: JobFolder
    earlier_folder: JobFolder | None
    memory: JobMemory
    vae: VaeEngine[JobMemory]
    video: GrowingVideo
    report: Report
    preview: Preview
    lineage: Lineage
    recorder: Recorder
    encodings: EncodingCache
    loras: Loras

    def latents_shape(self, num_latent_frames: int) -> tuple[int, ...]:
        height, width = (side // self.family.spatial_compression for side in self.pictures.shape)
        return 1, self.family.channels, num_latent_frames, height, width

    def encoded(
        self, components: Sequence[str], encode: Callable[[], dict[str, torch.Tensor]],
        extra_facts: Callable[[], dict[str, str]] = dict, **inputs: str,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        return self.encodings.get(
            lambda: self.models.cache_facts(*components) | extra_facts() | inputs, encode
        )

    def vae_facts(self) -> dict[str, str]:
        device = self.memory.device.torch_device
        vae_use = self.memory.vae_use(*self.pictures.shape)
        return {"vae": str((vae_use, str(device), self.models.convolutions.strategy_on(device)))}

    @property
    def family(self) -> Family:
        return self.models.info.family

    def request_for(self, number: int) -> GenerationRequest:
        return self.lineage.request_for(number, self.request)

    @property
    def root(self) -> GenerationRequest:
        """The request with which the video began. Its seed determines the latents of the pictures."""
        return self.lineage.root(self.request)

    @property
    def prompts(self) -> tuple[str, ...]:
        return all_prompts(self.request, self.lineage, self.family)

    def pieces(self, stage: Stage, section: int | None = None) -> Progress:
        return partial(self.report.piece, stage, section)

    def passes(
        self, request: GenerationRequest, network: nn.Module, blocks: Blocks
    ) -> AbstractContextManager[Passes]:
        mag_ratios = self.models.info.mag_ratios(request.mode)
        repeater = self.memory.store.device.repeater()
        step_cache = STEP_CACHES.get(request.step_cache)
        return open_passes(step_cache, request.steps, mag_ratios, network, blocks, repeater)

    def on_step(self, run: SectionRun, passes: Passes) -> OnStep:
        """Make a callback that reports each step of sampling with a preview."""

        def on_step(step: int, steps: int, x0: torch.Tensor) -> None:
            step += (run.number - 1) * steps
            picture = self.preview.show(x0, run.section.number, step)
            self.report.step(run.section, step, run.count * steps, picture, passes.skipped)

        return on_step

    def run(
        self, stage: str, work: Callable[[Any], _Result], reported_section: int | None = None, **inputs: Any
    ) -> _Result:
        return self.captured(stage, lambda: self.memory.run(stage, work, reported_section), **inputs)

    def captured(self, stage: str, work: Callable[[], _T], **inputs: Any) -> _T:
        free_bytes = self.memory.store.device.free_bytes
        return self.recorder.call(stage, work, inputs=lambda: self._facts() | inputs, free_bytes=free_bytes)

    def _facts(self) -> dict[str, Any]:
        tile, precision, chunk = self.memory.vae_use(*self.pictures.shape)
        vae = {"vae_tile": tile, "vae_precision": precision, "vae_chunk": chunk}
        return {
            "request": asdict(self.request) | {"video": "", "extend": AFTER} | vae,
            "lineage": self.lineage.to_dict(),
            **{name: torch.from_numpy(array) for name, array in self.pictures.arrays().items()},
        }

    def load(self) -> Checkpoints:
        if not self.models.is_loaded:
            self.report.stage("load")
            self.models.load(self.cancel)
        for name in (names := [name for name in TRANSFORMERS if name in self.family.networks]):
            transformer = self.models.component(name)
            read = partial(self.models.read, name, self.cancel, self.report.reading)
            find_scales(transformer, self.memory.plans.weight_dtype, read, self.cancel, self.report.reading)
            compute_dtype = self.models.compute_dtype(name) or self.models.stored_dtype(name)
            for sentence in self.loras.attach(transformer, compute_dtype, name if names[1:] else ""):
                self.report.warned(sentence)
        height, width = self.pictures.shape
        facts = {"size": f"{width}x{height}", "weights": self.models.fingerprint, **self.loras.origin}
        if self.original:
            facts["video"] = self.original.checksum
            facts |= {"extend": self.request.extend} if self.original.is_last else {}
        origins = Origins(self.request, self.lineage, self.pictures.origin, self.family, **facts)
        checkpoints = Checkpoints(self.folder, origins, self.earlier_folder)
        self.video.recipe = partial(self.recipe, self.pictures.contents)
        for warning in checkpoints.warnings:
            self.report.warned(warning)
        return checkpoints

    def note_vae(self, number: int) -> None:
        """Record the settings with which the VAE worked on a section; number 0 stands for the picture."""
        record_use(self.folder.vae, VaeUse(number, *self.memory.vae_use(*self.pictures.shape)))

    def recipe(self, pictures: Contents) -> Recipe:
        info = self.models.info
        revision = info.components["transformer"].revision
        made_with = versions() | {"av": av.__version__, "weights": self.models.fingerprint}
        made_with["device"] = f"{self.memory.plans.card} {self.models.device_name}"
        if self.memory.plans.attention[0] != NATIVE:
            made_with["attention"] = self.memory.plans.attention[0]
        if self.memory.plans.blas != TORCHS_CHOICE:
            made_with["blas"] = self.memory.plans.blas
        if kernels := self.memory.plans.kernels:
            made_with["kernels"] = kernels
        return Recipe.of(
            self.request, self.lineage.spans, read_uses(self.folder.vae),
            model=None if info.folder and info.name != DEFAULT_MODEL else info.name,
            side=self.request.resolution or info.side,
            lora=self.loras.text,
            video=self.original.checksum if self.original else "",
            made_with=made_with | ({"revision": revision} if revision else {}),
            pictures=pictures,
        )  # fmt: skip


def open_job(
    request: GenerationRequest,
    models: Models,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    cancel: CancelToken | None = None,
    resume_from: Path | None = None,
    folder: Path | None = None,
    local: Local | None = None,
    lineage: Lineage | None = None,
) -> OpenJob:
    cancel, local = cancel or CancelToken(), local or Local()
    family = models.info.family
    loaded_pictures = load_pictures(request)
    loras = Loras(loras_of(request.lora), own_loras(models.info))
    models.info.check(request)
    earlier_folder = JobFolder(resume_from.absolute()) if resume_from else None
    job_folder = JobFolder(folder.absolute()) if folder else earlier_folder
    lineage = lineage or (Lineage.read(job_folder.lineage) if job_folder else Lineage())
    for section_request in lineage.requests(request):
        check_prompt(section_request, models.info)
    start_shape = (start.height, start.width) if (start := loaded_pictures.get(START_PICTURE)) else None
    height, width = models.info.shape_of(request, start_shape)
    sections = lineage.sections(request, family, cuts_of(request, family))
    begun_request, stored_attention, kernels_note = _begun_with(request, earlier_folder, models)
    job_folder = job_folder or JobFolder.new(Path("outputs").absolute())
    attention_seconds = ATTENTION["cuda" if torch.version.hip is None else "rocm"].seconds
    report = Report(job_folder, sections, on_event, {"attention": attention_seconds})
    plans = MemoryPlans(
        _largest_request(lineage, begun_request), models, height, width,
        with_trials_of(local, "attention", report, cancel),
        vae_precision=_earlier_vae_precision(earlier_folder), stored_attention=stored_attention,
        stored_blas=_stored_text(earlier_folder and earlier_folder.blas),
    )  # fmt: skip
    _open_folder(job_folder, request, loaded_pictures, earlier_folder)
    request = _write_facts(job_folder, request, earlier_folder, lineage, plans)
    video = GrowingVideo(
        job_folder.path, width=width, height=height, mode=request.mode, crf=request.crf, fps=family.fps
    )
    report.started(video, plans.expected_seconds(), plans.attention[0], plans.request.kernels)
    original, join_note = _join_original(job_folder, request, family, video, report)
    notes = *plans.notes, *time_notes(request, family), _unknown_words(request, models)
    for warning in filter(None, (kernels_note, video.warning, join_note, *notes)):
        report.warned(warning)
    if ladder := models.convolutions.ladder:
        ladder.leave_out(*(CHOSEN_RUNGS if request.kernels == PLAIN else ()))
    trials = with_trials_of(local, "convolutions", report, cancel)
    before_vae = partial(choose_convolutions, plans, sections, trials, report.warned)
    memory = JobMemory(plans, job_folder, report, cancel, before_vae)
    if crash := CrashRecord.read((earlier_folder or job_folder).crash_record):
        memory.apply(crash)
    captures_all = local.environ.get(DEBUG_VARIABLE) == "1"  # which needs an empty cache
    is_cached = not captures_all and local.environ.get(ENCODINGS_VARIABLE) != "0"
    return OpenJob(
        request, models, cancel, JobPictures.of(loaded_pictures, (height, width), request), original,
        sections, job_folder, earlier_folder, memory, VaeEngine(memory), video, report,
        Preview.of(models.info, job_folder.preview, memory.device.torch_device), lineage,
        Recorder(job_folder.captures, only_failures=not captures_all),
        EncodingCache(local.encodings if is_cached else None), loras,
    )  # fmt: skip


def _unknown_words(request: GenerationRequest, models: Models) -> str:
    unknown = models.info.unknown_words(" ".join(Timeline.of(request.prompt).prompts))
    return f"The model does not know these words and ignores them: {', '.join(unknown)}." if unknown else ""


def _join_original(
    job_folder: JobFolder, request: GenerationRequest, family: Family, video: GrowingVideo, report: Report
) -> tuple[Original | None, str]:
    if not request.video:
        return None, ""
    original = Original(job_folder.original, video.shape, request.start_crop, family, request.is_before)
    frames = original.frames(lambda: report.stage("write"))
    return original, video.join_to(original.path, frames, is_last=original.is_last)


def _write_facts(
    job_folder: JobFolder, request: GenerationRequest, earlier_folder: JobFolder | None, lineage: Lineage,
    plans: MemoryPlans,
) -> GenerationRequest:  # fmt: skip
    if request.weight_dtype == AUTO:
        request = replace(request, weight_dtype=plans.request.weight_dtype)
        write_atomic(job_folder.weight_type, request.weight_dtype.encode())
    write_atomic(job_folder.attention, "{} {}".format(*plans.attention).encode())
    if plans.kernels or job_folder.kernels.exists():
        write_atomic(job_folder.kernels, plans.kernels.encode())
    if plans.blas != TORCHS_CHOICE or job_folder.blas.exists():
        write_atomic(job_folder.blas, plans.blas.encode())
    if not job_folder.lineage.exists():
        lineage.write(job_folder.lineage)
    if earlier_folder and earlier_folder != job_folder:  # the encoded picture of the earlier run is reused
        write_uses(job_folder.vae, tuple(use for use in read_uses(earlier_folder.vae) if use.section == 0))
    if vae_precision := _earlier_vae_precision(earlier_folder):
        write_atomic(job_folder.overflow, vae_precision.encode())
    return request


def _stored_text(file: Path | None) -> str:
    return read_file(file).decode("ascii", "replace") if file and file.exists() else ""


def _with_weight_dtype(request: GenerationRequest, earlier_folder: JobFolder | None) -> GenerationRequest:
    if request.weight_dtype != AUTO or not (
        dtype := _stored_text(earlier_folder and earlier_folder.weight_type)
    ):
        return request
    return replace(request, weight_dtype=dtype)


def _begun_with(
    request: GenerationRequest, earlier_folder: JobFolder | None, models: Models
) -> tuple[GenerationRequest, tuple[str, int] | None, str]:
    """Set the kernels and the attention of an earlier run, and say if this machine has others."""
    request = _with_weight_dtype(request, earlier_folder)
    if earlier_folder is None or not earlier_folder.attention.exists():
        return request, None, ""
    stored_kernels = _stored_text(earlier_folder.kernels)
    choice = stored_kernels.partition(" ")[0]
    kind = kind_of(models.device)
    is_usable = choice in KERNELS and not kernels_problem(choice, kind)
    kernels = kernels_version(choice) if is_usable else ""
    blas = _stored_text(earlier_folder.blas)
    choices = (stored_kernels, kernels), (blas, blas if blas in LIBRARIES[kind] else "")
    notes = [
        f"This video was begun with {earlier_kernels} and goes on with {present or 'PyTorch alone'}."
        for earlier_kernels, present in choices
        if earlier_kernels not in ("", present)
    ]
    request = replace(request, kernels=choice if kernels else PLAIN)
    match = re.fullmatch(rf"({'|'.join(BACKENDS)}) (\d{{1,15}})", _stored_text(earlier_folder.attention))
    problem = match and backend_problem(match[1], has_gpu=models.device.type != "cpu")
    if match and match[1] == KITCHEN:
        problem = problem or kitchen_problem()
    if match and problem:
        notes.append(f"This video was begun with the attention {match[1]}; here, {problem}.")
        match, request = None, replace(request, attention=AUTO)
    note = " ".join([*notes, "What follows may differ slightly."]) if notes else ""
    return request, (match[1], int(match[2])) if match else None, note


def _earlier_vae_precision(earlier_folder: JobFolder | None) -> str:
    if earlier_folder is None or not earlier_folder.overflow.exists():
        return ""
    precision = _stored_text(earlier_folder.overflow)
    return precision if precision in DTYPES else "fp32"  # earlier versions have written nothing else


def _largest_request(lineage: Lineage, request: GenerationRequest) -> GenerationRequest:
    requests = lineage.requests(request)
    return replace(
        request,
        prompt=max((span_request.prompt for span_request in requests), key=len),
        negative=max((span_request.negative for span_request in requests), key=len),
        cfg=max(span_request.cfg for span_request in requests),
    )


def _open_folder(
    job_folder: JobFolder, request: GenerationRequest, pictures: Mapping[str, Image.Image],
    earlier_folder: JobFolder | None,
) -> None:  # fmt: skip
    if job_folder.segments.exists() and job_folder != earlier_folder:
        raise InputError(
            f"{job_folder.path} holds another video; expected a new folder.", "Choose another folder."
        )
    # If the outputs folder has vanished while a job waits in it, no new one is made in its place.
    job_folder.path.mkdir(parents=job_folder != earlier_folder, exist_ok=True)
    for name, picture in pictures.items():
        if not job_folder.picture(name).exists():
            write_atomic(job_folder.picture(name), plain_png(picture))
    store_files(asdict(request), job_folder)
    if not job_folder.request.exists():
        write_atomic(job_folder.request, request.to_json().encode())

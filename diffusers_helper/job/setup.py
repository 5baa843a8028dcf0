"""The set-up of one job: the checks and the files that need no loaded model."""

from __future__ import annotations

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

from diffusers_helper.attention.ways import NATIVE, WAYS
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.picture import plain_png
from diffusers_helper.conditions.pictures import Contents, JobPictures, keep_original, load_pictures
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.conditions.timeline import Timeline, cuts_of, texts_of
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Stage
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import Section, SectionPlan
from diffusers_helper.families.step_caches import STEP_CACHES
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.job.convolutions import choose_convolutions
from diffusers_helper.job.memory import JobMemory, MemoryPlans
from diffusers_helper.job.original import Original
from diffusers_helper.loading.casting import find_scales
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.lora_adapters import Loras
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import DEFAULT_MODEL
from diffusers_helper.output.capture import Recorder
from diffusers_helper.output.checkpoints import Checkpoints, EncodingCache, Origins, versions
from diffusers_helper.output.previews import Preview
from diffusers_helper.output.report import Report
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.planning.times import ATTENTION
from diffusers_helper.planning.variables import DEBUG_VARIABLE, ENCODINGS_VARIABLE
from diffusers_helper.provenance.job_folder import CrashRecord, JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import Recipe, VaeUse, note_use, read_uses, write_uses
from diffusers_helper.request import AFTER, AUTO, START_PICTURE, GenerationRequest
from diffusers_helper.sampling import OnStep
from diffusers_helper.sampling.step_cache import Blocks, Passes, open_passes
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.passes import DTYPES, Progress
from diffusers_helper.weights.lora_files import loras_of

_T = TypeVar("_T")
_Result = TypeVar("_Result", torch.Tensor, dict[str, torch.Tensor])


@dataclass(frozen=True, slots=True)
class OpenJob:
    """The state of one job, which its stages share.

    Attributes:
        original: The video that is continued; None for none.
        earlier: The folder of an earlier run whose results are reused, if there is one.
        lineage: The origin of the first sections of a branch.
        recorder: The writer of captures of the stages: of all if the environment asks for them, else of one
            that fails.
        encodings: The encodings of earlier jobs; none where all stages are captured.
        loras: The LoRAs, which leave the transformer at the end of the job.
    """

    request: GenerationRequest
    models: Models
    cancel: CancelToken
    pictures: JobPictures
    original: Original | None
    sections: SectionPlan
    folder: JobFolder
    earlier: JobFolder | None
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
        height, width = (side // self.family.shrink for side in self.pictures.shape)
        return 1, self.family.channels, num_latent_frames, height, width

    def encoded(
        self, parts: Sequence[str], encode: Callable[[], dict[str, torch.Tensor]],
        more: Callable[[], dict[str, str]] = dict, **inputs: str,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        """Return encodings from an earlier job, or make them.

        Args:
            parts: The names of the encoder and of its tokenizer or its processor of pictures.
            more: Returns further facts that change the result, as they are now.
        """
        return self.encodings.get(lambda: self.models.computes_as(*parts) | more() | inputs, encode)

    def vae_facts(self) -> dict[str, str]:
        """Return what changes the VAE's results now, besides its weights and its inputs."""
        on, use = self.memory.device.torch_device, self.memory.vae_use(*self.pictures.shape)
        return {"vae": str((use, str(on), self.models.convolutions.ways_on(on)))}

    @property
    def family(self) -> Family:
        return self.models.info.family

    @property
    def root(self) -> GenerationRequest:
        """Return the request with which the video began, whose seed determines the pictures' latents."""
        return self.lineage.root(self.request)

    @property
    def texts(self) -> tuple[str, ...]:
        return texts_of(self.request, self.lineage, self.family)

    def pieces(self, stage: Stage, section: int | None = None) -> Progress:
        return partial(self.report.piece, stage, section)

    def passes(
        self, request: GenerationRequest, network: nn.Module, blocks: Blocks
    ) -> AbstractContextManager[Passes]:
        info = self.models.info
        return open_passes(
            STEP_CACHES.get(request.step_cache), request.steps, info.magnitudes(request.mode),
            network, blocks, self.memory.store.device.repeater(),
        )  # fmt: skip

    def on_step(self, section: Section, passes: Passes, run: int = 0, runs: int = 1) -> OnStep:
        """Return a callback that ends a cancelled job, and reports each step of sampling with a preview.

        Of `runs` of the sampler for a section, `run` were made before, as drafts.
        """

        def on_step(step: int, steps: int, x0: torch.Tensor) -> None:
            self.cancel.check()
            step += run * steps
            picture = self.preview.show(x0, section.number, step)
            self.report.step(section, step, runs * steps, picture, passes.skipped)

        return on_step

    def run(
        self, stage: str, work: Callable[[Any], _Result], section: Section | None = None,
        shown: Section | None = None, **inputs: Any,
    ) -> _Result:  # fmt: skip
        """Do a stage's work with its network on the device; see `JobMemory.run` and `captured`.

        Args:
            shown: The section that the work is reported for, if it is a draft for another one.
        """
        reported = shown or section
        number = reported.number if reported else None
        if section:
            inputs["section"] = section.number
        return self.captured(stage, lambda: self.memory.run(stage, work, number), **inputs)

    def captured(self, stage: str, work: Callable[[], _T], **inputs: Any) -> _T:
        """Do a stage's work, and write a capture of it as `recorder` does."""
        free_bytes = self.memory.store.device.free_bytes
        return self.recorder.call(stage, work, inputs=lambda: self._facts() | inputs, free_bytes=free_bytes)

    def _facts(self) -> dict[str, Any]:
        """Return what every stage of this job depends on, with the settings of the VAE in force.

        No stage reads the video that is continued, so it is left out.
        """
        tile, precision, chunk = self.memory.vae_use(*self.pictures.shape)
        vae = {"vae_tile": tile, "vae_precision": precision, "vae_chunk": chunk}
        return {
            "request": asdict(self.request) | {"video": "", "extend": AFTER} | vae,
            "lineage": self.lineage.to_dict(),
            **{name: torch.from_numpy(pixels) for name, pixels in self.pictures.arrays().items()},
        }

    def load(self) -> Checkpoints:
        """Load the parts of the model that are not loaded yet, attach the LoRAs, and open the checkpoints.

        Raises:
            GenerationCancelled: If the job was cancelled.
            InputError: If a LoRA does not fit the model.
            LongtakeError: If a part cannot be loaded, or the earlier run had another request.
        """
        if not self.models.is_loaded:
            self.report.stage("load")
            self.models.load(self.cancel)
        transformer, told = self.models.part("transformer"), (self.cancel, self.report.reading)
        read = partial(self.models.read, "transformer", *told)
        find_scales(transformer, self.memory.plans.weight_dtype, read, *told)
        computes_in = self.models.compute_dtype("transformer") or self.models.stored_dtype("transformer")
        for sentence in self.loras.attach(transformer, computes_in):
            self.report.warned(sentence)
        height, width = self.pictures.shape
        facts = {"size": f"{width}x{height}", "weights": self.models.fingerprint, **self.loras.origin}
        if self.original:
            facts["video"] = self.original.checksum
            facts |= {"extend": self.request.extend} if self.original.is_last else {}
        origins = Origins(self.request, self.lineage, self.pictures.origin, self.family, **facts)
        checkpoints = Checkpoints(self.folder, origins, self.earlier)
        self.video.recipe = partial(self.recipe, self.pictures.contents)
        for doubt in checkpoints.doubts:
            self.report.warned(doubt)
        return checkpoints

    def note_vae(self, number: int) -> None:
        """Record the settings with which the VAE worked on a section; number 0 stands for the picture."""
        note_use(self.folder.vae, VaeUse(number, *self.memory.vae_use(*self.pictures.shape)))

    def recipe(self, pictures: Contents) -> Recipe:
        info = self.models.info
        revision = info.parts["transformer"].revision
        made_with = versions() | {"av": av.__version__, "weights": self.models.fingerprint}
        made_with["device"] = f"{self.memory.plans.card} {self.models.device_name}"
        if self.memory.plans.attention[0] != NATIVE:
            made_with["attention"] = self.memory.plans.attention[0]
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
    """Check the request, prepare the job's folder, and announce the start of the job.

    The arguments and errors are those of `pipeline.generate`.
    """
    cancel, local, family = cancel or CancelToken(), local or Local(), models.info.family
    given, loras = load_pictures(request), Loras(loras_of(request.lora))
    models.info.check(request)
    earlier = JobFolder(resume_from.absolute()) if resume_from else None
    found = JobFolder(folder) if folder else earlier
    lineage = lineage or (Lineage.read(found.lineage) if found else Lineage())
    for one in lineage.requests(request):
        check_prompt(one, models.info)
    start = given.get(START_PICTURE)
    height, width = models.info.shape_of(request, (start.height, start.width) if start else None)
    sections = lineage.sections(request, family, cuts_of(request, family))
    overflowed = _overflowed(earlier)
    stored, largest = _kept_attention(earlier), _largest(lineage, _as_begun(request, earlier))
    opened = JobFolder(folder.absolute()) if folder else earlier or JobFolder.new(Path("outputs").absolute())
    kind = "cuda" if torch.version.hip is None else "rocm"
    report = Report(opened, sections, on_event, {"attention": ATTENTION[kind].seconds})
    if tries := local.try_attention:
        tries = partial(tries, told=partial(report.trying, "attention"), cancel=cancel)
        local = replace(local, try_attention=tries)
    plans = MemoryPlans(largest, models, height, width, local, overflowed=overflowed, stored_attention=stored)
    _open_folder(opened, request, given, earlier)
    if request.weight_dtype == AUTO:
        request = replace(request, weight_dtype=plans.request.weight_dtype)
        write_atomic(opened.weight_type, request.weight_dtype.encode())
    _keep_facts(opened, earlier, lineage, plans.attention, overflowed=overflowed)
    mode, crf = request.mode, request.crf
    video = GrowingVideo(opened.path, width=width, height=height, mode=mode, crf=crf, fps=family.fps)
    report.started(video, plans.attention[0], plans.expected_seconds())
    original, begun = _joined(opened, request, family, video, report)
    for doubt in filter(None, (video.doubt, begun, *plans.notes)):
        report.warned(doubt)
    if unknown := models.info.unknown_words(" ".join(Timeline.of(request.prompt).texts)):
        report.warned(f"The model does not know these words and ignores them: {', '.join(unknown)}.")
    told = partial(report.trying, "convolutions")
    choose = partial(choose_convolutions, plans, sections, local, told, cancel)
    memory = JobMemory(plans, opened, report, cancel, choose)
    if note := CrashRecord.read((earlier or opened).shortage):
        memory.apply(note)
    pictures = JobPictures.of(given, (height, width), request)
    return OpenJob(
        request, models, cancel, pictures, original, sections, opened, earlier,
        memory, VaeEngine(memory), video, report,
        Preview.of(models.info, opened.preview, memory.device.torch_device), lineage,
        *_recorder_and_encodings(opened, local), loras,
    )  # fmt: skip


def _joined(
    opened: JobFolder, request: GenerationRequest, family: Family, video: GrowingVideo, report: Report
) -> tuple[Original | None, str]:
    """Return the video that is continued, if any, and a sentence on how it became part of the new one."""
    if not request.video:
        return None, ""
    original = Original(opened.original, video.shape, request.crop, family, request.is_before)
    frames = original.frames(lambda: report.stage("write"))
    return original, video.join_to(original.path, frames, is_last=original.is_last)


def _recorder_and_encodings(opened: JobFolder, local: Local) -> tuple[Recorder, EncodingCache]:
    """Return the writer of captures and the cache, without which all stages run."""
    captures_all = local.environ.get(DEBUG_VARIABLE) == "1"
    is_cached = not captures_all and local.environ.get(ENCODINGS_VARIABLE) != "0"
    recorder = Recorder(opened.captures, only_failures=not captures_all)
    return recorder, EncodingCache(local.encodings if is_cached else None)


def _keep_facts(
    opened: JobFolder, earlier: JobFolder | None, lineage: Lineage, attention: tuple[str, int], *,
    overflowed: str,
) -> None:  # fmt: skip
    """Write to a job's folder what a later run must know of this one and of an earlier one."""
    write_atomic(opened.attention, "{} {}".format(*attention).encode())
    if not opened.lineage.exists():
        lineage.write(opened.lineage)
    if earlier and earlier != opened:  # the encoded picture of the earlier run is reused
        write_uses(opened.vae, tuple(use for use in read_uses(earlier.vae) if use.section == 0))
    if overflowed:
        write_atomic(opened.overflow, overflowed.encode())


def _as_begun(request: GenerationRequest, earlier: JobFolder | None) -> GenerationRequest:
    """Return the request with the type of weights that an earlier run has chosen, if it was left open."""
    if request.weight_dtype != AUTO or earlier is None or not earlier.weight_type.exists():
        return request
    return replace(request, weight_dtype=read_file(earlier.weight_type).decode("ascii"))


def _overflowed(earlier: JobFolder | None) -> str:
    """Return the precision to which an earlier run has widened the VAE; "" if it has not."""
    if earlier is None or not earlier.overflow.exists():
        return ""
    kept = read_file(earlier.overflow).decode("ascii", "replace")
    return kept if kept in DTYPES else "fp32"  # earlier versions have written nothing else


def _kept_attention(earlier: JobFolder | None) -> tuple[str, int] | None:
    """Return what an earlier run has written of `MemoryPlans.attention`; None if it has written nothing."""
    if earlier is None or not earlier.attention.exists():
        return None
    text = read_file(earlier.attention).decode("ascii", "replace")
    found = re.fullmatch(rf"({'|'.join(WAYS)}) (\d{{1,15}})", text)
    return (found[1], int(found[2])) if found else None


def _largest(lineage: Lineage, request: GenerationRequest) -> GenerationRequest:
    """Return a request that needs at least as much memory as every section of a branch."""
    requests = lineage.requests(request)
    return replace(
        request,
        prompt=max((one.prompt for one in requests), key=len),
        negative=max((one.negative for one in requests), key=len),
        cfg=max(one.cfg for one in requests),
    )


def _open_folder(
    opened: JobFolder, request: GenerationRequest, given: Mapping[str, Image.Image], earlier: JobFolder | None
) -> None:
    if opened.segments.exists() and opened != earlier:
        raise InputError(
            f"{opened.path} holds another video; expected a new folder.", "Choose another folder."
        )
    # An outputs folder that is gone while a job waits in it must not get another in its place.
    opened.path.mkdir(parents=opened != earlier, exist_ok=True)
    for name, picture in given.items():
        if not opened.picture(name).exists():
            write_atomic(opened.picture(name), plain_png(picture))
    keep_original(request, opened)
    if not opened.request.exists():
        write_atomic(opened.request, request.to_json().encode())

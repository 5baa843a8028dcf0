"""The set-up of one job: all that can be checked and opened before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from PIL import Image

from diffusers_helper.buckets import nearest_bucket
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Stage
from diffusers_helper.files import write_atomic
from diffusers_helper.framepack.prompts import check_prompt
from diffusers_helper.job_memory import JobMemory, MemoryPlans
from diffusers_helper.machine.local import Local
from diffusers_helper.models.loaders import Models
from diffusers_helper.output.checkpoints import Checkpoints, origin_of
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.report import Report
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.packing import WINDOW, Section, SectionPlan, plan_sections
from diffusers_helper.picture import fit_picture, load_picture
from diffusers_helper.planning.death_note import DeathNote
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.passes import Progress

# The latents' channels, and the pixels for one latent along each side
_CHANNELS, _SHRINK = 16, 8


@dataclass(frozen=True, slots=True)
class Job:
    """All that the stages of one job work with.

    Attributes:
        cancel: The token that ends the job between two blocks of a network.
        given: The start picture, upright and opaque.
        picture: The same picture in the size of the video.
        earlier: The folder of an earlier run whose work is reused, if there is one.
    """

    request: GenerationRequest
    models: Models
    cancel: CancelToken
    given: Image.Image
    picture: Image.Image
    sections: SectionPlan
    folder: JobFolder
    earlier: JobFolder | None
    memory: JobMemory
    vae: VaeEngine[JobMemory]
    video: GrowingVideo
    report: Report

    def latents_shape(self, num_latent_frames: int) -> tuple[int, ...]:
        """Return the shape of this many latent frames."""
        return 1, _CHANNELS, num_latent_frames, self.picture.height // _SHRINK, self.picture.width // _SHRINK

    def pieces(self, stage: Stage, section: Section | None = None) -> Progress:
        """Return a callback that reports each piece that the VAE finishes for a stage."""
        return partial(self.report.piece, stage, section)

    def load(self) -> Checkpoints:
        """Load the parts of the model that are missing, and return the results of an earlier run.

        Raises:
            GenerationCancelled: After a cancel.
            LongtakeError: If a part cannot be loaded, or the earlier run was of another request.
        """
        if not self.models.is_loaded:
            self.report.stage("load")
            self.models.load(self.cancel, self.report.downloading)
        size = f"{self.picture.width}x{self.picture.height}"
        origin = origin_of(
            self.request, self.given,
            size=size, sections=str(len(self.sections)), weights=self.models.fingerprint,
        )  # fmt: skip
        checkpoints = Checkpoints(self.folder, origin, self.earlier, self.latents_shape(WINDOW))
        for doubt in checkpoints.doubts:
            self.report.warned(doubt)
        return checkpoints


def open_job(
    request: GenerationRequest,
    models: Models,
    on_event: Callable[[Event], None],
    cancel: CancelToken,
    resume_from: Path | None,
    folder: Path | None,
    local: Local,
) -> Job:
    """Check all that can be checked without a model, and announce the start of the job.

    The arguments and errors are those of `pipeline.generate`.
    """
    given = load_picture(Path(request.image).expanduser())
    models.info.check_mode(request.mode)
    check_prompt(request, models.info)
    side = request.resolution or models.info.side
    height, width = nearest_bucket(given.height, given.width, side, models.info.multiple)
    sections = plan_sections(request.seconds, mode=request.mode)
    earlier = JobFolder(resume_from.absolute()) if resume_from else None
    overflowed = earlier is not None and earlier.overflow.exists()
    plans = MemoryPlans(request, models, height, width, local, overflowed=overflowed)

    opened = _open_folder(request, given, earlier, folder)
    if overflowed:
        write_atomic(opened.overflow, b"")
    video = GrowingVideo(opened.path, width=width, height=height, mode=request.mode, crf=request.crf)
    report = Report(opened.job, sections, video, on_event)
    report.started(width, height)
    if video.doubt:
        report.warned(video.doubt)
    if unknown := models.info.unknown_words(request.prompt):
        report.warned(f"The model does not know these words and ignores them: {', '.join(unknown)}.")

    def on_stage(stage: str, number: int | None) -> None:
        if stage != "text_2":  # to a reader, both text encoders are one stage
            report.stage(cast(Stage, stage), sections[number - 1] if number else None)

    memory = JobMemory(plans, models, opened, cancel=cancel, on_stage=on_stage, warn=report.warned)
    if note := DeathNote.read((earlier or opened).shortage):
        memory.heed(note)
    picture = fit_picture(given, height, width, request.crop)
    return Job(
        request, models, cancel, given, picture, sections, opened, earlier,
        memory, VaeEngine(memory), video, report,
    )  # fmt: skip


def _open_folder(
    request: GenerationRequest, picture: Image.Image, earlier: JobFolder | None, folder: Path | None
) -> JobFolder:
    """Return the job's folder, after writing the picture and the request to it."""
    opened = JobFolder(folder.absolute()) if folder else earlier or JobFolder.new(Path("outputs").absolute())
    if opened.segments.exists() and opened != earlier:
        raise InputError(
            f"{opened.path} holds another video; expected a new folder.", "Choose another folder."
        )
    opened.path.mkdir(parents=True, exist_ok=True)
    if not opened.input.exists():
        picture.save(opened.input)
    if not opened.request.exists():
        write_atomic(opened.request, request.to_json().encode())
    return opened

"""From a picture and a prompt to a video: FramePack's loop.

Zhang and Agrawala 2025, "Packing Input Frame Context in Next-Frame Prediction Models for Video Generation"
(arXiv 2504.12626). The picture and the prompt are encoded once. Then the video is made in sections, in an
order that `packing` plans: each section is sampled with the picture and the history, packed the more the
farther it is away, and decoded together with its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.buckets import nearest_bucket
from diffusers_helper.cancel import CancelToken
from diffusers_helper.cancel_hooks import cancellable
from diffusers_helper.errors import GenerationCancelled, InputError, LongtakeError
from diffusers_helper.events import Event, Stage
from diffusers_helper.files import write_atomic
from diffusers_helper.framepack.encoders import TextCondition, encode_pooled, encode_states, encode_vision
from diffusers_helper.framepack.guidance import Condition, GuidedDenoiser
from diffusers_helper.framepack.history import History
from diffusers_helper.framepack.prompts import check_prompt
from diffusers_helper.job_memory import JobMemory
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.models.loaders import Models
from diffusers_helper.output.checkpoints import Checkpoints, origin_of
from diffusers_helper.output.frames import FrameBlender, write_thumbnail
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.output.previews import LatentColours, Preview
from diffusers_helper.output.report import Report
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.packing import WINDOW, Section, plan_sections
from diffusers_helper.picture import fit_picture, load_picture
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling import StepInfo, flow_sigmas, sample_euler, sample_unipc, shift_of
from diffusers_helper.seeds import noise_for
from diffusers_helper.vae.codec import decode_latents, encode_picture
from diffusers_helper.vae.passes import Pieces
from diffusers_helper.vae.sections import SectionDecoder

_SAMPLERS = {"unipc": sample_unipc, "euler": sample_euler}
# Latents: channels, pixels per side.
_CHANNELS, _SHRINK = 16, 8


@dataclass(frozen=True, slots=True)
class Result:
    """A finished video.

    Attributes:
        video: the file.
        frames: its length.
        latents: (1, 16, frames / 4 rounded up, height / 8, width / 8), fp32 on the CPU.
    """

    video: Path
    frames: int
    latents: Tensor


def generate(
    request: GenerationRequest,
    models: Models,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    cancel: CancelToken | None = None,
    resume_from: Path | None = None,
    folder: Path | None = None,
    local: Local | None = None,
) -> Result:
    """Makes one video.

    The same request with the same model gives the same bytes, on the CPU.

    Args:
        on_event: told what happens, from JobStarted to Finished or Cancelled; called in this thread.
        cancel: ends the job between two blocks of a network.
        resume_from: the folder of a job that did not come to its end; its finished sections are taken over.
        folder: where the job's files go; `resume_from`, or a new one in `outputs/`, if None.
        local: settings of this machine; None for none.

    Raises:
        InputError: for a picture, prompt, mode, cap or folder that cannot be used; then nothing was loaded.
        GenerationCancelled: after the Cancelled event; the video so far is in the folder.
        LongtakeError: if a part of the model cannot be loaded, the device's memory does not suffice, or
            `resume_from` is of another request.
    """
    job = _Job(request, models, on_event, cancel or CancelToken(), resume_from, folder, local or Local())
    memory = job.memory
    try:
        with torch.inference_mode(), memory, memory.kept_in(job.folder.memory):
            job.load()
            condition, history = memory.attempt(job.encode)
            for section in job.plan:
                latents = memory.attempt(partial(job.latents, section, condition, history))
                history.add(latents, section)
                memory.attempt(partial(job.show, section, history))
        return Result(job.report.finished(memory.usage()), job.video.frames, history.latents)
    except GenerationCancelled:
        job.report.cancelled()
        raise


class _Job:
    """One run of `generate`: the work of each stage, and what the stages share."""

    def __init__(
        self,
        request: GenerationRequest,
        models: Models,
        on_event: Callable[[Event], None],
        cancel: CancelToken,
        resume_from: Path | None,
        folder: Path | None,
        local: Local,
    ) -> None:
        """Checks everything that can be checked without a model, and says that the job has started."""
        self.request, self.models, self.cancel = request, models, cancel
        self.picture = load_picture(Path(request.image).expanduser())
        models.info.check_mode(request.mode)
        check_prompt(request, models.info)
        side = request.resolution or models.info.side
        self.height, self.width = nearest_bucket(
            self.picture.height, self.picture.width, side, models.info.multiple
        )
        self.plan = plan_sections(request.seconds, mode=request.mode)
        self.resume_from = resume_from and resume_from.absolute()
        self.saved: dict[int, Tensor] = {}
        self.memory = JobMemory(request, models, self.height, self.width, local)
        self.folder = _open_folder(request, self.picture, resume_from, folder)
        earlier = resume_from is not None and JobFolder(resume_from).overflow.exists()
        self.memory.note_overflow(self.folder.overflow, earlier)
        self.video = GrowingVideo(
            self.folder.path, width=self.width, height=self.height, mode=request.mode, crf=request.crf
        )
        self.decoder, self.blender = SectionDecoder(), FrameBlender(request.mode)
        self.report = Report(self.folder.job, self.plan, self.video, on_event)
        self.memory.warn = self.report.warned
        self.report.started(self.width, self.height)
        if self.video.doubt:
            self.report.warned(self.video.doubt)
        if unknown := models.info.unknown_words(request.prompt):
            self.report.warned(f"The model does not know these words and ignores them: {', '.join(unknown)}.")

    def shape(self, num_latent_frames: int) -> tuple[int, ...]:
        """Of so many latent frames."""
        return 1, _CHANNELS, num_latent_frames, self.height // _SHRINK, self.width // _SHRINK

    @contextmanager
    def on_device(self, stage: str, section: Section | None = None) -> Iterator[Any]:
        """The network of a stage of the memory's plan, which a cancel ends between its blocks."""
        number = section.number if section else None
        with self.memory.on_device(stage, number) as network, cancellable(network, self.cancel):
            yield network

    def load(self) -> None:
        """The parts of the model that are not loaded yet, and the sections of an earlier run."""
        if not self.models.is_loaded:
            self.report.stage("load")
            self.models.load(self.cancel)
        size, sections = f"{self.width}x{self.height}", str(len(self.plan))
        origin = origin_of(
            self.request, self.picture, size=size, sections=sections, weights=self.models.fingerprint
        )
        self.checkpoints = Checkpoints(self.folder, origin)
        if self.resume_from is not None:
            saved = self.checkpoints.load(JobFolder(self.resume_from).sections, self.shape(WINDOW))
            self.saved = saved.sections
            for doubt in saved.doubts:
                self.report.warned(doubt)

    def encode(self) -> tuple[Condition, History]:
        """Prompt and picture as the transformer takes them, and the history that begins with the picture.

        A job that goes on takes them from its folder.
        """
        request, picture = self.request, fit_picture(self.picture, self.height, self.width)
        found: dict[str, Tensor] = {}
        if self.resume_from is not None:
            found = self.checkpoints.load_encodings(JobFolder(self.resume_from))
        is_kept = bool(found) and self.resume_from == self.folder.path
        found = found or self._encode_text() | self._encode_picture(picture)
        # Kernels may round otherwise for numbers that lie otherwise in memory, as in a file or a slice.
        found = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.items()}
        if not is_kept:
            self.checkpoints.save_encodings(found)
        self.preview = Preview(self.folder.preview, LatentColours(picture, found["start"]))
        positive, *negative = (
            TextCondition(found[f"states_{n}"], found[f"pooled_{n}"]) for n in range(self._num_prompts)
        )
        condition = Condition(
            positive, next(iter(negative), None), found["vision"],
            request.guidance, request.cfg, request.cfg_rescale,
        )  # fmt: skip
        return condition, History(request.mode, found["start"])

    @property
    def _num_prompts(self) -> int:
        return 2 if self.request.cfg > 1 else 1

    def _encode_text(self) -> dict[str, Tensor]:
        request, models = self.request, self.models
        self.report.stage("text")
        prompts = [request.prompt, request.negative][: self._num_prompts]
        with self.on_device("text") as encoder:
            states = [to_host(encode_states(encoder, models.part("tokenizer"), text)) for text in prompts]
        with self.on_device("text_2") as encoder:
            pooled = [to_host(encode_pooled(encoder, models.part("tokenizer_2"), text)) for text in prompts]
        found = {f"states_{n}": tensor for n, tensor in enumerate(states)}
        return found | {f"pooled_{n}": tensor for n, tensor in enumerate(pooled)}

    def _encode_picture(self, picture: Image.Image) -> dict[str, Tensor]:
        self.report.stage("image")
        self.report.stage("vae_encode")
        noise = noise_for(self.request.seed, "start_latent", 0, self.shape(1))
        with self.on_device("vae_encode") as vae:
            start = encode_picture(vae, picture, noise, self.memory.tiles, self._pieces("vae_encode"))
        self.report.stage("vision")
        with self.on_device("vision") as encoder:
            vision = to_host(encode_vision(encoder, self.models.part("feature_extractor"), picture))
        return {"start": start, "vision": vision}

    def latents(self, section: Section, condition: Condition, history: History) -> Tensor:
        """A section's latents (1, 16, W, h, w), fp32 on the CPU: sampled, or taken from an earlier run."""
        if section.number in self.saved:
            window = self.saved[section.number]
        else:
            self.report.stage("sample", section)
            window = self._sample(section, condition, history)
        if section.number not in self.saved or self.resume_from != self.folder.path:
            self.checkpoints.save(section.number, window)
        return window

    def _sample(self, section: Section, condition: Condition, history: History) -> Tensor:
        def on_step(info: StepInfo) -> None:
            self.cancel.check()
            picture = self.preview.show(info.x0, section.number, info.step)
            self.report.step(section, info.step, info.steps, picture)

        noise = noise_for(self.request.seed, "noise", section.number, self.shape(WINDOW))
        num_tokens = WINDOW * (noise.shape[-2] // 2) * (noise.shape[-1] // 2)
        sigmas = flow_sigmas(self.request.steps, shift_of(num_tokens))
        with self.on_device("sample", section) as transformer:
            denoise = GuidedDenoiser(transformer, condition, history.context(section))
            sample = _SAMPLERS[self.request.sampler]
            window = to_host(sample(denoise, noise.to(self.models.device), sigmas, on_step=on_step))
        if not bool(window.isfinite().all()):
            raise LongtakeError(
                f"Section {section.number}: latents are not finite numbers; the transformer overflowed.",
                "Try another prompt, picture or guidance; if it stays, the model's files may be damaged.",
            )
        return window

    def _pieces(self, stage: Stage, section: Section | None = None) -> Pieces:
        """Tells of each piece that the VAE has done, where there are several."""
        return Pieces(partial(self.report.piece, stage, section), self.cancel)

    def show(self, section: Section, history: History) -> None:
        """Decodes a section and puts its frames into the video, unless a run before has done so."""
        shown = self.video.sections
        if section.number < shown:
            return
        self.report.stage("decode", section)
        with self.on_device("decode", section) as vae:
            latents, begin = history.to_decode(section)
            pieces = self._pieces("decode", section)
            frames = decode_latents(vae, latents, begin, self.decoder, self.memory.tiles, pieces)
        thumbnail = write_thumbnail(self.folder.thumbs, section, frames, self.request.mode)
        # Of the last section that is in the video already, only the frames that face the next are needed.
        final, pending = self.blender.add(frames, section)
        if section.number > shown:
            self.report.stage("write", section)
            self.video.add_section(final, pending)
        self.memory.save(self.folder.memory)
        self.report.section(section, thumbnail)


def _open_folder(
    request: GenerationRequest, picture: Image.Image, resume_from: Path | None, folder: Path | None
) -> JobFolder:
    """The job's folder, with the picture and the request in it."""
    path = folder or resume_from
    opened = JobFolder.create(Path("outputs")) if path is None else JobFolder(path.absolute())
    if opened.segments.exists() and (resume_from is None or resume_from.absolute() != opened.path):
        raise InputError(
            f"{opened.path} holds another video; expected a new folder.", "Choose another folder."
        )
    opened.path.mkdir(parents=True, exist_ok=True)
    if not opened.input.exists():
        picture.save(opened.input)
    if not opened.request.exists():
        write_atomic(opened.request, request.to_json().encode())
    return opened

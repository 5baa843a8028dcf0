"""The job that finishes a video: its steps, segment by segment, each of which is written once it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.sound import DROPPED, soundtrack, write_sound
from diffusers_helper.conditions.sources import SourceReader
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Event
from diffusers_helper.families.packing import Section
from diffusers_helper.finish.finishing import Finishing
from diffusers_helper.finish.step import Frames, Workshop
from diffusers_helper.output.previews import Preview, save_thumbnail
from diffusers_helper.output.report import Report
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import finished_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.setting import lines_of
from diffusers_helper.units import gb_bytes

_DEFAULT_CAP_GB = 4  # of which tiles need a part only


def finish(
    request: GenerationRequest, folder: Path, *, on_event: Callable[[Event], None] = lambda event: None,
    cancel: CancelToken | None = None,
) -> Path:  # fmt: skip
    """Finish the video of a request whose plan is known, or continue where an earlier run ended.

    The same request gives the same bytes, however often it was interrupted.
    """
    finishing, files, cancel = request.finishing, JobFolder(folder), cancel or CancelToken()
    assert finishing is not None
    shape, plan = finishing.result, finishing.plan
    report = Report(files, plan, on_event)
    video = GrowingVideo(
        folder, width=shape.width, height=shape.height, mode="forward", crf=request.crf, fps=shape.rate
    )
    report.started(video, "")
    has_sound = any(source.has_sound for source in finishing.sources)
    lost_sound = DROPPED if has_sound and finishing.edit.loses_sound and not request.sound else ""
    for warning in filter(None, (video.warning, lost_sound)):
        report.warned(warning)
    try:
        report.stage("finish")
        paths = [Path(request.video), *map(Path, lines_of(request.join))]
        recipe = finished_recipe(request, finishing.words, paths)
        video.recipe = lambda: recipe
        video.sound = _sound(files, finishing, paths, Path(request.sound) if request.sound else None)
        cap_bytes = gb_bytes(request.vram_cap_gb or _DEFAULT_CAP_GB)
        read = SourceReader(paths, finishing)
        frames = _opened(finishing, Workshop(read, report.warned, torch.cuda.is_available(), cap_bytes))
        preview = Preview(files.preview, 1 / float(shape.rate))
        sections = [*zip(plan, finishing.segments, strict=True)][video.sections :]
        for section, segment in sections:
            report.stage("finish", section.number)
            video.add_section(
                _reported(frames, section, segment, video.shape, files, report, preview, cancel)
            )
            report.section(section)
        return report.finished({})
    except GenerationCancelled:
        report.cancelled()
        raise


def _opened(finishing: Finishing, workshop: Workshop) -> Frames:
    frames: Frames = lambda begin, end: iter(())  # noqa: E731 - the edit reads the sources instead
    for step, shape in zip(finishing.steps, finishing.shapes(), strict=False):
        frames = step.open(frames, shape, workshop)
    return frames


def _reported(
    frames: Frames, section: Section, segment: range, sides: tuple[int, int], files: JobFolder,
    report: Report, preview: Preview, cancel: CancelToken,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield the frames of a segment, cut to height and width, and report each."""
    for step, frame in enumerate(frames(segment.start, segment.stop), 1):
        cancel.check()
        frame = frame[: sides[0], : sides[1]]
        if step == len(segment) // 2 + 1:
            save_thumbnail(files.thumb(section.number), frame)
        report.step(section, step, len(segment), preview.show_frame(frame, section.number, step), 0)
        yield frame
    report.stage("write", section.number)


def _sound(files: JobFolder, finishing: Finishing, paths: list[Path], chosen: Path | None) -> Path | None:
    file = files.segments / "sound.mp4"
    if not file.exists():
        samples = soundtrack(finishing, paths, chosen)
        if samples is None:
            return None
        write_sound(samples, file)
    return file

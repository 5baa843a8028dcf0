"""The job that finishes a video: its steps, segment by segment, each of which is written once it is whole."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.sources import source_reader
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Event
from diffusers_helper.families.packing import Section
from diffusers_helper.finish.step import Frames, Network, Workshop
from diffusers_helper.job.sound import DROPPED, soundtrack, write_sound
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
    load: Callable[[str], tuple[Network, int]] | None = None,
) -> Path:  # fmt: skip
    """Finish the video of a request whose plan is known, or continue where an earlier run ended.

    The same request gives the same bytes, however often it was interrupted. `load` is that of the workshop.
    """
    finishing, files, cancel = request.finishing, JobFolder(folder), cancel or CancelToken()
    assert finishing is not None
    shape, plan = finishing.result, finishing.plan
    paths = [Path(request.video), *map(Path, lines_of(request.join))]
    report = Report(files, plan, on_event)
    video = GrowingVideo(
        folder, width=shape.width, height=shape.height, mode="forward", crf=request.crf, fps=shape.rate
    )
    preview = Preview(files.preview, 1 / float(shape.rate))
    report.started(video)
    has_sound = any(source.has_sound for source in finishing.sources)
    lost_sound = DROPPED if has_sound and finishing.edit.loses_sound and not request.sound else ""
    for warning in filter(None, (video.warning, lost_sound)):
        report.warned(warning)

    def reported(frames: Iterator[np.ndarray], section: Section, total: int) -> Iterator[np.ndarray]:
        """Yield the frames of a segment, cut to even sides, and report each."""
        for step, frame in enumerate(frames, 1):
            cancel.check()
            frame = frame[: shape.height, : shape.width]
            if step == total // 2 + 1:
                save_thumbnail(files.thumb(section.number), frame)
            report.step(section, step, total, preview.show_frame(frame, section.number, step), 0)
            yield frame
        report.stage("write", section.number)

    try:
        report.stage("finish")
        recipe = finished_recipe(request, finishing.words, paths)
        video.recipe = lambda: recipe
        sound = files.segments / "sound.mp4"
        if not sound.exists():
            samples = soundtrack(finishing, paths, Path(request.sound) if request.sound else None)
            if samples is not None:
                write_sound(samples, sound)
        video.sound = sound if sound.exists() else None
        frames: Frames = lambda begin, end: iter(())  # noqa: E731 - the edit reads the sources instead
        cap_bytes = gb_bytes(request.vram_cap_gb or _DEFAULT_CAP_GB)
        workshop = Workshop(source_reader(paths, finishing), report.warned, cap_bytes, load)
        for step, before in zip(finishing.steps, finishing.shapes(), strict=False):
            frames = step.open(frames, before, workshop)
        for section, segment in [*zip(plan, finishing.segments, strict=True)][video.sections :]:
            report.stage("finish", section.number)
            video.add_section(reported(frames(segment.start, segment.stop), section, len(segment)))
            report.section(section)
        return report.finished({})
    except GenerationCancelled:
        report.cancelled()
        raise

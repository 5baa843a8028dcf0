"""The layout of `outputs/<job>/`, which holds everything about a job."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path


def new_job_id() -> str:
    """Return an id that sorts by time and is safe as a file name: `20261121-081530-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class _Inside:
    """A path inside a job's folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: JobFolder, kind: type[JobFolder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The paths inside one job's folder. Creating the object touches nothing."""

    path: Path

    input = _Inside("input.png")  # the start picture as it was understood: RGB, upright, opaque
    request = _Inside("request.json")
    events = _Inside("events.jsonl")
    states = _Inside("states.jsonl")  # the job's states, one line for each change; the last one holds
    memory = _Inside("memory.json")  # what each stage took on the device, planned and measured
    log = _Inside("job.log")  # the text log of what the engine did for the job; see `output.job_log`
    vae = _Inside("vae.json")  # how the VAE has worked; see `output.vae_record`
    lineage = _Inside("lineage.json")  # the origin of a branch's first sections; see `output.lineage`
    encodings = _Inside("encodings.safetensors")  # of prompt and picture
    overflow = _Inside("vae_fp32")  # notes that the VAE has overflowed: in this job it computes in fp32
    shortage = _Inside("shortage.json")  # notes that lack of memory ended engines: `planning.death_note`
    engine_errors = _Inside("engine_errors.txt")  # the last lines that engines wrote before they died
    report = _Inside("report.txt")  # the problem report, for a job that the command line saw fail
    sections = _Inside("sections")  # latents, `0001.safetensors` and so on, in order of making
    segments = _Inside("segments")
    sums = _Inside("segments/sums.json")  # of the segments and of the last versions of the video
    preview = _Inside("preview")
    thumbs = _Inside("thumbs")  # small pictures of sections, `0001.webp` and so on, in order of making
    video = _Inside("video.mp4")  # the finished video, or the part that existed when the job ended early

    @classmethod
    def new(cls, outputs: Path) -> JobFolder:
        """Return a folder with a new id, which is not made yet."""
        folder = cls(outputs / new_job_id())
        while folder.path.exists():  # two jobs of the same second drew the same number
            folder = cls(outputs / new_job_id())
        return folder

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> int:
        """Return the number of results that a resumed job need not compute again."""
        return self.encodings.exists() + len(list(self.sections.glob("[0-9]*.safetensors")))

    @property
    def has_begun(self) -> bool:
        """Return whether an engine has left something here."""
        return self.segments.exists() or self.checkpoints > 0

    def remove_leftovers(self) -> None:
        """Remove files that a process was writing when it died; no other process may be writing."""
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

"""The layout of `outputs/<job>/`, which is the whole truth of a job, and how files get there in one piece."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError


def new_job_id() -> str:
    """Return an id that sorts by time and is safe as a file name: `20261121-081530-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths inside one job's folder. Creating the object touches nothing."""

    path: Path

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def input(self) -> Path:
        """The start picture as it was understood: RGB PNG, upright, opaque."""
        return self.path / "input.png"

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def states(self) -> Path:
        """The job's states, one line for each change; the last one holds."""
        return self.path / "states.jsonl"

    @property
    def memory(self) -> Path:
        """What each stage took on the device, planned and measured."""
        return self.path / "memory.json"

    @property
    def encodings(self) -> Path:
        """What prompt and picture became, so that a job that goes on need not encode them again."""
        return self.path / "encodings.safetensors"

    @property
    def overflow(self) -> Path:
        """There once the VAE's numbers have overflowed: in this job it works in fp32."""
        return self.path / "vae_fp32"

    @property
    def report(self) -> Path:
        """For a job that the command line saw fail: the text of its problem report."""
        return self.path / "report.txt"

    @property
    def sections(self) -> Path:
        """Latents per section, `0001.safetensors` and on, in order of making."""
        return self.path / "sections"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def preview(self) -> Path:
        return self.path / "preview"

    @property
    def thumbs(self) -> Path:
        """One small picture per section, `0001.webp` and on, in order of making."""
        return self.path / "thumbs"

    @property
    def video(self) -> Path:
        """The finished video, or what there was when the job ended early."""
        return self.path / "video.mp4"

    @property
    def checkpoints(self) -> int:
        """The number of results that a job which goes on does not compute again."""
        return self.encodings.exists() + len(list(self.sections.glob("[0-9]*.safetensors")))

    @property
    def has_begun(self) -> bool:
        """Whether an engine has left something here."""
        return self.segments.exists() or self.checkpoints > 0

    def remove_leftovers(self) -> None:
        """Remove the files that a process was writing when it died. Nobody may be writing."""
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

    @classmethod
    def create(cls, outputs: Path, job: str | None = None) -> JobFolder:
        """Make a new folder below `outputs`.

        Raises:
            InputError: If nothing can be written there.
        """
        try:
            folder = cls(outputs.expanduser().absolute() / (new_job_id() if job is None else job))
            while job is None and folder.path.exists():  # two jobs of one second that drew the same number
                folder = cls(folder.path.with_name(new_job_id()))
            folder.path.mkdir(parents=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a home directory that does not exist
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
                "Choose another one with `outputs`.",
                setting="outputs",
            ) from error
        return folder

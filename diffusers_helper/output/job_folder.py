"""The layout of `outputs/<job>/`, which holds everything about a job."""

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
    """The paths inside one job's folder. Creating the object touches nothing."""

    path: Path

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def input(self) -> Path:
        """Return the start picture as it was understood: RGB PNG, upright, opaque."""
        return self.path / "input.png"

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def states(self) -> Path:
        """Return the log of the job's states, one line for each change; the last one holds."""
        return self.path / "states.jsonl"

    @property
    def memory(self) -> Path:
        """Return the record of what each stage took on the device, planned and measured."""
        return self.path / "memory.json"

    @property
    def vae(self) -> Path:
        """Return the record of how the VAE has worked; see `output.vae_record`."""
        return self.path / "vae.json"

    @property
    def lineage(self) -> Path:
        """Return the origin of a branch's first sections; see `output.lineage`."""
        return self.path / "lineage.json"

    @property
    def encodings(self) -> Path:
        """Return the encodings of prompt and picture, which a resumed job need not compute again."""
        return self.path / "encodings.safetensors"

    @property
    def overflow(self) -> Path:
        """Return the note that the VAE has overflowed: in this job it computes in fp32."""
        return self.path / "vae_fp32"

    @property
    def shortage(self) -> Path:
        """Return the note that lack of memory has ended engines; see `planning.death_note`."""
        return self.path / "shortage.json"

    @property
    def engine_errors(self) -> Path:
        """Return the last lines that engines wrote to standard error before they died."""
        return self.path / "engine_errors.txt"

    @property
    def report(self) -> Path:
        """Return the text of the problem report, for a job that the command line saw fail."""
        return self.path / "report.txt"

    @property
    def sections(self) -> Path:
        """Return the latents per section, `0001.safetensors` and so on, in order of making."""
        return self.path / "sections"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def sums(self) -> Path:
        """Return the checksums of the segments and of the last versions of the video."""
        return self.segments / "sums.json"

    @property
    def preview(self) -> Path:
        return self.path / "preview"

    @property
    def thumbs(self) -> Path:
        """Return the small pictures of sections, `0001.webp` and so on, in order of making."""
        return self.path / "thumbs"

    @property
    def video(self) -> Path:
        """Return the finished video, or the part that existed when the job ended early."""
        return self.path / "video.mp4"

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

    @classmethod
    def create(cls, outputs: Path, job: str | None = None) -> JobFolder:
        """Make a new folder below `outputs`.

        Raises:
            InputError: If nothing can be written there.
        """
        try:
            folder = cls(outputs.expanduser().absolute() / (new_job_id() if job is None else job))
            while job is None and folder.path.exists():  # two jobs of the same second drew the same number
                folder = cls(folder.path.with_name(new_job_id()))
            folder.path.mkdir(parents=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: the home directory is unknown
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"outputs folder {outputs} cannot be written ({reason}); expected a writable folder.",
                "Choose another one with `outputs`.",
                setting="outputs",
            ) from error
        return folder

"""The records of jobs as pages and programs get them: with addresses in the place of paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.jobs.job import Job
from app.jobs.record import full_record, record
from app.jobs.service import JobService
from app.redact import without_paths
from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from diffusers_helper.packing import plan_sections
from diffusers_helper.request import SETTINGS

SMALL_PICTURE = "picture.webp"
"""The name by which the page serves a small copy of a job's start picture, beside the job's files."""


class Records:
    """The records of one service's jobs. Addresses are relative to the page: `jobs/ID/video.mp4`."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue

    def of(self, job: Job) -> dict[str, Any]:
        """Return the record of a job, with the address of a small start picture and a few words about it."""
        address, name = _address(job.folder.parent), self._catalogue.name_of(job.request.model)
        title = self._catalogue.info(name).title if name in self._catalogue.names else name
        length = plan_sections(job.request.seconds, mode=job.request.mode).seconds
        return self._outward(record(job, address), job.folder.parent) | {
            "picture": address(job.folder / SMALL_PICTURE),
            "about": f"{SETTINGS['mode'].choices[job.request.mode]} · {length:.1f} s · {title}",
        }

    def everything_of(self, job_id: str) -> dict[str, Any]:
        """Return everything about a job, as `python -m app jobs show --json` prints it.

        Raises:
            NoSuchJob: If there is none of that id.
        """
        outputs = self._service.job(job_id).folder.parent
        return self._outward(full_record(self._service, job_id, _address(outputs)), outputs)

    def _outward(self, made: dict[str, Any], outputs: Path) -> dict[str, Any]:
        made["request"]["model"] = self._catalogue.name_of(made["request"]["model"])
        for name in ("message", "remedy"):
            made[name] = without_paths(page_words(made[name]), outputs)
        return made


def _address(outputs: Path) -> Any:
    def address(path: Path) -> str:
        return f"jobs/{quote(path.relative_to(outputs).as_posix())}"

    return address

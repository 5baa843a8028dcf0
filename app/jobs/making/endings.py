"""The consequences of an engine's failure or death for its job: a reason to wait, or a final event."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied
from app.jobs.storage.retention import size_of
from app.jobs.storage.store import JobStore
from app.jobs.storage.trouble import facts_of
from app.machine import this_profile
from diffusers_helper.events import Failed, SectionFinished
from diffusers_helper.failures import engine_died_event
from diffusers_helper.planning.shortage import OutOfDeviceMemory, read_shortage
from diffusers_helper.provenance.crash_record import CrashRecord
from diffusers_helper.provenance.job_folder import JobFolder


def passing_trouble(store: JobStore, job: Job, failed: Failed) -> dict[str, str] | None:
    """Return why a job has to wait after a failure of its storage, or while another program has its card.

    Returns:
        The facts `message` and `remedy`; None if the failure has another cause or the job was removed.
    """
    if store.is_removed(job.id):
        return None
    if failed.code == "disk_full":
        return facts_of(OSError(errno.ENOSPC, ""), needed_bytes=_needed_bytes(store, job))
    if failed.code in ("storage", "card_busy"):
        return {"message": failed.message, "remedy": failed.remedy}
    if not job.folder.exists():
        return facts_of(FileNotFoundError(errno.ENOENT, ""))
    return None


def _needed_bytes(store: JobStore, job: Job) -> int:
    """Estimate the bytes that the rest of a job needs, from its finished sections; 0 if there are none."""
    done = [event for _, event in store.events(job.id).read() if isinstance(event, SectionFinished)]
    if not done:
        return 0
    left = done[-1].sections - done[-1].section
    return size_of(job.folder) * max(1, left) // done[-1].section


def death_event(job: Job, death: EngineDied, video: str | None, frames: int) -> Failed:
    """Return the final event, with the video so far, of a job whose engines have died too often."""
    end = engine_died_event(
        death.exit_code, job.id, 0.0, video, frames,
        attempts=death.attempts, conclusions=death.conclusions, errors=death.errors,
    )  # fmt: skip
    if not death.shortage:
        return end
    note = CrashRecord.read(JobFolder(job.folder).shortage)
    error = OutOfDeviceMemory(
        read_shortage(death.shortage),
        smaller_plans=1 if note and note.change else 0,
        is_apu=this_profile(os.environ).machine.is_apu,
    )
    return replace(end, message=error.message, remedy=error.remedy, code=error.code)

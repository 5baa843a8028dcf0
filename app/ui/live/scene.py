"""The plain data of the page's live view, made from a watched job. The browser inserts it as text only."""

import mimetypes
import os
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.jobs.job import BEGUN, Job, allows, size_of
from app.jobs.service import JobService
from app.jobs.view import WORDS, buttons, view
from app.report_text import report_text
from app.ui.errors import page_words
from app.ui.form.markup import data_url
from app.ui.live import words
from app.ui.live.progress import Cell, LiveJob
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Finished
from diffusers_helper.files import read_file
from diffusers_helper.models.registry import plan_of
from diffusers_helper.provenance.branch import max_kept_sections, num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import about, count_text, duration, gb_text

_MAX_PREVIEW_BYTES = 500_000
_MAX_SLUG = 40
# Beside a video that is at most this many times as wide as it is high there is room for words.
_MAX_RATIO_BESIDE = 1.3
# A small video would be blurred at the size of the stage.
_MAX_ENLARGEMENT = 3
_SMALL = 320  # pixels of the width up to which to enlarge a video is offered first
# Silence is mentioned after three times the usual duration, and never before this many seconds.
_CALM_SECONDS, _CALM_FACTOR = 8.0, 3.0

SceneData = dict[str, Any]


def file_url(job: Job, name: str) -> str:
    return f"jobs/{quote(job.id, safe='')}/{quote(name)}"


def video_url(job: Job) -> str | None:
    return job.video and f"{file_url(job, job.video.name)}?v={job.frames}"


def thumb_url(job: Job, number: int) -> str | None:
    """Build the address of a section's thumbnail; None if there is none, or its folder cannot be read now."""
    thumb = JobFolder(job.folder).thumb(number)
    return file_url(job, f"{thumb.parent.name}/{thumb.name}") if os.path.isfile(thumb) else None


def start_picture(job: Job) -> str | None:
    return None if job.request.is_from_words else file_url(job, JobFolder(job.folder).input.name)


def download_name(prompt: str, job_id: str, frames_so_far: int = 0) -> str:
    """Build a name such as `longtake-the-red-ball-3f9a.mp4`, with the frames so far if there are any."""
    ascii_prompt = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    slug = re.sub("[^a-z0-9]+", "-", ascii_prompt).strip("-")
    if len(slug) > _MAX_SLUG:
        slug = slug[: _MAX_SLUG + 1].rpartition("-")[0] or slug[:_MAX_SLUG]
    suffix = f"so-far-{frames_so_far}-frames" if frames_so_far else ""
    return "-".join(filter(None, ("longtake", slug, job_id.rpartition("-")[2], suffix))) + ".mp4"


def download(job: Job) -> tuple[str, Path] | None:
    first = JobFolder(job.folder).first
    file = first if job.request.one_frame and first.exists() else job.video
    if file is None:
        return None
    name = download_name(job.request.prompt, job.id, 0 if job.state == "finished" else job.frames)
    return str(Path(name).with_suffix(file.suffix)), file


def scene_data(live: LiveJob | None, now: float, report: Callable[[Job], str]) -> SceneData:
    """Collect what the live view shows of a job at a time; `report` writes a failed job's report."""
    if live is None:
        return {"job": "", "state": "idle", "beat": round(now, 1)}
    end = live.job.ended or (now if live.job.state in BEGUN else None)
    elapsed = max(0.0, end - live.job.started) if end and live.job.started else live.last_sign
    warnings = Counter(page_words(warning, live.job.folder.parent) for warning in live.warnings)
    running = live.job.state == "running"
    took = f"took {duration(elapsed)}" if live.job.is_over else f"{duration(elapsed)} so far"
    headline = words.headline(live)
    seconds_left = words.trusted_seconds_left(live, live.seconds_left(elapsed)) if running else None
    data: SceneData = _state_data(live, headline) | {
        "announcement": words.announcement(live, headline, seconds_left),
        "job": live.job.id,
        "state": live.job.state,
        "beat": round(now, 1),
        "prompt": live.job.request.prompt,
        "headline": headline,
        "remark": page_words(words.remark(live), live.job.folder.parent),
        "section": live.section,
        "sections": live.sections,
        "sectionsDone": live.sections_done,
        "step": live.step,
        "steps": live.steps,
        "sectionPercent": round(live.section_percent, 1),
        "isGuess": live.is_guess,
        "elapsed": round(elapsed, 1),
        "took": took if elapsed else "",
        "left": rounded_seconds(seconds_left),
        "warnings": [f"{text} ({n} times)" if n > 1 else text for text, n in warnings.items()],
        "cells": [] if live.job.request.one_frame else [_cell_data(live, cell) for cell in live.cells],
        "settings": words.settings(live.job.request),
        "log": file_url(live.job, JobFolder(live.job.folder).log.name),
        "memory": words.memory_of(JobFolder(live.job.folder).memory),
    }
    data |= _pulse_data(live, elapsed, seconds_left) if running else {}
    data |= _picture_data(live)
    if live.job.is_over:
        data["figures"] = _figures_data(live, data["memory"])
    if live.job.state == "failed":
        data["failure"] = {
            "message": page_words(live.job.message, live.job.folder.parent),
            "remedy": page_words(live.job.remedy, live.job.folder.parent),
            "report": report(live.job),
        }
    data["isWorthKeeping"] = live.job.is_over and bool(data["video"] or data.get("failure"))
    return data


def _state_data(live: LiveJob, headline: str) -> SceneData:
    state = WORDS[live.job.state]
    state_view = view(live.job, live.commands, is_paused=live.queue_is_paused, work=headline)
    return state_view | {
        "percent": round(live.percent, 1) if live.job.state == "running" else state_view["percent"],
        "sentence": page_words(state_view["sentence"], live.job.folder.parent),
        "buttons": buttons(live.job, live.commands, live.section, live.sections),
        "steering": _steering_data(live),
        "isRunning": live.job.state == "running",
        "plays": live.job.state == "running",
        "favourite": live.job.favourite,
        "isOpen": not state.ending,
        "ending": {"sentence": state.ending, "title": state.title},
    }


def _steering_data(live: LiveJob) -> SceneData | None:
    """Say what a user may direct while the video grows; None if nothing comes next."""
    num_begun = live.sections_made + (live.job.state == "running" and live.section > live.sections_made)
    next_cell = next((cell for cell in live.cells if cell.number == num_begun + 1), None)
    if live.job.is_over or not live.job.started or not allows(live.job, "change") or next_cell is None:
        return None
    return {
        "waits": "wait" in live.commands,
        "words": live.job.request.prompt,
        "hint": words.what_comes_next(next_cell, live.job.request.mode, live.sections),
        "mayTake": live.job.state == "paused" and live.sections_done > 0,
    }


def rounded_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _pulse_data(live: LiveJob, elapsed: float, seconds_left: float | None) -> SceneData:
    text, seconds = words.usual_duration(live)
    expected = words.shown_estimate(live)
    return {
        "expected": expected,
        "expectedText": about(expected) if expected else "",
        "due": words.first_video(live, elapsed),
        "spent": round(live.stage_seconds(elapsed), 1),
        "timeLeft": "" if seconds_left is None else f"{about(seconds_left)} left",
        "sign": round(live.last_sign, 2),
        "quiet": round(max(0.0, elapsed - live.last_sign), 1),
        "usual": text,
        "calm": max(_CALM_SECONDS, _CALM_FACTOR * seconds),
    }


def _picture_data(live: LiveJob) -> SceneData:
    folder, request = JobFolder(live.job.folder), live.job.request
    ratio = live.width / live.height if live.height else None
    offers_more = live.video is not None and bool(WORDS[live.job.state].ending)
    picture: SceneData = {
        "blank": "Nothing was made" if live.job.is_over else "The video appears here, section by section",
        "poster": start_picture(live.job),
        "first": file_url(live.job, folder.first.name) if folder.first.exists() else None,
        "crop": [request.crop, request.crop if request.crop_y is None else request.crop_y, request.zoom],
        "ratio": ratio and round(ratio, 4),
        "widest": _MAX_ENLARGEMENT * live.width,
        "words": "beneath" if ratio is None or ratio > _MAX_RATIO_BESIDE else "beside",
        "video": None,
        "continues": live.video is not None and live.job.state == "finished" and not request.one_frame,
        "before": live.video and _before(live.job),
        "isFollowed": bool(request.then),
        "offersMore": offers_more,
        "mayFinish": offers_more and not request.one_frame,
        "mayMakeMore": offers_more and not request.finish,  # a finishing has no model
        "preview": None,
    }
    picture["isSmall"] = picture["continues"] and live.width <= _SMALL
    if live.video is not None:
        # Each version has its own address, even if a later one gets the same name.
        # Events hold the paths of their time; the outputs folder may have been moved since.
        url = f"{file_url(live.job, Path(live.video).name)}?v={live.video_frames}"
        is_finished = live.job.state == "finished"
        seconds = live.video_frames / live.plan.fps
        is_picture = live.job.request.one_frame > 0 and picture["first"] is not None
        if is_picture:
            picture |= {"poster": picture["first"], "crop": [0.5, 0.5, 1]}
        name = download_name(live.job.request.prompt, live.job.id, 0 if is_finished else live.video_frames)
        label = f"Download the video{'' if is_finished else ' so far'} ({seconds:.2f} s)"
        picture["video"] = {
            "url": url,
            "front": round(live.seconds_in_front, 4),
            "hidden": round(live.hidden_in_front, 4),
            "frames": live.video_frames,
            "fps": live.plan.fps,
            "isPicture": is_picture,
            "file": picture["first"] if is_picture else url,
            "name": str(Path(name).with_suffix(folder.first.suffix)) if is_picture else name,
            "download": "Download the picture" if is_picture else label,
        }
    # A job that has ended makes no section any more, even if its last event has not been read yet.
    current = next((cell for cell in live.cells if cell.state == "running"), None)
    if current is not None and live.preview is not None and (data := _inline(Path(live.preview))):
        seconds = round(current.end - current.start, 2)
        picture["preview"] = {"data": data, "label": _span(current), "seconds": seconds}
    return picture


def _before(job: Job) -> SceneData | None:
    """Find the video that a job has finished; None if there is none, or if it was no job's."""
    folder = JobFolder(job.folder.parent / job.parent)
    if not (job.request.finish and job.parent and folder.video.exists()):
        return None
    return {"job": job.parent, "url": f"jobs/{quote(job.parent, safe='')}/{folder.video.name}"}


def _cell_data(live: LiveJob, cell: Cell) -> SceneData:
    percent = round(live.section_percent, 1)
    may_branch = allows(live.job, "branch") and 0 < cell.number - 1 <= max_kept_sections(live.job.request)
    spoken_state, mark = {
        "waiting": ("not made yet", ""),
        "running": (words.section_activity(live), f"{int(percent)} %"),
        "done": ("finished, jump there" if live.video else "finished", "✓"),
    }[cell.state]
    return {
        "spoken": f"{spoken_state}; {cell.text}" if cell.text else spoken_state,
        "words": cell.text,
        "mark": mark,
        "percent": percent if cell.state == "running" else 0,
        "isDone": cell.state == "done",
        "mayBranch": cell.state == "done" and may_branch,
        "number": cell.number,
        "begin": round(cell.start, 3),
        "label": _span(cell),
        "state": cell.state,
        "thumb": thumb_url(live.job, cell.number) if cell.state == "done" else None,
    }


def _span(cell: Cell) -> str:
    return f"{cell.start:.1f} – {cell.end:.1f} s"


def _figures_data(live: LiveJob, memory: SceneData | None) -> SceneData:
    stages = words.stage_seconds(live)
    longest = max((seconds for _, seconds in stages), default=0.0)
    rows = words.made_with(live)
    if memory is not None:
        rows += memory["facts"]
    if live.timing.step is not None:
        rows.append(("Time per step", duration(live.timing.step)))
    if isinstance(live.end, Finished | Cancelled) and live.end.peak_host_bytes:
        rows.append(("Engine in main memory", f"at most {gb_text(live.end.peak_host_bytes)} GB"))
    if isinstance(live.end, Finished) and live.end.advice:
        rows.append(("Advice", live.end.advice))
    return {
        "facts": rows,
        "stages": [
            {"name": name, "text": duration(seconds), "share": round(seconds / longest, 4)}
            for name, seconds in stages
        ],
    }


def _inline(path: Path) -> str | None:
    try:
        data = read_file(path, _MAX_PREVIEW_BYTES)
    except (OSError, ValueError):  # it has been replaced or removed; the next step brings another
        return None
    media_type = mimetypes.guess_type(path.name)[0] or ""
    return data_url(data, media_type) if media_type.startswith("image/") else None


class Presenter:
    def __init__(self, service: JobService) -> None:
        self._service = service
        self._reports = lru_cache(8)(lambda job_id, _log_bytes: report_text(service, job_id))
        # The takes between which a user has to choose change only with the index.
        self._takes = lru_cache(1)(lambda job_id, _revision: takes_for(service, job_id) if job_id else None)

    def show(self, live: LiveJob | None) -> SceneData:
        data = scene_data(live, time.time(), self._report)
        return data | {"takes": self._takes(data["job"], self._service.revision)}

    def _report(self, job: Job) -> str:
        log = JobFolder(job.folder).events
        return self._reports(job.id, log.stat().st_size if log.is_file() else 0)

    def show_job(self, job_id: str) -> SceneData:
        job = self._service.job(job_id)
        live = LiveJob(job, None, *size_of(job))
        for event in self._service.events(job_id):
            live.apply(event)
        live.commands = frozenset(self._service.commands(job))
        return self.show(live)


def takes_for(service: JobService, job_id: str) -> SceneData | None:
    try:
        choice = service.steering.choice(job_id)
    except (InputError, OSError):  # the job was removed, or a file of it is damaged
        return None
    if choice is None:
        return None
    ready = sum(num_finished_sections(JobFolder(job.folder)) > choice.keep for _, job in choice.takes)
    return {
        "title": f"{_span(_take_cell(choice.takes[-1][1], choice.keep))}: which take?",
        "hint": f"{ready} of {count_text(len(choice.takes), 'take')} ready. All of them stay in the history.",
        "of": choice.parent,
        "keep": choice.keep,
        "waits": choice.waits,
        "tiles": [_take_data(job, number, choice.keep) for number, job in choice.takes],
    }


def _take_cell(job: Job, keep: int) -> Cell:
    """Find the section that is another one in each take, at its time in the whole video."""
    live = LiveJob(job, video_frames=job.frames, sections_done=keep + 1)
    return next(cell for cell in live.cells if cell.number == keep + 1)


def _take_data(job: Job, number: int, keep: int) -> SceneData:
    # The video of an inverted take begins with its section, since nothing before that is made yet.
    start = 0.0 if job.request.mode == "inverted" else _take_cell(job, keep).start
    return {
        "job": job.id,
        "seed": str(job.request.seed),  # a browser's numbers have gaps above 2^53
        "still": thumb_url(job, keep + 1) or start_picture(job) or "",
        "video": video_url(job),
        "name": f"Take {number}" if number else "As it was",
        "keep": f"Keep {f'take {number}' if number else 'it as it was'} and go on",
        "begin": round(start, 3),
        "end": round(start + plan_of(job.request).section_seconds, 3),
        "now": "" if job.state in ("paused", "finished") else WORDS[job.state].label,
        "mayGoOn": allows(job, "resume") and job.state == "paused",
    }

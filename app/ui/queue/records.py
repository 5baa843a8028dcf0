"""The records of jobs, and the lines of cards, as programs and the Queue tab read them."""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from typing_extensions import TypedDict

from app.jobs.job import Job, NoSuchJob
from app.jobs.making.worker import Worker
from app.jobs.service import JobService
from app.jobs.view import Address, full_record, record, title_of, view
from app.ui.catalogue import Catalogue
from app.ui.errors import page_words
from app.ui.live.scene import thumb_url
from app.ui.loras import with_lora_names
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import plan_of
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.setting import lines_of, text_of
from diffusers_helper.units import gb_text

Record = dict[str, Any]
SMALL_PICTURE = "picture.webp"
"""The name by which the page serves a small copy of a job's start picture, beside the job's files."""
_OUT = "Out of service"
_PAUSE, _LEAVE = ("pause", "Pause this card"), ("leave", "Take out of service")
_RETURN = ("return", "Put back into service")


class Records:
    """The records of one service's jobs. Addresses are relative to the page: `jobs/ID/video.mp4`."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._title = cache(self._find_title)

    def of(self, job: Job, turn: int = 0, *, is_paused: bool | None = None) -> dict[str, Any]:
        """Make the record and the view of a job, with the address of a small picture and a few words.

        `turn` is its number among those that will begin, if known, and `is_paused` None to look at the queue.
        """
        commands = self._service.commands(job)
        if is_paused is None:
            is_paused = self._service.queue.is_paused
        card = self._service.crew.why_waiting(job)
        job_view = view(job, commands, is_paused=is_paused, turn=turn, card=card)
        address, request = _address(job.folder.parent), job.request
        tells_card = self._service.engines > 1 or " on " in job.card  # or several cards have made it
        small = thumb_url(job, 1) or "" if request.is_from_words else address(job.folder / SMALL_PICTURE)
        order, length = SETTINGS["mode"].choices[request.mode], _length(request)
        facts = f"{order} · {length:.1f} s · seed {request.seed}"
        maker = self._title(request.model, ADDED_MODELS.revision)
        if request.finishing:
            facts, maker = f"{length:.1f} s", request.finishing.summary
        return self._outward(record(job, address) | job_view, job.folder.parent) | {
            "wishes": sorted(commands),
            "picture": small,
            "title": title_of(job),
            "offered": self._catalogue.name_of(request.model) in self._catalogue.names,
            "about": f"{facts} · {maker}" + (f" · {job.card}" if job.card and tells_card else ""),
        }

    def _find_title(self, key: str, _revision: str) -> str:
        name = self._catalogue.name_of(key)
        return self._catalogue.info(name).title if name in self._catalogue.names else name

    def everything_of(self, job_id: str) -> dict[str, Any]:
        """Gather everything about a job, as `longtake jobs show --json` prints it."""
        outputs = self._service.job(job_id).folder.parent
        made = self._outward(full_record(self._service, job_id, _address(outputs)), outputs)
        for state in made["states"]:
            state["reason"] = page_words(state["reason"], outputs)
        return made

    def _outward(self, made: dict[str, Any], outputs: Path) -> dict[str, Any]:
        made["request"] = with_lora_names(made["request"])
        for name in ("video", "join", "sound"):
            files = (quote(Path(path).name) for path in lines_of(made["request"][name]))
            made["request"][name] = text_of(f"{made['folder']}/{file}" for file in files)
        made["request"]["model"] = self._catalogue.name_of(made["request"]["model"])
        for name in ("message", "remedy", "sentence"):
            made[name] = page_words(made[name], outputs)
        return made


@lru_cache(maxsize=1024)
def _length(request: GenerationRequest) -> float:
    return plan_of(request).seconds


def _address(outputs: Path) -> Address:
    return lambda path: f"jobs/{quote(path.relative_to(outputs).as_posix())}"


class CardLine(TypedDict):
    """What the page shows of a card; `buttons` are pairs of an action and a label."""

    card: str
    name: str
    memory: str
    job: str
    now: str
    isOut: bool
    buttons: list[tuple[str, str]]


def card_lines(service: JobService) -> list[CardLine]:
    return [_line(service, worker) for worker in service.crew.workers] if service.engines > 1 else []


def _line(service: JobService, worker: Worker) -> CardLine:
    card, is_in = worker.card, worker.is_in_service
    used = 0 if card.away else worker.used_bytes
    offered = [_PAUSE, _LEAVE] if is_in else [_RETURN, *([_PAUSE] if worker.is_busy else [])]
    offered = [] if card.away and not worker.trouble else offered  # nothing helps but its return
    return {
        "card": card.key,
        "name": card.label,
        "memory": f"{gb_text(used)} GB of {card.size}" if used and card.size else card.size,
        "job": worker.job,
        "now": _now(service, worker),
        "isOut": not is_in,
        "buttons": offered,
    }


def _now(service: JobService, worker: Worker) -> str:
    if worker.is_busy:
        try:
            prompt = title_of(service.job(worker.job))
        except NoSuchJob:  # it has just been removed
            prompt = "a video"
        return f"Makes {prompt}" if worker.is_in_service else f"{_OUT} after this video: {prompt}"
    if not worker.is_in_service:
        why = worker.trouble or worker.card.away
        return f"{_OUT}. {why}" if why else _OUT
    return "Free" if service.crew.uses(worker) else "Another program uses it"

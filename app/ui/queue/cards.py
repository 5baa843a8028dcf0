"""What the page shows of the cards that make this program's videos."""

from typing_extensions import TypedDict

from app.jobs.job import NoSuchJob
from app.jobs.making.worker import Worker
from app.jobs.service import JobService
from app.jobs.view import title_of
from diffusers_helper.units import gb_text

_OUT = "Out of service"
_PAUSE, _LEAVE = ("pause", "Pause this card"), ("leave", "Take out of service")
_RETURN = ("return", "Put back into service")


class CardLine(TypedDict):
    """What the page shows of a card; `buttons` are pairs of an action and a label."""

    card: str
    name: str
    memory: str
    job: str
    now: str
    isOut: bool
    buttons: list[tuple[str, str]]


def lines(service: JobService) -> list[CardLine]:
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

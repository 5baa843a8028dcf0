"""The near end of the cards of other machines, as a process: `python -m app.relay ERRAND LOG_LEVEL`.

ERRAND is an `app.cluster.Errand` as JSON. To make videos, it takes orders and reports events as `app.engine`
does, and has an actor of the cluster carry them out. If the network, the other machine or Ray fails, the job
fails with the code "card_away", and goes back to the queue.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.cluster import Errand, connect, host_cards, listed
from app.host import LOST_SECONDS, apply, changed
from app.jobs.making.engine_client import Trial
from app.jobs.making.orders import EventPipe, Order, Orders, open_pipes
from app.jobs.stdio import complain
from diffusers_helper import __version__
from diffusers_helper.errors import InputError
from diffusers_helper.events import Failed, from_dict
from diffusers_helper.failures import failed_event

_LOOK_SECONDS = 2.0
_log = logging.getLogger(__name__)


def main() -> None:
    """Run until standard input ends, or until the cluster or the card is lost."""
    (orders, events), errand = open_pipes(sys.argv[2]), Errand(**json.loads(sys.argv[1]))
    try:
        if errand.does == "make":
            _make_all(errand, orders, events)
        else:
            (_watch if errand.does == "watch" else _host)(connect(errand), errand, events)
    except InputError as error:
        events.write({"refused": [error.message, error.remedy]})
    except Exception as error:  # noqa: BLE001 - Ray raises all kinds, and each means that it cannot be used
        _log.info("the cluster is lost", exc_info=error)
    os._exit(1)  # an ordinary end would wait for Ray


def _watch(ray: Any, errand: Errand, events: EventPipe) -> None:
    """Report the cards that answer, again and again, each with why it is not to be had."""
    while True:
        asked = {name: host.facts.remote() for name, host in listed(ray).items()}
        end, found = time.monotonic() + LOST_SECONDS, list[dict[str, Any]]()
        for name, answer in asked.items():
            try:
                told = ray.get(answer, timeout=max(0.0, end - time.monotonic()))
            except ray.exceptions.RayError:
                continue
            found.append({**told, "name": name, "away": _why_away(told, errand)})
        events.write({"cards": found})
        time.sleep(_LOOK_SECONDS)


def _why_away(told: dict[str, Any], errand: Errand) -> str:
    if told["version"] != __version__:
        return f"Its machine has Longtake {told['version']}, and this one {__version__}."
    return "" if told["owner"] in ("", errand.owner) else _taken(told["owner"])


def _taken(owner: str) -> str:
    return f"Longtake on {owner} uses it."


def _host(ray: Any, errand: Errand, events: EventPipe) -> None:
    """Keep the actors of this machine's cards as long as the cluster knows them."""
    while errand.mark and not any(one["Alive"] and errand.mark in one["Resources"] for one in ray.nodes()):
        time.sleep(_LOOK_SECONDS)
    hosts = host_cards(ray, errand)
    told = [ray.get(one.facts.remote()) for one in hosts.values()]
    events.write({"cards": ", ".join(one["label"] for one in told)})
    while hosts.keys() <= listed(ray).keys():
        time.sleep(_LOOK_SECONDS)


def _make_all(errand: Errand, orders: Orders, events: EventPipe) -> None:
    """Have the actor of a card make one job after the other; the first failure of Ray ends this."""
    ray = host = None
    while True:
        order = orders.take()
        try:
            ray = ray or connect(errand)
            host = host or ray.get_actor(errand.card)
            why = _make(ray, host, errand, order, events)
        except _Unwritable as error:
            events.send(failed_event(error, order.job))
            continue
        except Exception as error:  # noqa: BLE001 - Ray raises all kinds, and each means that the card is away
            _log.info("the card %s is lost", errand.card, exc_info=error)
            why = "Its machine is out of reach."
        if why:
            events.send(Failed(job=order.job, time=0.0, message=why, remedy="", code="card_away"))
            return


def _make(ray: Any, host: Any, errand: Errand, order: Order, events: EventPipe) -> str:
    """Have the actor make a job, and report its events after their files are in the job's folder.

    Returns:
        Why the card is not to be had; "" if the job has ended. If the actor's engine has died, this process
        ends in the same way.
    """
    folder, number, is_cancelled = Path(order.folder), 0, False
    blocklist = {Trial(one["case"], one["rung"]): one["reason"] for one in order.blocklist}
    begun = host.begin.remote(errand.owner, order.job, _here(changed, folder, {}), blocklist)
    run, there = _answer(ray, host, 0, begun)
    if not run:
        return _taken(there)
    while True:
        if order.cancel.is_cancelled and not is_cancelled:
            is_cancelled = True
            host.cancel.remote(run, order.job)
        answer = _answer(ray, host, run, host.since.remote(run, there, number))
        _here(apply, folder, answer)
        number += len(answer.events)
        for one in answer.events:
            event = from_dict(_moved(one, there, str(folder)))
            events.send(event)
            if event.is_final:
                return ""
        if answer.died is not None:
            code, trial, words = answer.died
            complain(*words.splitlines())
            if trial is not None:
                events.name_trial(trial.case, trial.rung)
            if code is not None and code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code or 1)


class _Unwritable(OSError):
    """The failure to read or write a job's folder here. Ray's own failures are of its base class, too."""


def _here(act: Callable[..., Any], *given: object) -> Any:
    try:
        return act(*given)
    except OSError as error:
        raise _Unwritable(error.errno, error.strerror, error.filename) from error


def _answer(ray: Any, host: Any, run: int, asked: Any) -> Any:
    """Return an answer of the actor, which may take long as long as the actor is there."""
    while not ray.wait([asked], timeout=LOST_SECONDS / 2)[0]:
        ray.get(host.hear.remote(run), timeout=LOST_SECONDS)
    return ray.get(asked)


def _moved(event: dict[str, Any], there: str, here: str) -> dict[str, Any]:
    """Return an event in which the paths of the actor's copy of the folder are those of the folder."""
    return {
        name: here + value[len(there) :] if isinstance(value, str) and value.startswith(there) else value
        for name, value in event.items()
    }


if __name__ == "__main__":
    main()

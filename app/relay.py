"""The near end of the cards of other machines, as a process: `python -m app.relay TASK LOG_LEVEL`.

TASK is an `app.cluster.ClusterTask` as JSON. To make videos, this takes orders and reports events as
`app.engine` does, and has an actor of the cluster carry them out. If the network, the other machine or Ray
fails, the job fails with the code "card_away", and goes back to the queue.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.cluster import ClusterTask, connect, host_cards, list_actors
from app.host import LOST_SECONDS, apply, changed_files
from app.jobs.making.engine_client import EventPipe, Order, Orders, Trial, open_pipes
from app.jobs.stdio import complain
from diffusers_helper import __version__
from diffusers_helper.errors import InputError
from diffusers_helper.events import Failed, from_dict
from diffusers_helper.failures import failed_event

_POLL_SECONDS = 2.0
_log = logging.getLogger(__name__)


def main() -> None:
    (orders, events) = open_pipes(sys.argv[2])
    task = ClusterTask(**json.loads(sys.argv[1]))
    try:
        if task.action == "make":
            _make_all(task, orders, events)
        else:
            (_watch if task.action == "watch" else _host_cards)(connect(task), task, events)
    except InputError as error:
        events.write({"refused": [error.message, error.remedy]})
    except Exception as error:  # noqa: BLE001 - Ray raises all kinds, and each means that it cannot be used
        _log.info("the cluster is lost", exc_info=error)
    os._exit(1)  # an ordinary end would wait for Ray


def _watch(ray: Any, task: ClusterTask, events: EventPipe) -> None:
    while True:
        requests = {name: host.facts.remote() for name, host in list_actors(ray).items()}
        deadline = time.monotonic() + LOST_SECONDS
        descriptions = list[dict[str, Any]]()
        for name, answer in requests.items():
            try:
                description = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.RayError:
                continue
            descriptions.append({**description, "name": name, "away": _why_away(description, task)})
        events.write({"cards": descriptions})
        time.sleep(_POLL_SECONDS)


def _why_away(description: dict[str, Any], task: ClusterTask) -> str:
    if description["version"] != __version__:
        return f"Its machine has Longtake {description['version']}, and this one {__version__}."
    return "" if description["owner"] in ("", task.owner) else _in_use_text(description["owner"])


def _in_use_text(owner: str) -> str:
    return f"Longtake on {owner} uses it."


def _host_cards(ray: Any, task: ClusterTask, events: EventPipe) -> None:
    label = task.node_label
    while label and not any(node["Alive"] and label in node["Resources"] for node in ray.nodes()):
        time.sleep(_POLL_SECONDS)
    hosts = host_cards(ray, task)
    descriptions = [ray.get(host.facts.remote()) for host in hosts.values()]
    events.write({"cards": ", ".join(description["label"] for description in descriptions)})
    while hosts.keys() <= list_actors(ray).keys():
        time.sleep(_POLL_SECONDS)


def _make_all(task: ClusterTask, orders: Orders, events: EventPipe) -> None:
    ray = host = None
    while True:
        order = orders.take()
        try:
            ray = ray or connect(task)
            host = host or ray.get_actor(task.card)
            away_reason = _make(ray, host, task, order, events)
        except _Unwritable as error:
            events.send(failed_event(error, order.job))
            continue
        except Exception as error:  # noqa: BLE001 - Ray raises all kinds, and each means that the card is away
            _log.info("the card %s is lost", task.card, exc_info=error)
            away_reason = "Its machine is out of reach."
        if away_reason:
            events.send(Failed(job=order.job, time=0.0, message=away_reason, remedy="", code="card_away"))
            return


def _make(ray: Any, host: Any, task: ClusterTask, order: Order, events: EventPipe) -> str:
    """Have the actor make a job, and report its events after their files are in the job's folder.

    Returns:
        Why the card cannot be used; "" if the job has ended. If the actor's engine has died, this process
        ends in the same way.
    """
    folder = Path(order.folder)
    number = 0
    is_cancelled = False
    blocklist = {Trial(entry["case"], entry["rung"]): entry["reason"] for entry in order.blocklist}
    files = _with_local_files(changed_files, folder, {})
    request = host.begin.remote(task.owner, order.job, files, blocklist)
    run, remote_folder = _answer(ray, host, 0, request)
    if not run:
        return _in_use_text(remote_folder)
    while True:
        if order.cancel.is_cancelled and not is_cancelled:
            is_cancelled = True
            host.cancel.remote(run, order.job)
        answer = _answer(ray, host, run, host.since.remote(run, remote_folder, number))
        _with_local_files(apply, folder, answer)
        number += len(answer.events)
        for entry in answer.events:
            event = from_dict(_with_local_paths(entry, remote_folder, str(folder)))
            events.send(event)
            if event.is_final:
                return ""
        if answer.death is not None:
            code, trial, errors = answer.death
            complain(*errors.splitlines())
            if trial is not None:
                events.name_trial(trial.case, trial.rung)
            if code is not None and code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code or 1)


class _Unwritable(OSError):
    """The failure to read or write a job's folder here. Ray's own failures are of its base class, too."""


def _with_local_files(function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except OSError as error:
        raise _Unwritable(error.errno, error.strerror, error.filename) from error


def _answer(ray: Any, host: Any, run: int, request: Any) -> Any:
    while not ray.wait([request], timeout=LOST_SECONDS / 2)[0]:
        ray.get(host.hear.remote(run), timeout=LOST_SECONDS)
    return ray.get(request)


def _with_local_paths(event: dict[str, Any], remote: str, local: str) -> dict[str, Any]:
    return {
        name: local + value[len(remote) :] if isinstance(value, str) and value.startswith(remote) else value
        for name, value in event.items()
    }


if __name__ == "__main__":
    main()

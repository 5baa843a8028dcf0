"""The cards of other machines, which Ray finds and watches; see docs/cluster.md.

`python -m app join ADDRESS` makes an actor, `app.host.Host`, for each card of its machine. `app.relay` is the
other end, a child of the program that has the queue: it takes orders and reports events as an engine does. A
job's folder goes to the actor when the job begins, and what has changed comes back with each answer, so that
the folder in the outputs folder stays the truth. Only children are connected with Ray, which ends a process
when its cluster is gone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from app.cards import VideoCard, cards_here, chosen_cards, told_apart
from app.host import Host
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.jobs.stdio import complain, opened, say
from app.machine import module_command
from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import Local
from diffusers_helper.planning.profiles import CAP_VARIABLE, Machine, profile_in_force
from diffusers_helper.units import GB

_log = logging.getLogger(__name__)
NAMESPACE = "longtake"
_FORGET_SECONDS = 60.0  # the time after which the cluster has forgotten a machine that is gone
_AGAIN_SECONDS = 5.0  # the pause before another try to reach the cluster
_GUIDE = "Read docs/cluster.md."


@dataclass(frozen=True, slots=True)
class Errand:
    """What a process needs to know that is connected with the cluster, and gets as JSON.

    Attributes:
        is_public: Whether the address may lie outside of private networks.
        does: What the process does: "watch" the cards, "make" videos on one, or "host" those of its machine.
        owner: The name of the program for which it does so, which no other one has.
        machine: The name of the machine in the names of its cards.
        devices: The machine's cards, as for --devices.
        mark: The name by which its node is found; "" for a node that runs already.
        card: The name of the actor for the card.
    """

    address: str
    is_public: bool = False
    does: str = "watch"
    owner: str = field(default_factory=lambda: f"{socket.gethostname()} ({secrets.token_hex(2)})")
    machine: str = field(default_factory=lambda: socket.gethostname().partition(".")[0])
    devices: str = "auto"
    mark: str = ""
    card: str = ""

    def command(self) -> tuple[str, ...]:
        return *module_command("app.relay", os.environ)[0], json.dumps(asdict(self))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what a process with this errand writes, until it ends, which it also does with this one.

        Raises:
            InputError: If the process refuses the cluster.
        """
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        words = None if level in ("INFO", "DEBUG") else subprocess.DEVNULL  # those of Ray are many
        with subprocess.Popen(
            (*self.command(), level), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
            env=_environment(),
        ) as process:  # fmt: skip
            for line in opened(process.stdout):
                told = json.loads(line)
                if words := told.get("refused"):
                    raise InputError(*words)
                yield told


def _environment() -> dict[str, str]:
    # Ray would hide the cards from an actor for which it does not count them.
    return module_command("app", os.environ)[1] | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def ray_here() -> Any:
    """Return Ray's module.

    Raises:
        InputError: If Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise InputError(
            "Ray is not installed, with which machines work together.",
            "Install it in the checkout: .venv/bin/pip install -e '.[ray]'",
        ) from error


def connect(errand: Errand) -> Any:
    """Connect this process to the cluster, and return Ray's module.

    Raises:
        InputError: If Ray is not installed, or if the cluster is not in a private network.
        ConnectionError, RuntimeError: If the cluster is out of reach.
    """
    ray = ray_here()
    passed = ("PYTHONPATH", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
    ray.init(
        address=errand.address, namespace=NAMESPACE, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {name: _environment()[name] for name in passed}},
    )  # fmt: skip
    check_private(ray.get_runtime_context().gcs_address, is_public=errand.is_public)
    return ray


def check_cluster(address: str, environ: Mapping[str, str], *, is_public: bool = False) -> None:
    """Refuse a cluster that strangers could use, since whoever reaches it can run programs on its machines.

    Raises:
        InputError: If it asks for no token, or is not in a private network, or if Ray cannot start.
    """
    if "ROCR_VISIBLE_DEVICES" in environ:
        raise InputError(
            "ROCR_VISIBLE_DEVICES is set, with which Ray does not start.", "Name cards by --devices."
        )
    if environ.get("RAY_AUTH_MODE") != "token":
        raise InputError("RAY_AUTH_MODE is not token, so anybody could use the cluster.", _GUIDE)
    ray_here()
    if address != "auto":  # that of a cluster that runs here is known when a process is connected with it
        check_private(address, is_public=is_public)


def check_private(address: str, *, is_public: bool) -> None:
    """Refuse an address outside of private networks, unless a user has allowed it.

    Raises:
        InputError: If it is one, or no address.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = {ipaddress.ip_address(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InputError(f"{address[:60]!r} is no address; expected HOST:PORT or auto.", _GUIDE) from error
    if not is_public and not all(one.is_private for one in found):
        raise InputError(
            f"{host} is not in a private network.", f"{_GUIDE} --public or --ray-public allows it."
        )


def join(errand: Errand) -> None:
    """Give this machine's cards to the queue at an address, again after each loss of it, until Ctrl-C.

    Raises:
        InputError: If the cards or the cluster are refused.
    """
    chosen_cards(errand.devices, cards_here())
    errand, is_lost = replace(errand, does="host", mark=f"longtake-{secrets.token_hex(4)}"), False
    while True:
        for told in _hosted(errand):
            say(f"These cards make the videos of {errand.address} until you press Ctrl-C: {told['cards']}.")
            is_lost = False
        if not is_lost:
            complain(
                f"The cluster at {errand.address} is out of reach. This is tried again until it is back."
            )
        is_lost = True
        time.sleep(_AGAIN_SECONDS)


def _hosted(errand: Errand) -> Iterator[dict[str, Any]]:
    """Start a node of Ray and the actors of its cards, and yield their names, until they are lost."""
    start = (
        str(Path(sys.executable).with_name("ray")), "start", f"--address={errand.address}", "--num-gpus=0",
        f"--resources={json.dumps({errand.mark: 1})}", "--disable-usage-stats", "--block",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        if errand.address == "auto":  # it runs here
            errand = replace(errand, mark="")
        else:
            node = subprocess.Popen(
                start, env=_environment(), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            stack.callback(node.wait)
            stack.callback(node.terminate)
        yield from errand.lines()


def host_cards(ray: Any, errand: Errand) -> dict[str, Any]:
    """Make an actor for each of the machine's cards on its node, and return them by their names.

    Raises:
        InputError: If another machine has given the same names to its cards.
    """
    here = ray.get_runtime_context().get_node_id()
    if errand.mark:
        here = next(one["NodeID"] for one in ray.nodes() if one["Alive"] and errand.mark in one["Resources"])
    strategies = import_module("ray.util.scheduling_strategies")
    place = strategies.NodeAffinitySchedulingStrategy(node_id=here, soft=False)
    variables = chosen_cards(errand.devices, cards_here())
    cards = told_apart([EngineProcess(variables=one).card for one in variables])
    named = {f"{errand.machine}-{card.key}": (one, card) for one, card in zip(variables, cards, strict=True)}
    end = time.monotonic() + _FORGET_SECONDS
    while listed(ray).keys() & named.keys():
        if time.monotonic() > end:
            raise InputError(
                f"Another machine has joined as {errand.machine}.", "Give this one another name by --name."
            )
        time.sleep(1.0)
    kind = ray.remote(max_concurrency=8, num_cpus=0)(Host)
    return {
        name: kind.options(name=name, scheduling_strategy=place).remote(one, card.label, errand.machine)
        for name, (one, card) in named.items()
    }


def listed(ray: Any) -> dict[str, Any]:
    """Return the actors of the cluster's cards, by name."""
    found = dict[str, Any]()
    for one in ray.util.list_named_actors(all_namespaces=True):
        if one["namespace"] == NAMESPACE:
            with contextlib.suppress(ValueError):  # it has just ended
                found[one["name"]] = ray.get_actor(one["name"], namespace=NAMESPACE)
    return found


def watch_cards(errand: Errand, service: JobService, ended: threading.Event) -> None:
    """Give a service the cards of a cluster, as they come and go, until `ended` is set.

    Meanwhile, jobs that fit no card wait for one.
    """
    cards, known, lost = dict[str, VideoCard](), list[str](), [""]
    away = f"The cluster at {errand.address} is out of reach."
    while not ended.is_set():
        try:
            for told in errand.lines():
                _see(errand, service, cards, told["cards"])
                if known != (known := [card.away for card in cards.values()]) or lost:
                    service.expect_cards("No machine of the cluster has one now.")
                lost = list[str]()
                if ended.is_set():
                    return
        except InputError as error:
            away = error.message
        if lost != (lost := [away]) and not ended.is_set():
            _log.warning("%s Its cards are left out until it is back.", away)
        for card in cards.values():
            card.away = away
        service.expect_cards(away)
        ended.wait(_AGAIN_SECONDS)


def _see(
    errand: Errand, service: JobService, cards: dict[str, VideoCard], found: list[dict[str, Any]]
) -> None:
    for name in cards.keys() - {told["name"] for told in found}:
        cards[name].away = "Its machine is out of reach."
    for told in found:
        seen, name = remote_card(told), told["name"]
        if name not in cards:
            cards[name] = seen
            command = replace(errand, does="make", card=name).command()
            service.add_engine(EngineProcess(command, _environment(), card=seen))
        cards[name].update(seen)


def remote_card(told: dict[str, Any]) -> VideoCard:
    """Return the card that an actor has described."""
    facts, key = Machine(**told["facts"]), re.sub("[^a-z0-9]", "-", told["name"].lower())
    local = Local({CAP_VARIABLE: str(told["cap_bytes"] / GB)} if told["cap_bytes"] else {})
    return VideoCard(
        key, told["label"], profile_in_force(facts, local), local, f"{facts.name} of {told['label']}",
        machine=told["machine"], models=told["models"], away=told["away"], told_bytes=told["used_bytes"],
    )  # fmt: skip

"""The cards of other machines, which Ray finds and watches; see docs/cluster.md.

`longtake join ADDRESS` makes an actor, `app.host.Host`, for each card of its machine. `app.relay` is the
other end, a child of the program that has the queue: it takes orders and reports events as an engine does. A
job's folder goes to the actor when the job begins, and what has changed comes back with each answer, so that
the folder in the outputs folder stays the truth. Only children are connected with Ray, which ends a process
when its cluster is gone.
"""

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

from app.cards import VideoCard, list_cards, parse_devices, with_unique_keys
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
_RETRY_SECONDS = 5.0  # the pause before another try to reach the cluster
_GUIDE = "Read docs/cluster.md."


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """The task of a process that is connected with the cluster, which it gets as JSON.

    Attributes:
        is_public: Whether the address may lie outside of private networks.
        action: "watch" the cards, "make" videos on one, or "host" those of its machine.
        owner: The name of the program that has the queue, which no other program has.
        machine: The prefix of the names of its cards.
        node_label: The label by which its node is found; "" for a node that runs already.
        card: The name of the actor for the card.
    """

    address: str
    is_public: bool = False
    action: str = "watch"
    owner: str = field(default_factory=lambda: f"{socket.gethostname()} ({secrets.token_hex(2)})")
    machine: str = field(default_factory=lambda: socket.gethostname().partition(".")[0])
    devices: str = "auto"
    node_label: str = ""
    card: str = ""

    def command(self) -> tuple[str, ...]:
        return *module_command("app.relay", os.environ)[0], json.dumps(asdict(self))

    def lines(self) -> Iterator[dict[str, Any]]:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        words = None if level in ("INFO", "DEBUG") else subprocess.DEVNULL  # those of Ray are many
        with subprocess.Popen(
            (*self.command(), level), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
            env=_environment(),
        ) as process:  # fmt: skip
            for line in opened(process.stdout):
                message = json.loads(line)
                if words := message.get("refused"):
                    raise InputError(*words)
                yield message


def _environment() -> dict[str, str]:
    # Ray would hide the cards from an actor for which it does not count them.
    return module_command("app", os.environ)[1] | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise InputError(
            "Ray is not installed, with which machines work together.",
            "Install it in the checkout: .venv/bin/pip install -e '.[ray]'",
        ) from error


def connect(task: ClusterTask) -> Any:
    ray = import_ray()
    inherited = ("PYTHONPATH", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
    ray.init(
        address=task.address, namespace=NAMESPACE, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {name: _environment()[name] for name in inherited}},
    )  # fmt: skip
    check_private(ray.get_runtime_context().gcs_address, is_public=task.is_public)
    return ray


def check_cluster(address: str, environ: Mapping[str, str], *, is_public: bool = False) -> None:
    """Refuse a cluster that anybody could use, since whoever reaches it can run programs on its machines."""
    if "ROCR_VISIBLE_DEVICES" in environ:
        raise InputError(
            "ROCR_VISIBLE_DEVICES is set, with which Ray does not start.", "Name cards by --devices."
        )
    if environ.get("RAY_AUTH_MODE") != "token":
        raise InputError("RAY_AUTH_MODE is not token, so anybody could use the cluster.", _GUIDE)
    import_ray()
    if address != "auto":  # that of a cluster that runs here is known when a process is connected with it
        check_private(address, is_public=is_public)


def check_private(address: str, *, is_public: bool) -> None:
    host = address.rpartition(":")[0].strip("[]")
    try:
        addresses = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InputError(f"{address[:60]!r} is no address; expected HOST:PORT or auto.", _GUIDE) from error
    if not is_public and not all(address.is_private for address in addresses):
        raise InputError(
            f"{host} is not in a private network.", f"{_GUIDE} --public or --ray-public allows it."
        )


def join(task: ClusterTask) -> None:
    """Give this machine's cards to the queue at an address, again after each loss of it, until Ctrl-C."""
    parse_devices(task.devices, list_cards())
    task = replace(task, action="host", node_label=f"longtake-{secrets.token_hex(4)}")
    is_lost = False
    while True:
        for message in _hosted_cards(task):
            say(f"These cards make the videos of {task.address} until you press Ctrl-C: {message['cards']}.")
            is_lost = False
        if not is_lost:
            complain(f"The cluster at {task.address} is out of reach. This is tried again until it is back.")
        is_lost = True
        time.sleep(_RETRY_SECONDS)


def _hosted_cards(task: ClusterTask) -> Iterator[dict[str, Any]]:
    """Start a node of Ray and the actors of its cards, and yield their names, until they are lost."""
    command = (
        str(Path(sys.executable).with_name("ray")), "start", f"--address={task.address}", "--num-gpus=0",
        f"--resources={json.dumps({task.node_label: 1})}", "--disable-usage-stats", "--block",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        if task.address == "auto":  # it runs here
            task = replace(task, node_label="")
        else:
            node = subprocess.Popen(
                command, env=_environment(), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            stack.callback(node.wait)
            stack.callback(node.terminate)
        yield from task.lines()


def host_cards(ray: Any, task: ClusterTask) -> dict[str, Any]:
    """Make an actor for each of the machine's cards on its node, and return them by their names."""
    node_id = ray.get_runtime_context().get_node_id()
    if task.node_label:
        nodes = (node for node in ray.nodes() if node["Alive"])
        node_id = next(node["NodeID"] for node in nodes if task.node_label in node["Resources"])
    strategies = import_module("ray.util.scheduling_strategies")
    strategy = strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    engines = parse_devices(task.devices, list_cards())
    cards = with_unique_keys([EngineProcess(variables=variables).card for variables in engines])
    names = [f"{task.machine}-{card.key}" for card in cards]
    deadline = time.monotonic() + _FORGET_SECONDS
    while list_actors(ray).keys() & set(names):
        if time.monotonic() > deadline:
            raise InputError(
                f"Another machine has joined as {task.machine}.", "Give this one another name by --name."
            )
        time.sleep(1.0)
    actor_class = ray.remote(max_concurrency=8, num_cpus=0)(Host)
    actors = dict[str, Any]()
    for name, variables, card in zip(names, engines, cards, strict=True):
        options = actor_class.options(name=name, scheduling_strategy=strategy)
        actors[name] = options.remote(variables, card.label, task.machine)
    return actors


def list_actors(ray: Any) -> dict[str, Any]:
    actors = dict[str, Any]()
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE:
            with contextlib.suppress(ValueError):  # it has just ended
                actors[entry["name"]] = ray.get_actor(entry["name"], namespace=NAMESPACE)
    return actors


def watch_cards(task: ClusterTask, service: JobService, is_over: threading.Event) -> None:
    """Give a service the cards of a cluster, as they come and go, until `is_over` is set."""
    cards = dict[str, VideoCard]()
    away_reasons = list[str]()
    reported = [""]
    while not is_over.is_set():
        away = f"The cluster at {task.address} is out of reach."
        try:
            for message in task.lines():
                _update_cards(task, service, cards, message["cards"])
                if away_reasons != (away_reasons := [card.away for card in cards.values()]) or reported:
                    service.expect_cards("No machine of the cluster has one now.")
                reported = list[str]()
                if is_over.is_set():
                    return
        except InputError as error:
            away = error.message
        if reported != (reported := [away]) and not is_over.is_set():
            _log.warning("%s Its cards are left out until it is back.", away)
        for card in cards.values():
            card.away = away
        service.expect_cards(away)
        is_over.wait(_RETRY_SECONDS)


def _update_cards(
    task: ClusterTask, service: JobService, cards: dict[str, VideoCard], descriptions: list[dict[str, Any]]
) -> None:
    for name in cards.keys() - {description["name"] for description in descriptions}:
        cards[name].away = "Its machine is out of reach."
    for description in descriptions:
        card = remote_card(description)
        name = description["name"]
        if name not in cards:
            cards[name] = card
            command = replace(task, action="make", card=name).command()
            service.add_engine(EngineProcess(command, _environment(), card=card))
        cards[name].update(card)


def remote_card(description: dict[str, Any]) -> VideoCard:
    machine = Machine(**description["facts"])
    key = re.sub("[^a-z0-9]", "-", description["name"].lower())
    label = description["label"]
    local = Local({CAP_VARIABLE: str(description["cap_bytes"] / GB)} if description["cap_bytes"] else {})
    return VideoCard(
        key, label, profile_in_force(machine, local), local, f"{machine.name} of {label}",
        machine=description["machine"], models=description["models"], away=description["away"],
        reported_bytes=description["used_bytes"],
    )  # fmt: skip

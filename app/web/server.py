"""The program that serves the page: its arguments, its start and its orderly end."""

import argparse
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Sequence

from app.bench.facts import hint, report_so_far
from app.cards import list_cards, parse_devices
from app.cluster import ClusterTask, check_cluster, watch_cards
from app.commands.arguments import (
    Parser,
    add_find_mode,
    add_outputs,
    apply_find_mode,
    run_parsed,
)  # fmt: skip
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.jobs.stdio import complain, say
from app.machine import this_machine, this_profile
from app.reading.process import reading_elsewhere
from app.starting import end_within
from app.web.connections import Repeats
from app.web.serving import DEFAULT_PORT, close_page, is_local, open_page
from diffusers_helper import __version__
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import expanded_path
from diffusers_helper.machine.signals import handle
from diffusers_helper.models.registry import DEFAULT_MODEL, model_names
from diffusers_helper.planning.profiles import CAP_VARIABLE, PRESERVED_VARIABLE
from diffusers_helper.request import SETTINGS
from diffusers_helper.setting import number_or_text

AUTH_VARIABLE = "LONGTAKE_AUTH"
_ENGINE_SECONDS, _END_SECONDS, _LOOK_SECONDS = 3.0, 4.5, 0.5
_HOST_NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?", re.IGNORECASE)
_COMPANY = (
    "Another Longtake program makes the jobs in {outputs}: this page shows and queues them, and makes them "
    "itself once the other program has ended."
)


def main(argv: Sequence[str] | None = None, program: str = "demo_gradio.py") -> int:
    return run_parsed(lambda: page_parser(program), argv)


def _run(arguments: argparse.Namespace) -> int:
    auth = _auth(arguments)
    _take_memory_settings(arguments)
    apply_find_mode(arguments)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeats())
    if arguments.ray:
        check_cluster(arguments.ray, os.environ, is_public=arguments.ray_public)
    port = _free_port(arguments.server, arguments.port)
    with reading_elsewhere():
        return _serve(arguments, auth, port)


def page_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Longtake's page: FramePack video that finishes, on Radeon cards.",
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--version", action="version", version=f"Longtake {__version__}")
    parser.add_argument(
        "--server", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on; one that other machines can reach needs --auth (default: 127.0.0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N",
        help=f"port to listen on; 0 for any that is free (default: {DEFAULT_PORT})",
    )  # fmt: skip
    parser.add_argument("--share", action="store_true", help="get a public address from gradio; needs --auth")
    parser.add_argument("--inbrowser", action="store_true", help="open the page in the browser")
    add_outputs(parser, "; the only one that the page serves")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="NAME|DIR",
        help=f"preselected model: {', '.join(model_names())}, or a folder with a model's parts",
    )  # fmt: skip
    for name, variable, text in (
        ("--vram-cap-gb", CAP_VARIABLE, "most GPU memory that a job may use"),
        ("--preserved-gb", PRESERVED_VARIABLE, "GPU memory that a job's weights leave free"),
    ):
        parser.add_argument(
            name, type=number_or_text, metavar="GB",
            help=f"{text} unless its settings say otherwise (default: {variable}, or by the card)",
        )  # fmt: skip
    parser.add_argument(
        "--devices", metavar="LIST",
        help="cards that make videos at the same time, each one its own: auto for all, or names with commas "
        "between them (0,1 by the order on the bus, PCI addresses, UUIDs, cpu), each with =GB for a memory "
        "limit of its own; 0+1 for one video on two cards (default: the first card)",
    )  # fmt: skip
    parser.add_argument(
        "--ray", metavar="ADDRESS",
        help="also use the cards that join a Ray cluster, at HOST:PORT or auto for one that runs here",
    )  # fmt: skip
    parser.add_argument(
        "--ray-public", action="store_true", help="allow a cluster outside of private networks",
    )  # fmt: skip
    add_find_mode(parser)
    parser.add_argument("--verbose", action="store_true", help="log each action to standard error")
    parser.add_argument(
        "--auth", metavar="USER:PASSWORD",
        help=f"ask for a password; better set {AUTH_VARIABLE} in the environment, where no list of "
        "processes shows it",
    )  # fmt: skip
    parser.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="a further name under which the page is reached, such as a reverse proxy's; may be repeated",
    )  # fmt: skip
    return parser


def _take_memory_settings(arguments: argparse.Namespace) -> None:
    """Put the arguments about memory into the environment, which the page and the engine read."""
    for name, variable in (("vram_cap_gb", CAP_VARIABLE), ("preserved_gb", PRESERVED_VARIABLE)):
        value = SETTINGS[name].check(getattr(arguments, name))
        if value is not None:
            os.environ[variable] = str(value)
    this_profile(os.environ)


def _auth(arguments: argparse.Namespace) -> tuple[str, str] | None:
    credentials = arguments.auth if arguments.auth is not None else os.environ.get(AUTH_VARIABLE)
    if credentials is not None:
        user, _, password = credentials.partition(":")
        if not user or not password:
            raise InputError(
                "auth is not of the form USER:PASSWORD; expected both, neither empty.",
                f"Set --auth or {AUTH_VARIABLE} that way.",
            )
        return user, password
    if arguments.share or not is_local(arguments.server):
        reach = "--share makes" if arguments.share else f"--server {arguments.server} makes"
        raise InputError(
            f"{reach} the page reachable from other machines; expected a password for that.",
            f"Set --auth USER:PASSWORD or {AUTH_VARIABLE}.",
        )
    return None


def _free_port(server: str, port: int) -> int:
    if not 0 <= port <= 65535:
        raise InputError(f"port is {port}; expected a number from 0 to 65535.", "Choose another --port.")
    try:
        family, kind, _, _, address = socket.getaddrinfo(server, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"server is {server!r}; expected an address of this machine.",
            "Leave --server out, or set 0.0.0.0 for all.",
        ) from error
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise InputError(
                f"Port {port} on {server} cannot be used ({error.strerror}).",
                f"Choose another one, such as --port {port + 1 if port < 65535 else 8000}, "
                "or end the program that uses it.",
            ) from error
        return probe.getsockname()[1]


def _serve(arguments: argparse.Namespace, auth: tuple[str, str] | None, port: int) -> int:
    outputs = expanded_path(arguments.outputs, "outputs")
    for name in arguments.allowed_host:
        if not _HOST_NAME.fullmatch(name):
            raise InputError(
                f"allowed-host is {short_repr(name)}; expected a name such as video.example.org, without "
                "http://, port or path.",
                "Give the name alone.",
            )
    cards = parse_devices(arguments.devices, list_cards()) if arguments.devices else [{}]
    engines = [EngineProcess(variables=variables) for variables in cards]
    largest = max((engine.card.profile for engine in engines), key=lambda profile: profile.cap_bytes.value)
    service = JobService(outputs, *engines)
    service.jobs(limit=1)  # a folder that cannot be written is refused before anything is served
    seen, ended = list[int](), threading.Event()

    def stop(number: int, frame: object) -> None:
        if seen:
            os._exit(128 + number)  # the engine ends with this process
        seen.append(number)

    handle(stop)
    page = None
    try:
        page, url = open_page(
            service, outputs, model=arguments.model, server=arguments.server, port=port,
            share=arguments.share, inbrowser=arguments.inbrowser, auth=auth,
            allowed_hosts=arguments.allowed_host, profile=largest,
        )  # fmt: skip
        if arguments.ray:
            service.expect_cards("The other machines are not there yet.")
        # The engine starts only now, because it would slow down the start of the page.
        service.start(warm=True)
        if arguments.ray:
            watch = (ClusterTask(arguments.ray, arguments.ray_public), service, ended)
            threading.Thread(target=watch_cards, args=watch, name="cluster", daemon=True).start()
        # StabilityMatrix and other starters of programs wait for gradio's own words.
        say(f"Running on local URL: {page.local_url}")
        if page.network_url not in ("", page.local_url):
            say(f"For other machines: {page.network_url} (with the password, if no firewall is in the way)")
        if url != page.local_url:
            say(f"Running on public URL: {url}")
        say("Press Ctrl-C to end Longtake.")
        if (offer := hint(this_machine(os.environ))) and not report_so_far().exists():
            complain(f"{offer[0].upper()}{offer[1:]}.")
        if service.crew.is_follower:
            complain(_COMPANY.format(outputs=outputs))
        while not seen:  # a handler must not set an event: it may run while its thread has the event's lock
            time.sleep(_LOOK_SECONDS)
        end_within(_END_SECONDS, 0)
    finally:
        ended.set()
        service.stop(_ENGINE_SECONDS)
        if page is not None:
            close_page(page)
    return 0

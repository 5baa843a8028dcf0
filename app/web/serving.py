"""The page's web server, which is gradio's own behind the guard."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.jobs.service import JobService
from app.jobs.storage.database import DATABASE_FOLDER
from app.machine import cache_folder, this_local, this_profile
from app.redact import name_folder
from app.web.guard import Guard, Hosts
from app.web.login import Login
from app.web.served_files import ServedFiles, UploadRoom, page_file
from diffusers_helper.conditions.picture import MAX_BYTES
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path
from diffusers_helper.models.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from app.ui.page import Page
    from app.web.gradio_server import GuardedServer
    from diffusers_helper.planning.profiles import Profile

DEFAULT_PORT = 7860
UPLOAD_BYTES = 2 * MAX_BYTES  # above the limit for pictures, whose refusal has a clearer message
_SERVER_SECONDS = 0.5
_ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    # Otherwise anyone who connects from this machine, like all visitors behind a proxy, could write another
    # address into a header. For a trusted proxy, a user sets this variable as uvicorn's documentation says.
    "FORWARDED_ALLOW_IPS": "",
    # Otherwise gradio rebuilds a table of all calls after each call, for a route that the guard closes.
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9),
}


def is_local(server: str) -> bool:
    """Return whether only this machine can reach a server on that address."""
    if server == "localhost":
        return True
    try:
        return ipaddress.ip_address(server).is_loopback
    except ValueError:
        return False


def open_page(
    service: JobService,
    outputs: Path,
    *,
    model: str = DEFAULT_MODEL,
    server: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    share: bool = False,
    inbrowser: bool = False,
    auth: tuple[str, str] | None = None,
    allowed_hosts: Sequence[str] = (),
    profile: Profile | None = None,
) -> tuple[GuardedServer, str]:
    """Serve the page in a thread.

    Args:
        auth: The user and the password; None for a page without a login.
        allowed_hosts: Names, besides this machine's own, under which the page may be requested.
        profile: The profile to plan with; by default this machine's.

    Returns:
        The server, which `close_page` takes, and its address.
    """
    uploads = _take_environment()
    from app.ui.catalogue import Catalogue
    from app.ui.generate import MOST_WAITING
    from app.ui.page import build_page
    from app.ui.planner import Planner
    from app.web.gradio_server import GuardedServer

    profile, local = profile or this_profile(os.environ), this_local(os.environ)
    outputs = expanded_path(outputs, "outputs").absolute()
    name_folder(outputs, "outputs")
    hosts = Hosts(is_local(server), _own_names(server), {name.lower() for name in allowed_hosts})
    page_server, login = GuardedServer(), Login(*auth) if auth else None
    planner = Planner(profile, local)
    files, room = ServedFiles(outputs, uploads, planner.pictures), UploadRoom(uploads, UPLOAD_BYTES)
    room.make_room()
    guard = Guard(page_server.unguarded, hosts=hosts, files=files, uploads=room, login=login)
    page = build_page(service, Catalogue.starting_with(model, planner))
    page_server.guard = guard
    _add_routes(page_server, page, files, login)
    _, page_server.local_url, public_url = page_server.launch(
        prevent_thread_lock=True, server_name=server, server_port=port, share=share, inbrowser=inbrowser,
        # From here gradio copies the answer of /generate; its route for files is closed.
        allowed_paths=[str(outputs)], blocked_paths=[str(outputs / DATABASE_FOLDER)],
        max_threads=2 * MOST_WAITING,  # so that calls beyond those that may wait are answered, too
        max_file_size=UPLOAD_BYTES, quiet=True, ssr_mode=False, run_history=False,
        _frontend=False,  # otherwise gradio asks this server for a page, and gives up after a few seconds
    )  # fmt: skip
    page_server.rest()
    if public_url:
        hosts.trusted.add(urlsplit(public_url).hostname or "")
    return page_server, public_url or page_server.local_url


def _add_routes(server: GuardedServer, page: Page, files: ServedFiles, login: Login | None) -> None:
    server.add_routers(page.routers)
    for endpoint in page.endpoints:
        # Jobs have their own queue: a call that waits in Gradio's must not hold up another.
        server.api(
            endpoint.function,
            name=endpoint.name,
            description=endpoint.description,
            queue=endpoint.is_queued,
            concurrency_limit=None,
        )

    async def document(request: Request) -> Response:
        return HTMLResponse(page.document) if login is None or login.knows(request) else login.page()

    def of_path(answer: Callable[[str], Response]) -> Callable[[Request], Response]:
        return lambda request: answer(request.path_params["path"])

    routes = {
        "/": document, "/scripts/{path:path}": of_path(page_file),
        "/jobs/{path:path}": of_path(files.of_job),
        "/gradio_api/file=uploads/{path:path}": of_path(files.upload),
    }  # fmt: skip
    for path, answer in routes.items():
        server.add_route(path, answer, methods=["GET", "HEAD"])
    if login is not None:
        server.add_route("/login", login.enter, methods=["POST"])
        server.add_route("/logout", login.leave, methods=["GET"])


def _take_environment() -> Path:
    """Set the variables that gradio reads, unless a user has set them, and return the folder for uploads."""
    for name, value in {**_ENVIRONMENT, "GRADIO_TEMP_DIR": str(cache_folder() / "page")}.items():
        os.environ.setdefault(name, value)
    folder = Path(os.environ["GRADIO_TEMP_DIR"]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder for uploads, {folder}, cannot be made ({error.strerror}); expected one to write to.",
            "Set HOME, XDG_CACHE_HOME or GRADIO_TEMP_DIR to a folder that can be written.",
        ) from error
    return folder


def close_page(server: GuardedServer) -> None:
    """Close the server without waiting long for browsers that keep a connection open."""
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(_SERVER_SECONDS)


def _own_names(server: str) -> frozenset[str]:
    if is_local(server):
        return frozenset()
    name = socket.gethostname().lower()
    return frozenset({server.lower(), name, f"{name.partition('.')[0]}.local"})

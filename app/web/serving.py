"""The page's web server, which is gradio's own behind the guard."""

from __future__ import annotations

import contextlib
import os
import webbrowser
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.jobs.service import JobService
from app.machine import cache_folder, this_local, this_profile
from app.redact import name_folder
from app.web.addresses import is_local, own_names, page_addresses
from app.web.connections import WebServer
from app.web.guard import Guard, Hosts
from app.web.login import Login
from app.web.served_files import ServedFiles, UploadRoom, page_file
from diffusers_helper import __version__
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path
from diffusers_helper.models.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from app.ui.page import Page
    from app.web.gradio_server import Calls
    from diffusers_helper.planning.profiles import Profile

API_DOCUMENT = "/api/openapi.json"
DEFAULT_PORT = 7860
UPLOAD_BYTES = 2**30  # a LoRA may have some hundred megabytes
_SERVER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PageServer:
    web: WebServer
    calls: Calls
    applications: tuple[FastAPI, ...]
    local_url: str
    network_url: str


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
) -> tuple[PageServer, str]:
    """Serve the page in a thread, and return its server and its address; `profile` is what it plans with."""
    uploads = _take_environment()
    with _without_proxies():
        from app.ui.catalogue import Catalogue
        from app.ui.page import build_page
        from app.ui.planner import Planner
        from app.web.gradio_server import Calls, share_address

    profile, local = profile or this_profile(os.environ), this_local(os.environ)
    outputs = expanded_path(outputs, "outputs").absolute()
    name_folder(outputs, "outputs")
    hosts = Hosts(is_local(server), own_names(server), {name.lower() for name in allowed_hosts})
    login = Login(*auth) if auth else None
    planner = Planner(profile, local)
    files, room = ServedFiles(outputs, uploads, planner.pictures), UploadRoom(uploads, UPLOAD_BYTES)
    room.make_room()
    page = build_page(service, Catalogue.starting_with(model, planner), has_password=login is not None)
    calls = Calls(page.endpoints)
    page_app, gradio_app = _page_application(page, files, login), calls.application(outputs, UPLOAD_BYTES)
    guard = Guard(page_app, gradio_app, hosts=hosts, files=files, uploads=room, login=login)
    web = WebServer(guard, server, port)
    web.start()
    local_url, network_url = page_addresses(server, port)
    public_url = share_address(port) if share else ""
    if public_url:
        hosts.trusted.add(urlsplit(public_url).hostname or "")
    if inbrowser:
        webbrowser.open(public_url or local_url)
    return PageServer(web, calls, (page_app, gradio_app), local_url, network_url), public_url or local_url


def _page_application(page: Page, files: ServedFiles, login: Login | None) -> FastAPI:
    from app.ui.api import error_handlers

    app = FastAPI(
        title="Longtake", version=__version__, openapi_url=API_DOCUMENT, docs_url=None, redoc_url=None,
        exception_handlers=error_handlers(),
    )  # fmt: skip
    app.include_router(page.router)

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
        app.add_route(path, answer, methods=["GET", "HEAD"])
    if login is not None:
        app.add_route("/login", login.enter, methods=["POST"])
        app.add_route("/logout", login.leave, methods=["GET"])
    return app


@contextlib.contextmanager
def _without_proxies() -> Generator[None]:
    """Hide the proxies from Gradio, whose import makes an HTTP client and fails for some of them."""
    proxies = {name: os.environ.pop(name) for name in [*os.environ] if name.lower().endswith("_proxy")}
    try:
        yield
    finally:
        os.environ.update(proxies)


def _take_environment() -> Path:
    """Set the variables that gradio reads, unless a user has set them, and return the folder for uploads."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    # Otherwise gradio rebuilds a table of all calls after each call, for a route that the guard closes.
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
    os.environ.setdefault("GRADIO_TEMP_DIR", str(cache_folder() / "page"))
    folder = Path(os.environ["GRADIO_TEMP_DIR"]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder for uploads, {folder}, cannot be made ({error.strerror}); expected one to write to.",
            "Set HOME, XDG_CACHE_HOME or GRADIO_TEMP_DIR to a folder that can be written.",
        ) from error
    return folder


def close_page(page: PageServer) -> None:
    page.calls.close(verbose=False)
    page.web.close(_SERVER_SECONDS)

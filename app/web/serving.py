"""The page's web server, which is gradio's own behind the guard."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.jobs.service import JobService
from app.machine import cache_folder, this_local, this_profile
from app.redact import name_folder
from app.web.calls import Calls
from app.web.guard import Guard, Hosts
from app.web.served_files import ServedFiles, UploadRoom
from diffusers_helper.conditions.picture import MAX_BYTES
from diffusers_helper.errors import InputError
from diffusers_helper.files import given_path
from diffusers_helper.models.registry import DEFAULT_MODEL
from diffusers_helper.planning.estimates import Calibration

if TYPE_CHECKING:
    import gradio as gr

    from diffusers_helper.planning.profiles import Profile

DEFAULT_PORT = 7860
UPLOAD_BYTES = 2 * MAX_BYTES  # above the limit for pictures, whose refusal has a clearer message
# Gradio gets more slots than clients can hold: 100 pages, 500 waiting calls and 1000 that are being stored.
_SLOTS = 2000
_SERVER_SECONDS = 0.5
# Clients such as httpx use an idle connection for 5 s, after which uvicorn closes it by default. A call that
# is sent at that very moment would be lost.
_KEEP_ALIVE_SECONDS = 75
# With gradio's own pauses of 1 and 10 milliseconds between two checks for calls, an idle page uses 6 % of a
# core.
_CALL_SECONDS, _PROGRESS_SECONDS = 0.03, 0.5


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
) -> tuple[gr.Blocks, str]:
    """Serve the page in a thread.

    Args:
        outputs: The service's folder. The page serves the media of the jobs in it.
        auth: The user and the password; None for a page without a login.
        allowed_hosts: Names, besides this machine's own, under which the page may be requested.
        profile: The profile to plan with; by default this machine's.

    Returns:
        The page, which `close_page` takes, and its address.

    Raises:
        InputError: If the model, the folder for uploads or the calibration cannot be used.
    """
    _take_environment()
    from app.ui.catalogue import Catalogue
    from app.ui.page import build_page
    from app.ui.planner import Planner
    from app.ui.theme import CSS_FILES, ICON_FILE, theme

    profile, local = profile or this_profile(os.environ), this_local(os.environ)
    Calibration.read(local.calibration, profile.machine.card)  # refuses at once a file that no plan can use
    page = _let_rest(build_page(service, Catalogue.starting_with(model, Planner(profile, local))))
    outputs = given_path(outputs, "outputs").absolute()
    name_folder(outputs, "outputs")
    hosts = Hosts(is_local(server), _own_names(server), {name.lower() for name in allowed_hosts})
    _, url, public_url = page.launch(
        prevent_thread_lock=True,
        server_name=server,
        server_port=port,
        share=share,
        inbrowser=inbrowser,
        auth=None if auth is None else _checker(*auth),
        allowed_paths=[str(outputs)],  # from here gradio copies the answer of /generate; its route is closed
        blocked_paths=[str(outputs / ".longtake")],
        max_file_size=UPLOAD_BYTES,
        max_threads=_SLOTS,
        app_kwargs={"lifespan": _guarded(hosts, outputs, has_login=auth is not None)},
        quiet=True, ssr_mode=False, run_history=False, footer_links=["api"],
        theme=theme(), css_paths=CSS_FILES, favicon_path=ICON_FILE,
        _frontend=False,  # Gradio would ask this server for a page, and give up after 3 s or at a proxy
    )  # fmt: skip
    page.server.config.timeout_keep_alive = _KEEP_ALIVE_SECONDS
    if public_url:
        hosts.trusted.add(urlsplit(public_url).hostname or "")
        page.share = False  # otherwise gradio's page would load a script from another site
    return page, public_url or url


def _let_rest(page: gr.Blocks) -> gr.Blocks:
    page._queue.sleep_when_free = _CALL_SECONDS
    page._queue.progress_update_sleep_when_free = _PROGRESS_SECONDS  # the page does not use this progress
    return page


def _take_environment() -> None:
    """Set the environment variables that gradio and its server read, unless a user has set them.

    Raises:
        InputError: If the folder for uploads cannot be made.
    """
    os.environ.setdefault("GRADIO_TEMP_DIR", str(cache_folder() / "page"))
    # Otherwise anyone who connects from this machine, like all visitors behind a proxy, could write another
    # address into a header. For a trusted proxy, a user sets this variable as uvicorn's documentation says.
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
    # Otherwise gradio rebuilds a table of all calls after each call, for a route that the guard closes.
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder for uploads, {folder}, cannot be made ({error.strerror}); expected one to write to.",
            "Set HOME, XDG_CACHE_HOME or GRADIO_TEMP_DIR to a folder that can be written.",
        ) from error


def close_page(page: gr.Blocks) -> None:
    """Close the server without waiting long for browsers that keep a connection open."""
    from gradio.tunneling import CURRENT_TUNNELS

    for tunnel in CURRENT_TUNNELS:
        tunnel.kill()
    closing = threading.Thread(target=page.close, kwargs={"verbose": False}, daemon=True)
    closing.start()
    closing.join(_SERVER_SECONDS)


def _guarded(
    hosts: Hosts, outputs: Path, *, has_login: bool
) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
    """Return a lifespan that puts the guard around the whole application before the first request.

    Middleware that is passed to gradio would run behind gradio's own, which answers some requests itself.
    """
    from app.web.sessions import LeanSessions

    uploads = Path(os.environ["GRADIO_TEMP_DIR"]).absolute()
    files, room = ServedFiles(outputs, uploads), UploadRoom(uploads, UPLOAD_BYTES)

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        app.state_holder = LeanSessions(app.get_blocks())
        app.middleware_stack = Guard(
            app.middleware_stack, hosts=hosts, files=files, uploads=room,
            calls=Calls(app.get_blocks().fns), login=has_login,
        )  # fmt: skip
        yield

    return lifespan


def _own_names(server: str) -> frozenset[str]:
    if is_local(server):
        return frozenset()
    name = socket.gethostname().lower()
    return frozenset({server.lower(), name, f"{name.partition('.')[0]}.local"})


def _checker(user: str, password: str) -> Callable[[str, str], bool]:
    """Return a check of user and password whose duration does not depend on where they differ."""
    expected = (user.encode(), password.encode())

    def is_right(given_user: str, given_password: str) -> bool:
        user_is_right = hmac.compare_digest(expected[0], given_user.encode())
        return hmac.compare_digest(expected[1], given_password.encode()) and user_is_right

    return is_right

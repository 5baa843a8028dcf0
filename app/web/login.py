"""The login: a page that asks for the password, who has entered it, and how often it may be tried."""

import hmac
import math
import secrets
import time
from collections.abc import Callable
from html import escape
from string import Template

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from app.web.addresses import network_of

LOGIN_ATTEMPTS, LOGIN_SECONDS = 10, 60.0
_SESSION_SECONDS = 30 * 24 * 3600
_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Log in · Longtake</title><style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
form { display: grid; gap: 12px; width: min(320px, 100%); margin: 20vh auto 0; }
label { display: grid; gap: 4px; } input, button { font: inherit; padding: 8px; }
</style></head><body><form method="post" action="login"><h1>Longtake</h1>
<label>User <input name="username" autocomplete="username" required autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<p role="alert">$problem</p><button>Log in</button></form></body></html>""")


class Attempts:
    """A limit on login attempts for each address: ten at once, and ten per minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[str, float] = {}  # when an address has all its attempts again

    def begin(self, address: str) -> float:
        """Count an attempt if one is left, and return 0; otherwise return the seconds until the next one."""
        network, now = network_of(address), self._clock()
        self._free_at = {key: at for key, at in self._free_at.items() if at > now}
        free_at = max(now, self._free_at.get(network, now)) + LOGIN_SECONDS / LOGIN_ATTEMPTS
        wait = free_at - now - LOGIN_SECONDS
        if wait > 1e-6:
            return wait
        self._free_at[network] = free_at
        return 0.0

    def succeeded(self, address: str) -> None:
        self._free_at.pop(network_of(address), None)


class Login:
    """The login of a server, by whose port its cookie is named, since all ports of a host share them."""

    def __init__(self, user: str, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = (user.encode(), password.encode())
        self._clock, self._attempts = clock, Attempts(clock)
        self._ends: dict[str, float] = {}  # of the sessions, by their secret names

    def knows(self, connection: HTTPConnection) -> bool:
        return self._ends.get(connection.cookies.get(_cookie_of(connection), ""), 0.0) > self._clock()

    def page(self, problem: str = "", status: int = 200) -> Response:
        return HTMLResponse(_PAGE.substitute(problem=escape(problem)), status)

    async def enter(self, request: Request) -> Response:
        """Take the user and the password of a form; answer a program with JSON and a browser with a page."""
        # Only the address that connects counts, because anyone can write another one into a header.
        address = request.client.host if request.client else ""
        if wait := self._attempts.begin(address):
            seconds = str(math.ceil(wait))
            return PlainTextResponse(f"Too many attempts. Wait {seconds} s.\n", 429, {"retry-after": seconds})
        form = await request.form()
        is_browser = "text/html" in request.headers.get("accept", "")
        if not self._is_right(str(form.get("username", "")), str(form.get("password", ""))):
            problem = "User or password is wrong."
            return self.page(problem, 400) if is_browser else JSONResponse({"detail": problem}, 400)
        self._attempts.succeeded(address)
        session, now = secrets.token_urlsafe(24), self._clock()
        self._ends = {key: end for key, end in self._ends.items() if end > now}
        self._ends[session] = now + _SESSION_SECONDS
        answer = RedirectResponse("./", 303) if is_browser else JSONResponse({"success": True})
        return self._with_session(request, answer, session, _SESSION_SECONDS)

    async def leave(self, request: Request) -> Response:
        return self._with_session(request, RedirectResponse("./", 303), "", 0)

    def _with_session(self, request: Request, answer: Response, session: str, seconds: int) -> Response:
        """Have a browser keep a session in place of its last one, for https alone if it came with https.

        A proxy takes https away. Whoever says that there was some can only make the cookie safer.
        """
        name, headers = _cookie_of(request), request.headers
        self._ends.pop(request.cookies.get(name, ""), None)
        is_https = request.url.scheme == "https" or headers.get("x-forwarded-proto", "").startswith("https")
        is_https |= headers.get("origin", "").startswith("https:")
        answer.set_cookie(name, session, seconds, secure=is_https, httponly=True, samesite="lax")
        return answer

    def _is_right(self, user: str, password: str) -> bool:
        """Return whether both are right, in a time that does not depend on where they differ."""
        user_is_right = hmac.compare_digest(self._expected[0], user.strip().encode())
        return hmac.compare_digest(self._expected[1], password.encode()) and user_is_right


def _cookie_of(connection: HTTPConnection) -> str:
    return f"longtake-session-{connection.scope['server'][1]}"

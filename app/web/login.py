"""The login: a page that asks for the password, who has entered it, and how often it may be tried."""

from __future__ import annotations

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
_SESSION, _KNOWN_BROWSER = "longtake-session", "longtake-browser"
_DAY_SECONDS = 24 * 3600
_SESSION_SECONDS, _BROWSER_SECONDS = 30 * _DAY_SECONDS, 365 * _DAY_SECONDS
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


class Names:
    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._ends = dict[str, float]()

    def __contains__(self, name: str | None) -> bool:
        return self._ends.get(name or "", 0.0) > self._clock()

    def add(self, name: str | None = None) -> str:
        """Return a new name, or begin the time of a valid one anew."""
        name = name if name and name in self else secrets.token_urlsafe(24)
        now = self._clock()
        self._ends = {key: end for key, end in self._ends.items() if end > now} | {name: now + self._seconds}
        return name

    def forget(self, name: str | None) -> None:
        self._ends.pop(name or "", None)


class Attempts:
    """A limit on login attempts for each address: ten at once, and ten per minute.

    Nobody can use up another user's attempts: there is no common limit, and a browser that was logged in
    before has a separate limit, even if others guess from its address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[str, float] = {}  # when an address or a browser has all its attempts again
        self._browsers = Names(_BROWSER_SECONDS, clock)

    def begin(self, address: str, browser: str | None = None) -> float:
        """Count an attempt if one is left, and return 0; otherwise return the seconds until the next one."""
        each = LOGIN_SECONDS / LOGIN_ATTEMPTS
        who, now = self._who(address, browser), self._clock()
        self._free_at = {key: at for key, at in self._free_at.items() if at > now}
        free_at = max(now, self._free_at.get(who, now)) + each
        wait = free_at - now - LOGIN_SECONDS
        if wait > 1e-6:
            return wait
        self._free_at[who] = free_at
        return 0.0

    def succeeded(self, address: str, browser: str | None = None) -> str:
        """Restore all attempts after a correct password, and return a name for the browser to keep."""
        self._free_at.pop(self._who(address, browser), None)
        return self._browsers.add(browser)

    def _who(self, address: str, browser: str | None) -> str:
        return browser if browser and browser in self._browsers else network_of(address)


class Login:
    """The login of one server.

    Its cookies are named by the server's port, since a browser sends them to all ports of a host.
    """

    def __init__(self, user: str, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = (user.encode(), password.encode())
        self._attempts, self._sessions = Attempts(clock), Names(_SESSION_SECONDS, clock)

    def knows(self, connection: HTTPConnection) -> bool:
        return _cookie(connection, _SESSION) in self._sessions

    def page(self, problem: str = "", status: int = 200) -> Response:
        return HTMLResponse(_PAGE.substitute(problem=escape(problem)), status)

    async def enter(self, request: Request) -> Response:
        """Take the user and the password of a form; answer a program with JSON and a browser with a page."""
        # Only the address that connects counts, because anyone can write another one into a header.
        address, browser = request.client.host if request.client else "", _cookie(request, _KNOWN_BROWSER)
        if wait := self._attempts.begin(address, browser):
            seconds = str(math.ceil(wait))
            return PlainTextResponse(f"Too many attempts. Wait {seconds} s.\n", 429, {"retry-after": seconds})
        form = await request.form()
        is_browser = "text/html" in request.headers.get("accept", "")
        if not self._is_right(str(form.get("username", "")), str(form.get("password", ""))):
            problem = "User or password is wrong."
            return self.page(problem, 400) if is_browser else JSONResponse({"detail": problem}, 400)
        answer = RedirectResponse("./", 303) if is_browser else JSONResponse({"success": True})
        self._sessions.forget(_cookie(request, _SESSION))
        _set_cookie(request, answer, _SESSION, self._sessions.add(), _SESSION_SECONDS)
        _set_cookie(
            request, answer, _KNOWN_BROWSER, self._attempts.succeeded(address, browser), _BROWSER_SECONDS
        )
        return answer

    async def leave(self, request: Request) -> Response:
        self._sessions.forget(_cookie(request, _SESSION))
        answer = RedirectResponse("./", 303)
        _set_cookie(request, answer, _SESSION, "", 0)
        return answer

    def _is_right(self, user: str, password: str) -> bool:
        """Return whether both are right, in a time that does not depend on where they differ."""
        user_is_right = hmac.compare_digest(self._expected[0], user.strip().encode())
        return hmac.compare_digest(self._expected[1], password.encode()) and user_is_right


def _name(connection: HTTPConnection, kind: str) -> str:
    return f"{kind}-{connection.scope['server'][1]}"


def _cookie(connection: HTTPConnection, kind: str) -> str | None:
    return connection.cookies.get(_name(connection, kind))


def _set_cookie(request: Request, answer: Response, kind: str, value: str, seconds: int) -> None:
    """Have a browser keep a value, for https alone if it came with https.

    A proxy takes https away. Whoever says that there was some can only make the cookie safer.
    """
    headers = request.headers
    is_https = request.url.scheme == "https" or headers.get("x-forwarded-proto", "").startswith("https")
    is_https |= headers.get("origin", "").startswith("https:")
    name = _name(request, kind)
    answer.set_cookie(name, value, seconds, secure=is_https, httponly=True, samesite="lax")

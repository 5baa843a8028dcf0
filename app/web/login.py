"""The login: a page that asks for the password, who has entered it, and how often it may be tried."""

from __future__ import annotations

import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Callable
from html import escape
from string import Template

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

LOGIN_ATTEMPTS, LOGIN_SECONDS = 10, 60.0
_SESSION, _KNOWN_BROWSER = "longtake-session", "longtake-browser"
_YEAR_SECONDS = 365 * 24 * 3600
_MOST_KNOWN = 1000
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


class Names(dict[str, None]):
    """A bounded number of secret names that browsers keep. The name that was added first goes first."""

    def add(self, name: str | None = None) -> str:
        name = name if name in self and name else secrets.token_urlsafe(24)
        self.pop(name, None)
        self[name] = None
        while len(self) > _MOST_KNOWN:
            del self[next(iter(self))]
        return name


class Attempts:
    """A limit on login attempts for each address: ten at once, and ten per minute.

    Nobody can use up another user's attempts: there is no common limit, and a browser that was logged in
    before has a separate limit, even if others guess from its address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[str, float] = {}  # when an address or a browser has all its attempts again
        self._browsers = Names()

    def begin(self, address: str, browser: str | None = None) -> float:
        """Count an attempt if one is left, and return 0; otherwise return the seconds until the next one.

        Args:
            browser: The name that `succeeded` returned for that browser before, if any.
        """
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
        if browser and browser in self._browsers:
            return browser
        try:
            ip_address = ipaddress.ip_address(address)
        except ValueError:
            return address
        # One machine commonly has 2^64 IPv6 addresses.
        return (
            str(ipaddress.ip_network(f"{address}/64", strict=False)) if ip_address.version == 6 else address
        )


class Login:
    """The login of one server."""

    def __init__(self, user: str, password: str) -> None:
        self._expected = (user.encode(), password.encode())
        self._attempts, self._sessions = Attempts(), Names()

    def knows(self, connection: HTTPConnection) -> bool:
        """Return whether a request comes from somebody who has entered the password."""
        return connection.cookies.get(_SESSION) in self._sessions

    def page(self, problem: str = "", status: int = 200) -> Response:
        return HTMLResponse(_PAGE.substitute(problem=escape(problem)), status)

    async def enter(self, request: Request) -> Response:
        """Take the user and the password of a form; answer a program with JSON and a browser with a page."""
        # Only the address that connects counts, because anyone can write another one into a header.
        address, browser = request.client.host if request.client else "", request.cookies.get(_KNOWN_BROWSER)
        if wait := self._attempts.begin(address, browser):
            seconds = str(math.ceil(wait))
            return PlainTextResponse(f"Too many attempts. Wait {seconds} s.\n", 429, {"retry-after": seconds})
        form = await request.form()
        is_browser = "text/html" in request.headers.get("accept", "")
        if not self._is_right(str(form.get("username", "")), str(form.get("password", ""))):
            problem = "User or password is wrong."
            return self.page(problem, 400) if is_browser else JSONResponse({"detail": problem}, 400)
        answer = RedirectResponse("./", 303) if is_browser else JSONResponse({"success": True})
        answer.set_cookie(_SESSION, self._sessions.add(), httponly=True, samesite="lax")
        token = self._attempts.succeeded(address, browser)
        answer.set_cookie(_KNOWN_BROWSER, token, _YEAR_SECONDS, httponly=True, samesite="lax")
        return answer

    async def leave(self, request: Request) -> Response:
        self._sessions.pop(request.cookies.get(_SESSION, ""), None)
        return RedirectResponse("./", 303)

    def _is_right(self, user: str, password: str) -> bool:
        """Return whether both are right, in a time that does not depend on where they differ."""
        user_is_right = hmac.compare_digest(self._expected[0], user.strip().encode())
        return hmac.compare_digest(self._expected[1], password.encode()) and user_is_right

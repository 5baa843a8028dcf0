"""The limits on login attempts, which apply to each address and to each known browser."""

from __future__ import annotations

import ipaddress
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

LOGIN_ATTEMPTS, LOGIN_SECONDS = 10, 60.0
_BROWSERS_KNOWN = 1000


class Attempts:
    """A limit on login attempts for each address: ten at once, and ten per minute.

    Nobody can use up another user's attempts: there is no common limit, and a browser that was logged in
    before has a separate limit, even if others guess from its address. Any thread may call the methods.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._free_at: dict[str, float] = {}  # when an address or a browser has all its attempts again
        self._browsers: OrderedDict[str, None] = OrderedDict()

    def begin(self, address: str, browser: str | None = None) -> float:
        """Count an attempt if one is left, and return 0; otherwise return the seconds until the next one.

        Args:
            address: The address that connects.
            browser: The name that `succeeded` returned for that browser before, if any.
        """
        each = LOGIN_SECONDS / LOGIN_ATTEMPTS
        with self._lock:
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
        with self._lock:
            self._free_at.pop(self._who(address, browser), None)
            known = browser if browser and browser in self._browsers else secrets.token_urlsafe(24)
            self._browsers[known] = None
            self._browsers.move_to_end(known)
            while len(self._browsers) > _BROWSERS_KNOWN:
                self._browsers.popitem(last=False)
            return known

    def _who(self, address: str, browser: str | None) -> str:
        if browser is not None and browser in self._browsers:
            return browser
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return address
        # One machine commonly has 2^64 IPv6 addresses.
        return str(ipaddress.ip_network(f"{address}/64", strict=False)) if found.version == 6 else address

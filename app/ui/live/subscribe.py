"""The connection that keeps an open page up to date."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from app.jobs.service import JobService
from app.ui import scripts
from app.ui.live.broadcast import Broadcast
from app.ui.waiting import Limiter, Slot

# A further page takes the place of the one opened first, which subscribes again after a while.
MOST_PAGES = 100
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING = ("beat", "elapsed", "quiet", "left")
_BEAT_SECONDS = 2.5


class Updates:
    """The updates of one service for every open page."""

    def __init__(self, service: JobService) -> None:
        self._broadcast, self._room = Broadcast(service), Limiter(MOST_PAGES, newcomer_goes=False)

    async def stream(self) -> AsyncGenerator[str, None]:
        """Yield the updates of one page as server-sent events."""
        with self._room.place(lambda: True) as place:
            async with aclosing(subscribe(self._broadcast, place)) as changes:
                async for change in changes:
                    yield f"data: {json.dumps(change)}\n\n"


async def subscribe(broadcast: Broadcast, place: Slot) -> AsyncGenerator[dict[str, Any], None]:
    """Keep one page up to date until it is gone, by sending only what has changed.

    Yields:
        The live view and the version of the scripts, or only the values that have moved.
    """
    before: dict[str, Any] = {}
    sent = -math.inf
    async with aclosing(broadcast.updates()) as updates:
        async for shown in updates:
            if place.is_lost.is_set():
                return
            if shown is None:
                continue
            news = {name: value for name, value in shown.items() if name not in _MOVING}
            if news != before:
                yield shown | {"version": scripts.version()}
            elif time.monotonic() - sent >= _BEAT_SECONDS:
                yield {name: value for name, value in shown.items() if name in _MOVING}
            else:
                continue
            before, sent = news, time.monotonic()

"""FFmpeg's filters for the frames of a film."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


def filtered(frames: Iterator[VideoFrame], name: str, arguments: str = "") -> Iterator[VideoFrame]:
    """Pass frames that are alike, at least one, through a filter."""
    from av.error import BlockingIOError, EOFError
    from av.filter.graph import Graph

    first = next(frames)
    graph = Graph()
    graph.threads = 1
    source = graph.add_buffer(None, first.width, first.height, first.format, time_base=first.time_base)
    graph.link_nodes(source, graph.add(name, arguments), graph.add("buffersink")).configure()
    for frame in chain([first], frames, [None]):
        graph.vpush(frame)
        with suppress(BlockingIOError, EOFError):
            while True:
                yield graph.vpull()

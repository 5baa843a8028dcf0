"""FFmpeg's filters for the frames of a film."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


def filtered(
    frames: Iterator[VideoFrame], name: str, arguments: str = "", *others: VideoFrame
) -> Iterator[VideoFrame]:
    """Pass frames that are alike, at least one, through a filter, whose further inputs have a frame each."""
    from av.error import BlockingIOError, EOFError
    from av.filter.graph import Graph

    first = next(frames)
    graph = Graph()
    graph.threads = 1
    work = graph.add(name, arguments)
    sources = [
        graph.add_buffer(None, frame.width, frame.height, frame.format, time_base=first.time_base)
        for frame in (first, *others)
    ]
    for index, source in enumerate(sources):
        source.link_to(work, 0, index)
    work.link_to(graph.add("buffersink"))
    graph.configure()
    for source, frame in zip(sources[1:], others, strict=True):
        frame.pts, frame.time_base = 0, first.time_base
        source.push(frame)
        source.push(None)
    for frame in chain([first], frames, [None]):
        sources[0].push(frame)
        with suppress(BlockingIOError, EOFError):
            while True:
                yield graph.vpull()

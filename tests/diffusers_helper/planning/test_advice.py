"""Tests that advice on tiles comes from measurements, and only where they support it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffusers_helper.job.plans import TileTimes
from diffusers_helper.machine.local import Facts
from diffusers_helper.units import GB


@pytest.fixture
def times(tmp_path: Path) -> TileTimes:
    return TileTimes(Facts(tmp_path / "tile_times.json"), "gfx1100, demo, 640x608, VAE fp16, chunk 3")


def test_faster_tiles_that_fit_are_named_with_their_figures(times: TileTimes) -> None:
    times.note(256, 22.0, 6 * GB)
    times.note(128, 25.0, 4 * GB)
    assert times.advice(128, 8 * GB) == (
        "VAE tiles of 256 pixels would have fitted and been 12% faster: in an earlier job, a section took "
        "22 s to decode instead of 25 s, with a peak of 6 of 8 GB. The pixels would differ."
    )
    assert times.advice(256, 8 * GB) == ""  # the fastest are in use


def test_without_a_measurement_that_supports_it_there_is_none(times: TileTimes) -> None:
    assert times.advice(128, 8 * GB) == ""
    times.note(128, 25.0, 4 * GB)
    assert times.advice(128, 8 * GB) == ""
    times.note(192, 24.5, 5 * GB)  # the difference may be chance
    times.note(256, 10.0, 9 * GB)  # does not fit
    assert times.advice(128, 8 * GB) == ""
    assert times.advice(96, 8 * GB) == ""  # this job was not measured
    other = TileTimes(times.facts, "gfx1100, demo, 640x608, VAE fp32, chunk 3")
    other.note(96, 1.0, GB)
    assert times.advice(128, 8 * GB) == ""


def test_a_damaged_entry_counts_as_none(times: TileTimes) -> None:
    times.note(128, 25.0, 4 * GB)
    times.facts.write(f"{times.key}, tiles 256", {"seconds": "fast", "bytes": None})
    assert times.advice(128, 8 * GB) == ""

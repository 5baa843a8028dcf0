"""Tests that advice on tiles comes from measurements, and only where they support it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from diffusers_helper.job.plans import tile_advice
from diffusers_helper.machine.local import Facts
from diffusers_helper.units import GB

KEY = "gfx1100, demo, 640x608, VAE fp16, chunk 3"


def test_faster_tiles_that_fit_are_named_with_their_figures(tmp_path: Path) -> None:
    decoded = partial(tile_advice, Facts(tmp_path / "tile_times.json"), KEY, cap_bytes=8 * GB)
    assert decoded(256, 22.0, 6 * GB) == ""
    assert decoded(128, 25.0, 4 * GB) == (
        "VAE tiles of 256 pixels would have fitted and been 12% faster: in an earlier job, a section took "
        "22 s to decode instead of 25 s, with a peak of 6 of 8 GB. The pixels would differ."
    )
    assert decoded(256, 22.0, 6 * GB) == ""  # the fastest are in use


def test_without_a_measurement_that_supports_it_there_is_none(tmp_path: Path) -> None:
    facts = Facts(tmp_path / "tile_times.json")
    decoded = partial(tile_advice, facts, KEY, cap_bytes=8 * GB)
    tile_advice(facts, KEY.replace("fp16", "fp32"), 96, 1.0, GB, 8 * GB)
    assert decoded(192, 24.5, 5 * GB) == ""
    assert decoded(256, 10.0, 9 * GB) == ""  # does not fit
    assert decoded(128, 25.0, 4 * GB) == ""  # the difference from 192 may be chance


def test_nothing_is_known_where_nothing_can_be_stored() -> None:
    assert tile_advice(Facts(), KEY, 128, 25.0, 4 * GB, 8 * GB) == ""


def test_a_damaged_entry_counts_as_none(tmp_path: Path) -> None:
    facts = Facts(tmp_path / "tile_times.json")
    facts.write(f"{KEY}, tiles 256", {"seconds": "fast", "bytes": None})
    assert tile_advice(facts, KEY, 128, 25.0, 4 * GB, 8 * GB) == ""

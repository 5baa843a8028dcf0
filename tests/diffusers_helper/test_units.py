"""Tests of figures for people, which are as short as possible and never promise too little."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.units import GB, about, compared_gb, duration, gb_bytes, gb_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (6 * GB, "6"), (int(22.34 * GB), "22.3"), (100 * GB, "100"), (GB // 2, "0.5"),
     (GB // 8, "0.12"), (GB // 50, "0.02"), (GB // 300, "0.0033"), (1, "0"), (gb_bytes(20.1), "20.1")],
)  # fmt: skip
def test_gigabytes_are_short(count: int, text: str) -> None:
    assert gb_text(count) == text


@given(st.integers(1, 300 * GB))
def test_a_rounded_up_figure_is_enough_when_typed(count: int) -> None:
    assert gb_bytes(float(gb_text(count, round_up=True))) >= count


@given(st.integers(1, 300 * GB), st.integers(-1000, 1000), st.sampled_from([1, 1000, 10**6]))
def test_sizes_that_are_compared_read_as_they_compare(size: int, step: int, unit: int) -> None:
    needed = max(1, size + step * unit)
    texts = compared_gb(size, needed)
    if abs(size - needed) > 10:
        assert (float(texts[0]) < float(texts[1])) == (size < needed)
    assert gb_bytes(float(texts[1])) >= needed


def test_sizes_that_are_compared_have_no_more_decimals_than_they_need() -> None:
    assert compared_gb(5 * GB, 8 * GB) == ("5", "8")
    assert compared_gb(gb_bytes(5.06), gb_bytes(5.085)) == ("5.06", "5.09")
    assert compared_gb(gb_bytes(5.049), gb_bytes(5.04)) == ("5.05", "5.04")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.42, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (125, "2 min 5 s"),
     (3599.7, "1 h"), (6000, "1 h 40 min"), (7199, "2 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e6))
def test_an_estimate_stays_near_the_number(seconds: float) -> None:
    text = about(seconds)
    if not text.startswith("about "):
        assert text == "a few seconds"
        assert seconds < 7.5
        return
    units = {"s": 1, "min": 60, "h": 3600}
    found = sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+) (s|min|h)\b", text))
    assert found == pytest.approx(seconds, rel=0.34)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "a few seconds"), (41, "about 40 s"), (60, "about 1 min"), (89, "about 1 min 30 s"),
     (540, "about 9 min"), (1500, "about 25 min"), (3600, "about 1 h"), (9100, "about 2 h 30 min")],
)  # fmt: skip
def test_estimates(seconds: float, text: str) -> None:
    assert about(seconds) == text

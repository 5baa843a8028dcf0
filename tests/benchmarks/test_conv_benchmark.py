"""Tests that `benchmarks/conv_ladder.py` runs as documented and reports what it measured."""

import json
from typing import Any

import pytest

from benchmarks import conv_ladder
from cache.conv_rungs import RUNGS


@pytest.fixture
def figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Return what the program prints when it is called with the words of the test's parameter."""
    monkeypatch.setattr("sys.argv", ["conv_ladder.py", "--json", "--size", "16", *request.param.split()])
    assert conv_ladder.main() in (0, 1)  # a decode this small may cost more than its convolutions
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("figures", ["--latents 1 --repeat 2"], indirect=True)
def test_figures_for_a_small_decode(figures: dict[str, Any]) -> None:
    assert {name: len(seconds) for name, seconds in figures["seconds"].items()} == {"plain": 2, "ladder": 2}
    assert figures["calls"] > 20
    share = figures["calls"] * figures["seconds_added_to_a_call"] / min(figures["seconds"]["plain"])
    assert abs(figures["share"] - share) < 1e-9


# The type fp16 is emulated on most CPUs, and slow.
@pytest.mark.parametrize("figures", ["--latents 2 --repeat 1 --rungs bf16"], indirect=True)
def test_the_rungs_of_a_small_decode_round_once(figures: list[dict[str, Any]]) -> None:
    assert [(row["dtype"], row["rung"]) for row in figures] == [
        ("bf16", rung) for rung in RUNGS if rung not in ("kitchen", "channels")
    ]
    assert all(row["milliseconds"] > 0 and row["shapes"] > 10 for row in figures)
    # A picture this small leaves few values, so that their mean varies.
    plain = max(1.0, figures[0]["roundings"])  # a processor without bf16 kernels may round more often
    assert all(0.5 < row["roundings"] < 1.3 * plain for row in figures), figures

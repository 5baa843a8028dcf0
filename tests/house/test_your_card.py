"""Tests that the page on cards shows what the planner says."""

import runpy
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "your_card.py"))
PAGE = ROOT / "docs" / "your-card.md"


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no"))


def test_the_page_shows_the_plans_of_today() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SCRIPT["documented"](text) == text, "Run scripts/your_card.py."
    row = "| 20 | 18 | 1.7 | 22.3 | 1.9 s, main memory | 7.8 s | 5 min 30 s | 22.3 | 5.9 |"
    assert f"| 24 GB (RX 7900 XTX) {row}" in text


def test_a_figure_that_is_out_of_date_is_noticed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SCRIPT["documented"](text.replace("22.3", "21.3", 1)) == text

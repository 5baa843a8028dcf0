"""The double of ComfyUI for every test of the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.comfy_double import Comfy


@pytest.fixture(autouse=True)
def comfy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Comfy:
    return Comfy(monkeypatch, tmp_path)

"""The double of ComfyUI for every test of the nodes."""

from pathlib import Path

import pytest

from diffusers_helper.models.registry import ModelInfo, find_model
from tests.support.comfy_double import Comfy
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(autouse=True)
def comfy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Comfy:
    return Comfy(monkeypatch, tmp_path)


@pytest.fixture
def tiny(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ModelInfo:
    """Return the tiny model, which the nodes of FramePack find under every name."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    info = find_model(str(folder), allow_folder=True)
    for module in ("framepack.node", "framepack.parts"):
        monkeypatch.setattr(f"rocm_nodes.{module}.find_model", lambda name: info)
    return info

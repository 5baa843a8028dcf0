"""The page that the tests of models open, and the files that a user has for a model."""

from pathlib import Path

import pytest

from diffusers_helper.models.added import ADDED_MODELS, FILE_NAME
from diffusers_helper.models.registry import find_model
from tests.support.weights import PAGE


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with weights of the demo model, and give the test a data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "longtake" / FILE_NAME)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    demo, folder = find_model("demo"), tmp_path / "own"
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(folder))
    (folder / "diffusion_models").mkdir(parents=True)
    (folder / "vae").mkdir()
    transformer = Path(demo.components["transformer"].location) / "diffusion_pytorch_model.safetensors"
    (folder / "diffusion_models" / "FramePack F1.safetensors").symlink_to(transformer)
    (folder / "diffusion_models" / "other.safetensors").symlink_to(transformer)
    (folder / "vae" / "small").symlink_to(demo.components["vae"].location)
    (folder / "page.safetensors").write_text(PAGE)
    return folder

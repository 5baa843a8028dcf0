"""Tests of the loader of LoRAs against a double of ComfyUI, which knows one weight, `layer`."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.comfy_double import Comfy, ModelPatcher
from tests.support.node_runs import run


@pytest.fixture(autouse=True)
def host(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the double add what fits its only weight, and log the rest, as ComfyUI does."""

    def load_lora_for_models(
        model: ModelPatcher, clip: Any, lora: dict[str, Any], strength_model: float, strength_clip: float
    ) -> tuple[ModelPatcher, Any]:
        changed = model.clone()
        for name, value in lora.items():
            if name.startswith("layer."):
                changed.patches.setdefault("layer", []).append((strength_model, value))
            else:
                logging.warning("lora key not loaded: %s", name)
        logging.warning("NOT LOADED layer.odd")
        if clip is None:
            return changed, None
        patcher = clip.patcher.clone()
        patcher.patches |= {"a": [strength_clip], "b": [strength_clip]}
        return changed, SimpleNamespace(patcher=patcher)

    sd = sys.modules["comfy.sd"]
    monkeypatch.setattr(sd, "load_lora_for_models", load_lora_for_models, raising=False)


def write(comfy: Comfy, *names: str) -> Path:
    folder = comfy.root / "loras"
    folder.mkdir(exist_ok=True)
    save_file({name: torch.ones(2, 2) for name in names}, folder / "style.safetensors")
    return folder / "style.safetensors"


STRENGTHS = {"lora_name": "style.safetensors", "strength_model": 0.5, "strength_clip": 1.0}


def test_a_lora_that_fits_is_added_to_a_clone(comfy: Comfy) -> None:
    write(comfy, "layer.lora_up.weight", "layer.lora_down.weight")
    model, before = ModelPatcher(), list(logging.getLogger().handlers)
    (changed, clip), text = run("ROCMLoRALoader", model=model, **STRENGTHS)
    assert [strength for strength, _ in changed.patches["layer"]] == [0.5, 0.5]
    assert model.patches == {}
    assert clip is None
    assert "style.safetensors changes 1 weight of the model." in text
    assert "1 of 2 keys of the file fit nothing here: layer.odd." in text
    encoder, model.patches = SimpleNamespace(patcher=ModelPatcher()), {"layer": [1], "a": [1], "b": [1]}
    encoder.patcher.patches["b"] = [1]
    (changed, clip), text = run("ROCMLoRALoader", model=model, clip=encoder, **STRENGTHS)
    assert "style.safetensors changes 1 weight of the model and 1 of the text encoder." in text
    assert clip.patcher.patches["a"] == [1.0]
    assert logging.getLogger().handlers == before


def test_keys_without_a_place_are_named(comfy: Comfy) -> None:
    write(comfy, "layer.lora_up.weight", "other.lora_up.weight", "more.lora_up.weight")
    _, text = run("ROCMLoRALoader", model=ModelPatcher(), **STRENGTHS)
    assert "3 of 3 keys of the file fit nothing here: " in text
    assert "other.lora_up.weight" in text
    assert "The LoRA may be for another model." in text

"""Tests that hold the double of ComfyUI to the signatures recorded from the real one."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import comfy_double

API: dict[str, str] = json.loads((Path(__file__).parent / "comfyui_api.json").read_text())["parameters"]
# The double's classes stand where the real ones have these names.
PLACES = {"comfy.model_patcher": comfy_double}


@pytest.mark.parametrize(
    "name", [name for name in API if name not in ("comfy.sd:VAE.__init__", "comfy.utils:load_torch_file")]
)
def test_the_double_takes_what_comfyui_takes(name: str) -> None:
    module, _, rest = name.partition(":")
    place: Any = PLACES.get(module) or importlib.import_module(module)
    for part in rest.split("."):
        place = getattr(place, part)
    found = list(inspect.signature(place).parameters)
    recorded = API[name].split()
    # What the nodes never pass may be missing at the end.
    assert found == recorded[: len(found)], name
    assert {"self", *found} >= set(recorded[: 1 + len(found)]) - set(recorded[len(found) :])

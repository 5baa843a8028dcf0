"""Tests of the built pack in one process with modules of others that have the names of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from app.commands.pack import write_pack
from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from tests.support import comfy_double
from tests.support.layers import ROOT
from tests.support.node_runs import run
from tests.support.pack_probe import OWN, inputs_of

PROBE = ROOT / "tests/support/pack_probe.py"
# What another author's module may do: it owns the names of our modules and of what is in them.
HOSTILE = """
asked = []
def __getattr__(name):
    if not name.startswith("__"):
        asked.append(name)
    raise AttributeError(f"{__name__} of another pack has no {name}")
"""


def hostile(folder: Path) -> Path:
    """Return a folder with modules and packages of our names, which have other content."""
    for name in OWN:
        is_package = name in ("app", "cache", "diffusers_helper")
        file = folder / name / "__init__.py" if is_package else folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HOSTILE)
    (folder / "diffusers_helper" / "errors.py").write_text("InputError = OSError\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("order", ["hostile", "pack"])
def test_the_pack_and_modules_of_the_same_names_leave_each_other_alone(tmp_path: Path, order: str) -> None:
    packs = [tmp_path / "custom_nodes" / name for name in ("longtake_rocm", "another v1.2")]
    packs[0].parent.mkdir()
    for pack in packs:
        write_pack(pack)
    arguments = [order, hostile(tmp_path / "others"), tmp_path, *packs]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", PROBE, *arguments], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads((tmp_path / "facts.json").read_text())
    assert str(ROOT) not in facts["path"]
    assert facts["nodes"] == list(NODE_CLASS_MAPPINGS)
    assert facts["titles"] == NODE_DISPLAY_NAME_MAPPINGS
    assert [facts[name] for name in ("changed", "asked", "bare", "leaked", "shared")] == [[]] * 5
    assert facts["modules"][0] == facts["modules"][1]
    assert {"cache.conv", "rocm_nodes.framepack.node", "diffusers_helper.sampling.unipc"} <= {
        *facts["modules"][0]
    }
    assert min(facts["sizes"]) > 500
    first, second = facts["names"]
    assert second == str(packs[1]).replace(".", "_x_")
    assert all(name.startswith(f"{first}._vendor.") for name in facts["loggers"])
    assert all(name.startswith(f"{second}._vendor.diffusers_helper.") for name in facts["lazy"])
    found = load_file(tmp_path / "results.safetensors")
    given = inputs_of(comfy_double)
    assert given
    for name, inputs in given.items():
        (expected, *_), _ = run(name, **inputs)
        assert expected.std() > 0.01
        assert torch.equal(found[name], expected), name

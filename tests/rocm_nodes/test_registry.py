"""Tests of how the nodes present themselves: what they lack, what they are beside others, and their help."""

import asyncio
import logging
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffusers_helper.errors import InputError
from diffusers_helper.machine.packages import FRAMEPACK
from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, registry
from rocm_nodes.host import miopen_line
from rocm_nodes.registry import watch
from scripts.document_nodes import FOLDER, pages
from tests.support.layers import ROOT


@pytest.mark.parametrize(
    ("versions", "words"),
    [({"gguf": "", "av": ""}, "it lacks gguf, av"), ({"av": "14.2.0"}, "it has av 14.2.0, where >=18")],
)
def test_a_node_without_its_packages_says_so_in_its_place(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], words: str
) -> None:
    plain = registry.version_of
    monkeypatch.setattr(registry, "version_of", lambda name: versions.get(name, plain(name)))
    classes, titles = registry.node_tables()
    name = "ROCMFramePackVideo"
    needing = {one for one, (_, module) in registry.NODES.items() if module.startswith("framepack.")}
    assert {one for one in classes if classes[one] is not NODE_CLASS_MAPPINGS[one]} == needing
    ending = f" (needs {', '.join(versions)})"
    assert {one for one, title in titles.items() if title.endswith(ending)} == needing
    titles = {one: title for one, title in titles.items() if one == name or one not in needing}
    assert titles.pop(name) == f"ROCm FramePack Video (needs {', '.join(versions)})"
    assert titles.items() <= NODE_DISPLAY_NAME_MAPPINGS.items()
    kind = classes[name]
    assert kind.DESCRIPTION.startswith(f"This node cannot run with ComfyUI's Python: {words}")
    assert kind.INPUT_TYPES() == NODE_CLASS_MAPPINGS[name].INPUT_TYPES()
    with pytest.raises(InputError, match="Install what is missing") as caught:
        kind().make(prompt="a", image=None)
    asked = " ".join(f'"{one}{FRAMEPACK[one]}"' for one in versions)
    assert f'"{sys.executable}" -m pip install {asked}' in str(caught.value)


def test_a_module_that_cannot_be_imported_takes_no_other_node_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(name: str, package: str) -> Any:
        if name == ".samplers":
            raise ImportError("cannot import name 'x' from 'torch'")
        return import_module(name, package)

    monkeypatch.setattr(registry, "import_module", importing)
    classes, titles = registry.node_tables()
    assert titles == NODE_DISPLAY_NAME_MAPPINGS
    changed = {name for name in classes if classes[name] is not NODE_CLASS_MAPPINGS[name]}
    assert changed == {
        "ROCMOptimizedKSampler", "ROCMOptimizedKSamplerAdvanced", "ROCMSamplerCustomAdvanced"
    }  # fmt: skip
    kind = classes["ROCMOptimizedKSampler"]
    assert (kind.INPUT_TYPES(), kind.RETURN_TYPES) == ({}, ())
    with pytest.raises(InputError, match=r"cannot be imported \(cannot import name 'x' from 'torch'\)"):
        getattr(kind(), kind.FUNCTION)()


def test_the_nodes_are_imported_without_the_packages_that_only_a_run_needs() -> None:
    heavy = ("diffusers", "transformers", "accelerate", "huggingface_hub", "gguf", "tokenizers", "av")
    code = f"import rocm_nodes, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_every_input_and_output_is_explained(name: str) -> None:
    kind = NODE_CLASS_MAPPINGS[name]
    inputs = {name: facts for group in kind.INPUT_TYPES().values() for name, (_, facts) in group.items()}
    assert inputs
    assert [one for one, facts in inputs.items() if not facts["tooltip"].endswith(".")] == []
    assert len(kind.OUTPUT_TOOLTIPS) == len(kind.RETURN_TYPES)
    assert kind.DESCRIPTION
    assert "longtake" in kind.SEARCH_ALIASES
    assert getattr(kind, "DEPRECATED", False) == (name == "ROCmDiffusionLoader")


def test_the_help_pages_are_those_of_the_nodes() -> None:
    """If this fails, run scripts/document_nodes.py."""
    found = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.md")}
    assert found == pages()
    assert [name for name, page in found.items() if "has no effect" in page] == []


def test_a_pack_with_the_same_ids_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = type("Theirs", (), {"RELATIVE_PYTHON_MODULE": "custom_nodes.rocm-ninodes v2.2"})
    ours = {"A": type("A", (), {}), "B": type("B", (), {})}
    loaded: dict[str, Any] = {"A": theirs, "Other": theirs}
    app = SimpleNamespace(on_startup=[])
    monkeypatch.setitem(sys.modules, "nodes", SimpleNamespace(NODE_CLASS_MAPPINGS=loaded))
    server = SimpleNamespace(PromptServer=SimpleNamespace(instance=SimpleNamespace(app=app)))
    monkeypatch.setitem(sys.modules, "server", server)
    with caplog.at_level(logging.WARNING):
        watch(ours)
        loaded |= ours
        asyncio.run(app.on_startup[0](app))
        loaded["B"] = theirs
        asyncio.run(app.on_startup[0](app))
    assert [record.getMessage() for record in caplog.records] == [
        "Longtake replaces rocm-ninodes v2.2 in these nodes, which both packs have: A.",
        "Longtake is replaced by rocm-ninodes v2.2 in these nodes, which both packs have: B.",
    ]


def test_the_choice_of_miopen_is_told_on_amd_cards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert miopen_line() == ""
    monkeypatch.setattr("rocm_nodes.host.is_rocm", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert miopen_line() == (
        "MIOpen is off, which ComfyUI chooses on most AMD cards; newer versions leave it on with "
        "COMFYUI_ENABLE_MIOPEN=1."
    )
    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)
    for searches, words, mode in ((True, "searches for", "2"), (False, "does not search for", "not set")):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", searches)
        monkeypatch.setenv("MIOPEN_FIND_MODE", mode)
        if mode == "not set":
            monkeypatch.delenv("MIOPEN_FIND_MODE")
        assert miopen_line() == f"MIOpen is on, torch {words} kernels, and MIOPEN_FIND_MODE is {mode}."

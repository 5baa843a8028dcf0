"""Tests of the table of nodes, and of the inputs that old workflows hold."""

from typing import Any

import pytest

from diffusers_helper.request import SETTINGS
from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from tests.support.comfy_double import Comfy
from tests.support.node_runs import KNOWN, unlike


def test_every_public_id_is_there() -> None:
    ours = {"ROCMOptimizedVAEEncode", "ROCMOptimizedVAEEncodeTiled", "ROCMFinishVideo"}
    ours |= {f"ROCMFramePack{part}" for part in ("Video", "Loader", "Conditions", "Sampler", "Decode")}
    assert set(KNOWN) | ours == set(NODE_CLASS_MAPPINGS)
    assert set(NODE_DISPLAY_NAME_MAPPINGS) == set(NODE_CLASS_MAPPINGS)
    for kind in NODE_CLASS_MAPPINGS.values():
        assert kind.CATEGORY.startswith("ROCm Ninodes/")


@pytest.mark.parametrize("name", KNOWN)
def test_inputs_and_outputs_are_those_that_workflows_know(name: str) -> None:
    """Check names, order, types, ranges and defaults; inputs and outputs of our own come last."""
    kind = NODE_CLASS_MAPPINGS[name]
    known: Any = KNOWN[name]
    assert known["category"] == kind.CATEGORY
    assert known.get("function", kind.FUNCTION) == kind.FUNCTION
    assert list(kind.RETURN_TYPES[: len(known["returns"])]) == known["returns"]
    assert list(getattr(kind, "RETURN_NAMES", ())[: len(known.get("names", ()))]) == known.get("names", [])
    assert unlike(name, kind.INPUT_TYPES()) == []


def test_the_page_shows_rare_inputs_and_those_without_effect_on_request(comfy: Comfy) -> None:
    rare: set[str] = set()
    for kind in NODE_CLASS_MAPPINGS.values():
        for group in kind.INPUT_TYPES().values():
            for name, (_, facts) in group.items():
                assert facts.get("advanced") or "no effect" not in facts["tooltip"], (kind, name)
                rare |= {name} if facts.get("advanced") else set()
    assert {"memory_threshold", "cleanup_frequency", "kernel_tuning", "compatibility_mode"} < rare
    assert {one.name for one in SETTINGS.values() if one.section == "Memory"} < rare
    assert rare.isdisjoint({"image", "prompt", "steps", "seed", "tile_size", "chunk_size", "lora"})


def test_a_seed_changes_after_each_run_where_the_page_asks_for_it() -> None:
    for name, seed in (("ROCMOptimizedKSampler", "seed"), ("ROCMOptimizedKSamplerAdvanced", "noise_seed")):
        assert NODE_CLASS_MAPPINGS[name].INPUT_TYPES()["required"][seed][1]["control_after_generate"]

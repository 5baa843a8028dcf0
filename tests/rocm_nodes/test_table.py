"""Tests of the table of nodes, and of the inputs that old workflows hold."""

from __future__ import annotations

from typing import Any

import pytest

from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from tests.support.node_runs import KNOWN, unlike


def test_every_public_id_is_there() -> None:
    ours = {"ROCMOptimizedVAEEncode", "ROCMOptimizedVAEEncodeTiled"}
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


def test_a_seed_changes_after_each_run_where_the_page_asks_for_it() -> None:
    for name, seed in (("ROCMOptimizedKSampler", "seed"), ("ROCMOptimizedKSamplerAdvanced", "noise_seed")):
        assert NODE_CLASS_MAPPINGS[name].INPUT_TYPES()["required"][seed][1]["control_after_generate"]

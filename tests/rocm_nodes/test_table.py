"""Tests of the table of nodes, and of the inputs that old workflows hold."""

from typing import Any

import pytest

from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.node_runs import KNOWN, unlike


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

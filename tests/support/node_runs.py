"""Runs of single nodes, for their tests."""

import json
from typing import Any

import torch
from torch import Tensor

from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.layers import ROOT

# The inputs and outputs of each node as the workflows of its authors hold them.
KNOWN: dict[str, Any] = json.loads((ROOT / "tests/rocm_nodes/workflow_inputs.json").read_text())
SHORT = (
    "HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 "
    "GiB is free."
)


def picture() -> Tensor:
    """Return a picture (1, 64, 64, 3) as ComfyUI's nodes hand it on."""
    return torch.linspace(0, 1, 64 * 64 * 3).reshape(1, 64, 64, 3)


def run(name: str, **inputs: Any) -> tuple[tuple[Any, ...], str]:
    kind: Any = NODE_CLASS_MAPPINGS[name]
    with torch.inference_mode():
        outputs = getattr(kind(), kind.FUNCTION)(**inputs)
    (text,) = outputs["ui"]["text"]
    assert len(outputs["result"]) == len(kind.RETURN_TYPES)
    return outputs["result"], text


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def unlike(name: str, types: dict[str, dict[str, Any]]) -> list[str]:
    """Return in which of its inputs, as `INPUT_TYPES` gives them, a node is not as workflows know it."""
    found: list[str] = []
    for place in ("required", "optional"):
        known, ours = KNOWN[name].get(place, {}), types.get(place, {})
        if list(ours)[: len(known)] != list(known):
            found.append(f"{place}: {list(ours)} instead of {list(known)}")
        for one, (kind, facts) in known.items():
            reported, *rest = ours.get(one, ["nothing"])
            if not (isinstance(reported, list | tuple) if kind in ("FILES", "LIST") else reported == kind):
                found.append(f"{one} is {reported} instead of {kind}")
            given = rest[0] if rest else {}
            found += [
                f"{one}: {key} is {given.get(key)} instead of {value}"
                for key, value in facts.items()
                if given.get(key) != value
            ]
    return found

"""Runs of single nodes, for their tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rocm_nodes import NODE_CLASS_MAPPINGS

SHORT = (
    "HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 "
    "GiB is free."
)


def run(name: str, **inputs: Any) -> tuple[tuple[Any, ...], str]:
    """Return the result of a node and its report."""
    kind: Any = NODE_CLASS_MAPPINGS[name]
    with torch.inference_mode():
        outputs = getattr(kind(), kind.FUNCTION)(**inputs)
    (text,) = outputs["ui"]["text"]
    assert len(outputs["result"]) == len(kind.RETURN_TYPES)
    return outputs["result"], text


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))

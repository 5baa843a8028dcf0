"""The name of the operation that computes attention, which says the kind of kernel.

Torch's profiler tells the operations, too, but may hang with the tracer of newer ROCm (rocm-systems 11623).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.add(func._schema.name.partition("::")[2])
        with self:  # an operation that consists of others comes here as a whole
            result = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def operation_of(compute: Callable[[], Tensor]) -> str:
    with torch.inference_mode(), _Operations() as operations:
        compute().sum().item()
    names = operations.names - {"scaled_dot_product_attention"}
    return min((name for name in names if "attention" in name), key=len, default="")

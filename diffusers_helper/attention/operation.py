"""The name of the operation that computes attention, which says the kind of kernel."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def operation_of(compute: Callable[[], Tensor]) -> tuple[str, Tensor]:
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as trace:
        result = compute()
        result.sum().item()
    names = [event.key.removeprefix("aten::") for event in trace.key_averages()]
    operations = [name for name in names if "attention" in name and name != "scaled_dot_product_attention"]
    return min(operations, key=len, default=""), result

"""A program that asks torch what a broken driver or kernel may answer with a crash, or never.

`python -m app.probe` tells the devices that torch sees, and the attention kernel that it runs; `doctor` asks
for them. `python -m app.probe ARGUMENTS`, which `app.machine.try_attention` runs, tries ways to compute
attention: the arguments of `attention.attending.try_ways` are given as JSON. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from app.jobs.stdio import take_stdout
from diffusers_helper.machine.signals import end_with_parent

# A section of FramePack at 640 has 18485 tokens, with 24 heads of 128. Fewer tokens select the same kernel.
_TOKENS, _HEADS, _HEAD_DIM = 2048, 24, 128


def main() -> None:
    """Print one answer after the other."""
    end_with_parent()
    answers = take_stdout()
    for found in _tried(json.loads(sys.argv[1])) if sys.argv[1:] else [_facts()]:
        answers.write(json.dumps(found).encode() + b"\n")


def _tried(arguments: list[Any]) -> Iterator[dict[str, Any]]:
    from diffusers_helper.attention.attending import try_ways

    return try_ways(*arguments)


def _facts() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "hip": torch.version.hip or "",
        "cuda": torch.version.cuda or "",
        "devices": 0,
    }
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        facts |= {
            "devices": torch.cuda.device_count(), "name": properties.name,
            "arch": getattr(properties, "gcnArchName", "").split(":")[0],
            "free_bytes": free, "total_bytes": total,
            # On ROCm this is the version of MIOpen.
            "dnn": torch.backends.cudnn.version() or 0,
        }  # fmt: skip
    facts["kernel"] = _kernel(device)
    return facts


def _kernel(device: Any) -> str:
    """Return the operation that SDPA runs; its name says if it is flash, memory-efficient or math."""
    import torch

    from diffusers_helper.attention.operation import operation_of

    tokens = _TOKENS if device.type == "cuda" else 256
    shape = (1, _HEADS, tokens, _HEAD_DIM)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    return operation_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))[0]


if __name__ == "__main__":
    main()

"""A program that prints the devices that torch sees, and the attention kernel that it runs, as JSON.

`doctor` runs it as a separate process in the engine's environment, because a broken driver can make it crash
or hang.
"""

from __future__ import annotations

import json
from typing import Any

from app.jobs.stdio import say

# A section of FramePack at 640 has 18485 tokens, with 24 heads of 128. Fewer tokens select the same kernel.
_TOKENS, _HEADS, _HEAD_DIM = 2048, 24, 128


def main() -> None:
    """Print all facts as one line of JSON."""
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
    say(json.dumps(facts))


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

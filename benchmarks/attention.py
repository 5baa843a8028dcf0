"""The ways to compute attention beside each other: time, planned and measured memory, and error.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/attention.py [--tokens 600 1200 2400] [--slice-mb 1 16 256]

On a CPU, times are those of the processor, for which waiting threads must not count, and the bytes are those
of live tensors: what one operation of torch takes inside is not seen.
The runs of all ways alternate. The error is the root mean square beside fp32 math, as a share of the result.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.attention.backends import BACKENDS  # noqa: E402
from diffusers_helper.attention.dispatch import attention_function  # noqa: E402
from diffusers_helper.errors import InputError  # noqa: E402
from diffusers_helper.memory.accounting import Device  # noqa: E402
from diffusers_helper.planning.backend import Backend  # noqa: E402

MB, REPEAT = 1024**2, 5


def measure(
    device: torch.device, heads: int, tokens: int, head_dim: int, dtype: torch.dtype, slices: list[int]
) -> list[dict[str, Any]]:
    """Return a row for each way at one shape."""
    q, k, v = (torch.randn(1, tokens, heads, head_dim, device=device, dtype=dtype) for _ in range(3))
    exact = attention_function("math", 0)(q.float(), k.float(), v.float())
    cases = [
        (backend, size) for backend in BACKENDS for size in (slices if backend == "sliced" else slices[:1])
    ]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    times: dict[tuple[str, int], list[float]] = {}
    for case in cases:
        backend, size = case
        planned = Backend("fused", attention_backend=backend, slice_bytes=size * MB).score_bytes(
            heads, tokens, head_dim
        )
        rows[case] = {
            "way": f"sliced, {size} MB" if backend == "sliced" else backend,
            "planned_mb": planned / MB,
        }
        try:
            result, peak = peak_of(backend, size, q, k, v)
        except (InputError, RuntimeError) as error:
            rows[case]["fails"] = str(error)[:120]
            continue
        rows[case]["measured_mb"] = (peak - result.numel() * result.element_size()) / MB
        error = (result.float() - exact).square().mean() / exact.square().mean()
        rows[case]["error"], times[case] = error.sqrt().item(), []
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(REPEAT):
        for (backend, size), seconds in times.items():
            begin = clock()
            attention_function(backend, size * MB)(q, k, v).flatten()[0].item()
            seconds.append(clock() - begin)
    native = statistics.median(times["native", slices[0]])
    for case, seconds in times.items():
        rows[case] |= {"seconds": statistics.median(seconds), "ratio": statistics.median(seconds) / native}
    return list(rows.values())


def peak_of(backend: str, size: int, *inputs: Tensor) -> tuple[Tensor, int]:
    """Return the result of one way, and the most bytes that it has added on the device."""
    compute = attention_function(backend, size * MB)
    if inputs[0].device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = compute(*inputs)
        return result, torch.cuda.max_memory_allocated() - before
    account = Device()
    account.adopt(inputs)
    before = account.allocated_bytes()
    with account:
        result = compute(*inputs)
    return result, account.peak_bytes() - before


def main() -> int:
    """Measure all shapes, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[600, 1200, 2400])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--slice-mb", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.inference_mode(), Rows(__file__) as rows:
        for tokens in given.tokens:
            dtype = getattr(torch, given.dtype)
            for row in measure(device, given.heads, tokens, given.head_dim, dtype, given.slice_mb):
                rows.add({"tokens": tokens, **row})
    if given.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return rows.exit_code()
    for row in rows:
        figures = row.get("fails") or (
            f"{row['seconds'] * 1000:9.1f} ms  {row['ratio']:6.2f} x native  error {row['error']:.1e}  "
            f"{row['measured_mb']:8.1f} MB, planned {row['planned_mb']:.1f}"
        )
        sys.stdout.write(f"{row['tokens']:6} tokens  {row['way']:16} {figures}\n")
    return rows.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())

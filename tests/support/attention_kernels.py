"""Packages that pass for flash-attn, SageAttention and comfy-kitchen, whose kernels do what a test wants."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.trials import try_candidates
from diffusers_helper.machine.routes import ATTENTION, KernelCase, Route, RouteStore, Task

# The bodies of kernels (B, N, H, D); comfy-kitchen's has (B, H, N, D).
WRONG = "return q * 0 + 1"
RIGHT_IN_KITCHEN = "return sdpa(q, k, v)"
ABORTS = "os.abort()"
IS_KILLED = "os.kill(os.getpid(), 9)"
LOSES = 'raise RuntimeError("HIP error: an illegal memory access was encountered")'
HANGS = "time.sleep(10_000)"
RAISES = 'raise RuntimeError("no kernel image is available")'

_PACKAGES = {
    "flash_attn": ("2.8.0", ("flash_attn_func", "flash_attn_varlen_func")),
    "comfy_kitchen": ("0.2.40", ("int8_attention", "adaln", "rms_rope1", "apply_rope1")),
    "sageattention": (
        "2.2.0",
        (
            "sageattn", "sageattn_qk_int8_pv_fp8_cuda", "sageattn_qk_int8_pv_fp8_cuda_sm90",
            "sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp16_triton", "sageattn_varlen",
        ),
    ),
}  # fmt: skip


def write_kernel(folder: Path, package: str, body: str) -> None:
    """Write a package to a folder that can be in PYTHONPATH."""
    version, names = _PACKAGES[package]
    text = "import os, time\nfrom torch.nn.functional import scaled_dot_product_attention as sdpa\n"
    text += "".join(f"\ndef {name}(q, k, v=None, *more, **others):\n    {body}\n" for name in names)
    text += "\nclass registry:\n    get_capable_backend = staticmethod(lambda *_: 'hip')\n"
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(text)
    inner = "_wrapped_flash_attn_backward = _wrapped_flash_attn_forward = None\n"
    (folder / package / "flash_attn_interface.py").write_text(inner)
    facts = folder / f"{package}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def tried_in_processes(
    folder: Path,
    candidates: Sequence[str],
    arguments: Sequence[Any],
    operation: str = ATTENTION,
    **limits: Any,
) -> tuple[Route, dict[str, Any]]:
    """Try ways with the packages in a folder, and return what is stored there and the results."""
    results, routes, case = (
        dict[str, Any](),
        RouteStore(folder / "routes"),
        KernelCase(operation, "cpu", "a shape"),
    )

    def take(task: Task, candidate: str, result: Any) -> None:
        results[candidate] = result

    environ = {**os.environ, "PYTHONPATH": str(folder)}
    try_candidates([Task(case, arguments, candidates)], routes, environ=environ, on_result=take, **limits)
    return RouteStore(folder / "routes").get(case), results

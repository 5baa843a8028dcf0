"""What this computer's processor computes well."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_LARGE = 2**30
_CPUINFO = Path("/proc/cpuinfo")
# What oneDNN, with which PyTorch computes on a CPU, needs for bf16: AVX-512, or special instructions
_ENOUGH = ({"avx512bw", "avx512vl", "avx512dq"}, {"avx_ne_convert"}, {"bf16"})


@cache
def computes_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Return whether the processor computes bf16 well.

    Otherwise PyTorch multiplies bf16 five times and convolves it nine times as slowly as fp32.

    Args:
        cpuinfo: The system's list of the processor's features. Without one, the answer is no.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    features = set(found[1].split()) if found else set[str]()
    return any(enough <= features for enough in _ENOUGH)


def slow_types(*, keeps: bool = False) -> tuple[str, ...]:
    """Return the names of the types that a network does not compute in on this processor, as fp32 is faster.

    Args:
        keeps: Whether it computes in bf16 however slow that is; see `keeps_bf16`.
    """
    return ("float16",) if keeps or computes_bf16() else ("float16", "bfloat16")


def keeps_bf16(num_bytes: int, *, is_quantised: bool) -> bool:
    """Return whether a network computes in bf16 even where fp32 is faster.

    Large ones do, since fp32 would double their memory. Quantised weights become bf16 when they are needed.
    """
    return is_quantised or num_bytes > _LARGE

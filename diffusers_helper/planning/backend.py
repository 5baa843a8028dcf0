"""The properties of a machine's GPU kernels that the memory estimates depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["fused", "math"]


@dataclass(frozen=True, slots=True)
class Backend:
    """The memory behaviour of a machine's kernels.

    Attributes:
        attention: The kind of SDPA kernel. "math" holds the full matrix of attention scores in fp32.
        conv_decode: The memory that decoding takes, as a multiple of what kernels without workspace take.
            InvokeAI measured 2 on ROCm (its VAE constants); Longtake has not measured it.
        conv_encode: The same factor for encoding, for which InvokeAI measured 4.
    """

    attention: Attention = "fused"
    conv_decode: float = 1.0
    conv_encode: float = 1.0


ROCM = Backend(conv_decode=2.0, conv_encode=4.0)

"""What of the machine's kernels an estimate has to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["fused", "math"]


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes.

    Attributes:
        attention: "math" keeps the scores of all tokens with all tokens, in fp32.
        conv_decode, conv_encode: times what the VAE takes with kernels that need no room of their own. On
            ROCm others measured 2 and 4 (InvokeAI's VAE constants); not measured here.
    """

    attention: Attention = "fused"
    conv_decode: float = 1.0
    conv_encode: float = 1.0


ROCM = Backend(conv_decode=2.0, conv_encode=4.0)

"""The properties of a machine's kernels that the estimates depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["fused", "math"]


@dataclass(frozen=True, slots=True)
class Backend:
    """The kernels of a machine.

    Attributes:
        attention: "math" keeps the scores of all tokens with all tokens, in fp32.
        conv_decode: The VAE's memory for decoding, as a multiple of what kernels without workspace take.
            Others measured 2 on ROCm (InvokeAI's VAE constants); it was not measured here.
        conv_encode: The same for encoding; others measured 4.
    """

    attention: Attention = "fused"
    conv_decode: float = 1.0
    conv_encode: float = 1.0


ROCM = Backend(conv_decode=2.0, conv_encode=4.0)

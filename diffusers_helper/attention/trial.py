"""The work of attention, products and the rest of a network's blocks, for the trial of their ways.

The results of some rows are compared with fp32 math.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isqrt
from typing import Any

import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import AdaLayerNormZeroSingle, RMSNorm
from torch import Tensor, nn
from torch.nn.functional import linear

from cache.kitchen import backend_of
from cache.trial import TrialWork
from diffusers_helper.attention.backends import COMPILED, FUSED
from diffusers_helper.attention.blas import preferred_library
from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.fused import compiled_blocks, fused_norms, use_kernels
from diffusers_helper.attention.operation import operation_of
from diffusers_helper.attention.padding import PaddedNorm
from diffusers_helper.errors import LongtakeError

_NUM_ROWS = 16  # of the tokens whose results are compared
_MAX_ERROR = 0.1
_GROUPS, _CHANNELS, _FRAMES = 32, 128, 4  # of a norm of the VAE
_LAYERS = ((1, 1), (1, 4), (4, 1), (5, 1))  # the inputs and outputs of a block's layers, in widths

Prepared = Iterator[tuple[Callable[[], Sequence[Tensor]], str]]


def attention_work(
    heads: int, tokens: int, head_dim: int, dtype: str, limit_bytes: int, *, device: torch.device
) -> TrialWork:
    query, key, value = _inputs((1, tokens, heads, head_dim), dtype, device)
    rows = _rows(query)

    @contextmanager
    def prepared(candidate: str) -> Prepared:
        compute = attention_function(candidate, limit_bytes)
        kernel = operation_of(lambda: compute(query, key, value))
        yield lambda: [compute(query, key, value)], kernel

    expected = _attention_in_fp32(query[:, rows], key, value)
    return TrialWork(prepared, [(0, (slice(None), rows), expected)], _MAX_ERROR)


@torch.inference_mode()
def block_work(
    heads: int, tokens: int, head_dim: int, dtype: str, spans_heads: bool, *, device: torch.device
) -> TrialWork:
    """Prepare the modulated norm of a block's input, and the norms and rotations of queries and keys.

    `spans_heads` says that these norms are of all heads. Otherwise the family is FramePack, and a norm of its
    VAE with about as many values is added.
    """
    tensors = [tensor.flatten(2) for tensor in _inputs((1, tokens, heads, head_dim), dtype, device)]
    angles = torch.rand(tokens, head_dim // 2, device=device).mul(6).repeat_interleave(2, -1)
    rotation = angles.cos(), angles.sin()
    block = _Block(heads, head_dim, spans_heads).to(tensors[0])
    exact = _Block(heads, head_dim, spans_heads).to(device)
    exact.load_state_dict(block.state_dict())
    rows = _rows(tensors[0])
    results = exact(
        *(tensor[:, rows].float() for tensor in tensors),
        image_rotary_emb=tuple(values[rows] for values in rotation),
    )
    expected: list[Any] = [(n, (slice(None), rows), result) for n, result in enumerate(results)]
    vae_norm = nn.Sequential() if spans_heads else PaddedNorm(_GROUPS, _CHANNELS).to(tensors[0])
    side = isqrt(tokens)
    states = tensors[0].new_empty(1, _CHANNELS, _FRAMES, side, side).normal_()
    if not spans_heads:
        expected.append((len(results), ..., PaddedNorm(_GROUPS, _CHANNELS).to(device)(states.float())))

    @contextmanager
    def prepared(candidate: str) -> Prepared:
        kernel = ""
        if candidate == FUSED:
            hidden = tensors[0]
            kernel = backend_of("adaln", {"x": hidden, "scale": hidden, "shift": hidden, "eps": 1e-6})
            if kernel == "eager" and hidden.is_cuda:
                raise LongtakeError("comfy-kitchen has no compiled kernel here")
        is_compiled = candidate == COMPILED
        with (
            compiled_blocks(block, [block]) if is_compiled else use_kernels(block, candidate),
            fused_norms(vae_norm, candidate),
        ):
            yield lambda: [*block(*tensors, image_rotary_emb=rotation), vae_norm(states)], kernel

    return TrialWork(prepared, expected, _MAX_ERROR)


def blas_work(heads: int, tokens: int, head_dim: int, dtype: str, *, device: torch.device) -> TrialWork:
    torch.manual_seed(0)
    width = heads * head_dim
    values = torch.randn(tokens * 5 * width, device=device, dtype=getattr(torch, dtype))
    weights = [
        torch.randn(outputs * width, inputs * width, device=device).mul_(width**-0.5).to(values)
        for inputs, outputs in _LAYERS
    ]
    inputs = [values[: tokens * weight.shape[1]].view(tokens, -1) for weight in weights]
    rows = _rows(inputs[0][None])

    @contextmanager
    def prepared(library: str) -> Prepared:
        with preferred_library(library):
            # The other rows are freed before the next product.
            yield lambda: [linear(x, weight)[rows] for x, weight in zip(inputs, weights, strict=True)], ""

    expected = [linear(x[rows].float(), weight.float()) for x, weight in zip(inputs, weights, strict=True)]
    return TrialWork(prepared, [(n, slice(None), result) for n, result in enumerate(expected)], _MAX_ERROR)


def _inputs(shape: tuple[int, ...], dtype: str, device: torch.device) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(3)]


def _rows(tensor: Tensor) -> Tensor:
    return torch.linspace(0, tensor.shape[1] - 1, _NUM_ROWS, device=tensor.device).long()


def _attention_in_fp32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (tensor.float().transpose(1, 2) for tensor in (query, key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(1, 2)


class _Block(nn.Module):
    add_q_proj = None

    def __init__(self, heads: int, head_dim: int, spans_heads: bool) -> None:
        super().__init__()
        self.heads, self._spans_heads = heads, spans_heads
        self.norm = AdaLayerNormZeroSingle(heads * head_dim)
        dim = heads * head_dim if spans_heads else head_dim
        self.norm_q, self.norm_k = (RMSNorm(dim, eps=1e-6) for _ in range(2))
        self.emb = nn.Parameter(torch.randn(1, heads * head_dim))

    def forward(
        self, hidden: Tensor, query: Tensor, key: Tensor, *, image_rotary_emb: Any = None
    ) -> list[Tensor]:
        rotate: Any = apply_rotary_emb
        results = [self.norm(hidden, emb=self.emb)[0]]
        for norm, tensor in ((self.norm_q, query), (self.norm_k, key)):
            if self._spans_heads:
                by_head = norm(tensor).unflatten(2, (self.heads, -1))
            else:
                by_head = norm(tensor.unflatten(2, (self.heads, -1)))
            if image_rotary_emb is not None:
                by_head = rotate(by_head, image_rotary_emb, sequence_dim=1)
            results.append(by_head.flatten(2))
        return results

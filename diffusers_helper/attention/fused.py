"""The blocks of a network with kernels of the package comfy-kitchen, or as torch compiles them.

Eager code sends the values of all tokens through memory for each operation of a norm, of its modulation and
of the rotation of queries and keys, or of what stands before a convolution. A kernel of the package does it
once.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import chain
from typing import Any, cast

import torch
from diffusers.models.normalization import AdaLayerNormZero, AdaLayerNormZeroSingle
from diffusers.quantizers.gguf.utils import GGUFLinear, dequantize_gguf_tensor
from gguf import GGMLQuantizationType
from torch import Tensor, nn

from cache.kitchen import backend_of, kitchen
from cache.replaced import replace_beneath, replace_forward
from diffusers_helper.attention.backends import COMPILED, FAST_8_BIT, FUSED, PLAIN
from diffusers_helper.attention.padding import PaddedNorm, repeat_edges
from diffusers_helper.errors import InputError

# The attributes of a layer whose weights have scales (`loading.casting`)
SCALE, ROTATION = "weight_scale", "weight_rotation"
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_ROTATION_ARGUMENT = 3  # of the attention of Helios and Wan; FramePack's has a name


@contextmanager
def use_kernels(network: nn.Module, kernels: str) -> Iterator[None]:
    with ExitStack() as restored:
        if kernels == COMPILED:
            # What torch cannot compile runs as it is, and torch logs the reason.
            restored.enter_context(torch._dynamo.config.patch(suppress_errors=True))
            lists = [child for child in network.children() if isinstance(child, nn.ModuleList)]
            restored.enter_context(compiled_blocks(network, chain.from_iterable(lists)))
        elif kernels != PLAIN and kitchen() is not None:
            restored.enter_context(fused_blocks(network, in_8_bit=kernels == FAST_8_BIT))
        yield


@contextmanager
def compiled_blocks(
    network: nn.Module, blocks: Iterable[nn.Module], backend: Any = "inductor"
) -> Iterator[None]:
    """Let blocks run as torch compiles them, beneath the streaming of their weights.

    diffusers' `compile_repeated_blocks` names no blocks for FramePack, and compiles what streaming puts
    around a block, too.
    """
    with ExitStack() as restored:
        for block in blocks:
            forward = partial(_compiled(type(block), backend), block)
            restored.callback(replace_beneath(network, block, forward))
        yield


@cache
def _compiled(kind: type[nn.Module], backend: Any) -> Callable[..., Any]:
    return torch.compile(kind.forward, backend=backend)


@contextmanager
def fused_blocks(network: nn.Module, *, in_8_bit: bool = False) -> Iterator[None]:
    """Let the blocks of a network compute norms, modulations and rotations with comfy-kitchen's kernels.

    FramePack's norm of queries and keys is of one head and becomes one with the rotation. That of Helios and
    Wan spans all heads and stays torch's. `in_8_bit` also replaces the products of weights in 8 bit.
    """
    layers = [layer for layer in network.modules() if in_8_bit and _has_8_bit(layer)]
    if in_8_bit and not layers:
        raise InputError(
            setting="kernels", problem="is fast8, but the weights are not in 8 bit",
            expected="weights in int8, fp8 or Q8_0",
            remedy="Set `weight_dtype` to int8, or `kernels` to auto.",
        )  # fmt: skip
    rotations = _Rotations()
    with ExitStack() as restored:
        for layer in layers:
            restored.callback(replace_forward(layer, _fast_product(layer)))
        modules: Iterator[Any] = network.modules()
        for module in modules:
            if isinstance(module, AdaLayerNormZero | AdaLayerNormZeroSingle):
                restored.callback(replace_forward(module, _modulated(module)))
            elif getattr(module, "norm_q", None) is not None:
                restored.callback(replace_forward(module, rotations.attention(module)))
                for norm in (module.norm_q, module.norm_k):
                    restored.callback(replace_forward(norm, rotations.norm(norm, module.heads)))
        yield


@contextmanager
def fused_norms(vae: nn.Module, kernels: str) -> Iterator[None]:
    """Let the decoder of HunyuanVideo's VAE compute what stands before its convolutions by one kernel.

    Its result lies in memory as the package's convolution reads it.
    """
    with ExitStack() as restored:
        if kernels in (FUSED, FAST_8_BIT) and kitchen() is not None:
            for module in vae.modules():
                if isinstance(module, PaddedNorm):
                    restored.callback(replace_forward(module, _padded(module)))
        yield


def _padded(norm: PaddedNorm) -> Callable[[Tensor], Tensor]:
    def forward(states: Tensor) -> Tensor:
        groups, eps = norm.num_groups, norm.eps
        by_frame = kitchen().group_norm_stats3d(states, groups, eps).unflatten(0, (len(states), -1))
        padded = kitchen().group_norm_silu_pad3d(
            states, norm.weight, norm.bias, groups, eps, (1, 1, 1, 1, 2), zero_pad=True,
            stats=_of_all_frames(by_frame, eps).flatten(0, 1),
        )  # fmt: skip
        repeat_edges(padded, 2)
        return padded

    return forward


def _of_all_frames(by_frame: Tensor, eps: float) -> Tensor:
    """Turn the means and the reciprocal deviations of each frame (B, T, G, 2) to those of all, for each."""
    means, scales = by_frame.unbind(-1)
    mean = means.mean(1, keepdim=True)
    variance = (scales**-2 - eps + (means - mean).square()).mean(1, keepdim=True)
    return torch.stack([mean, (variance + eps).rsqrt()], -1).expand_as(by_frame)


def _modulated(norm: Any) -> Callable[..., tuple[Tensor, ...]]:
    def forward(x: Tensor, *, emb: Tensor) -> tuple[Tensor, ...]:
        shift, scale, *others = norm.linear(norm.silu(emb)).split(x.shape[-1], dim=1)
        return kitchen().adaln(x, scale[:, None], shift[:, None], norm.norm.eps), *others

    return forward


def _has_8_bit(layer: Any) -> bool:
    if isinstance(layer, GGUFLinear):
        return getattr(layer.weight, "quant_type", None) == GGMLQuantizationType.Q8_0
    is_fp8 = type(layer) is nn.Linear and getattr(layer.weight, "storage_dtype", layer.weight.dtype) in _FP8
    return is_fp8 or hasattr(layer, SCALE)


def _in_int8(layer: Any) -> tuple[Tensor, Tensor]:
    """Get a weight in int8 with the scales of its rows. For fp8 and Q8_0, they are found anew each time.

    That takes little time beside the product with all tokens, and no memory that lasts.
    """
    weight, scales = layer.weight, getattr(layer, SCALE, None)
    if isinstance(layer, GGUFLinear):
        weight, scales = cast(Tensor, dequantize_gguf_tensor(weight)), None
    elif weight.dtype == torch.int8:
        return weight, cast(Tensor, scales)
    return kitchen().quantize_int8_rowwise(weight.float() if scales is None else weight.float() * scales)


def _fast_product(layer: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        size = getattr(layer, ROTATION, 0)
        weight, scales = _in_int8(layer)
        arguments = {
            "x": x, "weight": weight, "weight_scale": scales, "bias": layer.bias,
            "out_dtype": x.dtype, "convrot": bool(size), "convrot_groupsize": size or 256,
        }  # fmt: skip
        if x.is_cuda and backend_of("int8_linear", arguments) == "eager":
            raise InputError(
                setting="kernels", problem="is fast8, for which comfy-kitchen has no compiled kernel here",
                expected="a way that this card has", remedy="Set `kernels` to auto.",
            )  # fmt: skip
        return kitchen().int8_linear(**arguments)

    return forward


class _Rotations:
    """What the attention of a block hands on to the norms of its queries and keys."""

    def __init__(self) -> None:
        self._now: Tensor | None = None
        self._source: Any = None
        self._matrices = dict[int, Tensor]()

    def attention(self, attn: Any) -> Callable[..., Any]:
        attend = attn.forward

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            name, place = "image_rotary_emb", _ROTATION_ARGUMENT - 1
            rotation = kwargs.pop(name, None)
            if len(args) > place:
                rotation = args[place]
                args = *args[:place], None, *args[place + 1 :]
            # A single block of FramePack appends the text's tokens, which are not rotated.
            text = kwargs.get("encoder_hidden_states")
            unrotated = text.shape[1] if text is not None and attn.add_q_proj is None else 0
            self._now = None if rotation is None else self._matrices_of(rotation, unrotated)
            try:
                return attend(hidden_states, *args, **kwargs)
            finally:
                self._now = None

        return forward

    def norm(self, norm: Any, heads: int) -> Callable[[Tensor], Tensor]:
        normed = norm.forward

        def forward(x: Tensor) -> Tensor:
            if self._now is None:
                return normed(x)
            if x.dim() == self._now.dim() - 2:  # (B, N, H, D)
                return kitchen().rms_rope1(x, self._now, norm.weight.to(x.dtype), norm.eps)
            by_head = normed(x).unflatten(2, (heads, -1))
            return kitchen().apply_rope1(by_head, self._now).flatten(2)

        return forward

    def _matrices_of(self, rotation: Any, unrotated: int) -> Tensor:
        """Compute the matrices, which all blocks of a pass share."""
        if self._source is not rotation:
            self._source = rotation
            self._matrices.clear()
        if unrotated not in self._matrices:
            self._matrices[unrotated] = rotation_matrices(rotation, unrotated)
        return self._matrices[unrotated]


def rotation_matrices(rotation: Tensor | tuple[Tensor, Tensor], unrotated: int = 0) -> Tensor:
    """Turn diffusers' rotary embedding into matrices (B, N + unrotated, 1, D / 2, 2, 2).

    It has cosines and sines, each value twice: (N, D) for FramePack, (1, N, 1, D) for Wan, and both in one
    tensor (B, N, 2 D) for Helios. The last `unrotated` tokens get the identity.
    """
    cos, sin = rotation if isinstance(rotation, tuple) else rotation.chunk(2, dim=-1)
    batch = cos.shape[0] if cos.dim() > 2 else 1
    cos, sin = (
        values[..., ::2].float().reshape(batch, -1, 1, values.shape[-1] // 2) for values in (cos, sin)
    )
    matrices = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    if not unrotated:
        return matrices
    identity = torch.eye(2, device=matrices.device).expand(batch, unrotated, *matrices.shape[2:])
    return torch.cat([matrices, identity], dim=1)

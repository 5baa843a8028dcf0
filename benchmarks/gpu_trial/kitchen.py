"""FramePack's blocks with the fused kernels of the package comfy-kitchen, for the trial alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import AdaLayerNormZero, AdaLayerNormZeroSingle
from torch import Tensor, nn

from benchmarks.gpu_trial.trial import blocks_of

Call = Callable[..., Any]
_EPSILON = 1e-6


@contextmanager
def kitchen(network: nn.Module) -> Iterator[dict[str, str]]:
    """Let the blocks of a network use comfy-kitchen's kernels within the context.

    Yields:
        The back end that computes each function, complete after the first step.

    Raises:
        ImportError: If the package is not installed, or not for this machine.
    """
    package, backends = import_module("comfy_kitchen"), dict[str, str]()

    def call(function: str, **arguments: Any) -> Any:
        if function not in backends:
            backends[function] = package.registry.get_capable_backend(function, arguments)
        return getattr(package, function)(*arguments.values())

    def modulated(norm: Any, x: Tensor, emb: Tensor) -> tuple[Tensor, ...]:
        shift, scale, *others = norm.linear(norm.silu(emb)).split(x.shape[-1], dim=1)
        return call("adaln", x=x, scale=scale[:, None], shift=shift[:, None], eps=_EPSILON), *others

    with ExitStack() as undo:
        for kind in (AdaLayerNormZero, AdaLayerNormZeroSingle):
            undo.enter_context(patch.object(kind, "forward", modulated))
        processor = _Processor(call)
        for block in blocks_of(network):
            undo.enter_context(patch.object(block.attn, "processor", processor))
        yield backends


def rotation_of(cos: Tensor, sin: Tensor, unrotated: int = 0) -> Tensor:
    """Return diffusers' rotary embedding (S, D) as matrices (1, S + unrotated, 1, D / 2, 2, 2).

    The tokens at the end, which are those of the text, get the identity.
    """
    cos, sin = cos[:, ::2], sin[:, ::2]  # both values of a pair have the same angle
    matrices = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    identity = torch.eye(2, dtype=matrices.dtype, device=matrices.device)
    return torch.cat([matrices, identity.expand(unrotated, *matrices.shape[1:])])[None, :, None]


class _Processor:
    """The attention of both kinds of blocks, with the norm and the rotation of queries and keys in one."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, call: Call) -> None:
        self._call = call
        self._rotation: tuple[Tensor | None, dict[int, Tensor]] = None, {}

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None, image_rotary_emb: Any = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the results for the picture's and for the text's tokens, as diffusers' processor does."""
        text, is_single = encoder_hidden_states, attn.add_q_proj is None
        states = torch.cat([hidden_states, text], dim=1) if is_single else hidden_states
        query, key, value = (
            layer(states).unflatten(2, (attn.heads, -1)) for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        cos, sin = image_rotary_emb
        query, key = self._call(
            "rms_rope", q=query, k=key,
            freqs_cis=self._rotate(cos, sin, text.shape[1] if is_single else 0),
            q_scale=attn.norm_q.weight, k_scale=attn.norm_k.weight, epsilon=attn.norm_q.eps,
        )  # fmt: skip
        if not is_single:
            added = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            its_query, its_key, its_value = (layer(text).unflatten(2, (attn.heads, -1)) for layer in added)
            query = torch.cat([query, attn.norm_added_q(its_query)], dim=1)
            key = torch.cat([key, attn.norm_added_k(its_key)], dim=1)
            value = torch.cat([value, its_value], dim=1)
        attend: Any = dispatch_attention_fn
        result = attend(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(
            2, 3
        )
        hidden, text = result[:, : -text.shape[1]], result[:, -text.shape[1] :]
        if is_single:
            return hidden, text
        return attn.to_out[0](hidden), attn.to_add_out(text)

    def _rotate(self, cos: Tensor, sin: Tensor, unrotated: int) -> Tensor:
        """Return the rotation, which all blocks of a pass share."""
        if self._rotation[0] is not cos:
            self._rotation = cos, {}
        known = self._rotation[1]
        if unrotated not in known:
            known[unrotated] = rotation_of(cos, sin, unrotated)
        return known[unrotated]

"""What is the same in every step of a section, computed once.

This holds for the rotary tables, the embeddings of the clean latents and of the picture, and the projections
of the prompt's states and vector. The text refiner itself sees the time, so it runs in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from diffusers_helper.memory.forwards import replace_forward


class _Once:
    """A forward function that returns its earlier result when it is given the same tensors again.

    They have to be the same objects, and nobody may write to them or to the results.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._known: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *args: Any, **named: Any) -> Any:
        given = (*args, *named.items())
        for earlier, result in self._known:
            if len(earlier) == len(given) and all(map(_is_same, earlier, given)):
                return result
        result = self._forward(*args, **named)
        self._known.append((given, result))
        return result


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):  # an argument with its name
        return all(map(_is_same, one, other))
    return one is other if isinstance(one, Tensor) or isinstance(other, Tensor) else one == other


class Constants:
    """The results of those parts of a transformer whose inputs do not change in a section."""

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel) -> None:
        parts = (
            transformer.rope, transformer.clean_x_embedder, transformer.image_projection,
            transformer.context_embedder.proj_in, transformer.time_text_embed.text_embedder,
        )  # fmt: skip
        self._parts = [(part, _Once(part.forward)) for part in parts if part is not None]

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Let passes of the transformer within the context take these results."""
        with ExitStack() as undo:
            for part, once in self._parts:
                undo.callback(replace_forward(part, once))
            yield

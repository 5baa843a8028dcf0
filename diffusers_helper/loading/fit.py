"""The check that the parts of a model were made for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers_helper.errors import InputError

# Each fact about one part, with the value that it must have: a number, or a fact about another part.
_FACTS = (
    ("transformer", "in_channels", "transformer takes latents of %s channels", 16),
    ("transformer", "has_clean_x_embedder", "transformer takes history (has_clean_x_embedder %s)", True),
    ("transformer", "has_image_proj", "transformer takes the picture (has_image_proj %s)", True),
    ("vae", "latent_channels", "vae gives latents of %s channels", ("transformer", "in_channels")),
    ("vae", "spatial_compression_ratio", "vae shrinks pictures by %s", 8),
    ("vae", "temporal_compression_ratio", "vae shrinks time by %s", 4),
    (
        "text_encoder", "hidden_size", "text_encoder gives %s values per token",
        ("transformer", "text_embed_dim"),
    ),
    (
        "text_encoder_2", "hidden_size", "text_encoder_2 gives %s values",
        ("transformer", "pooled_projection_dim"),
    ),
    (
        "image_encoder", "hidden_size", "image_encoder gives %s values per token",
        ("transformer", "image_proj_dim"),
    ),
)  # fmt: skip


def check_fit(name: str, value: Callable[[str, str], Any]) -> None:
    """Check that the inputs and outputs of the parts have matching sizes.

    Args:
        name: The name of the model.
        value: Returns the value of a name in the configuration of a part; None if it is not there.

    Raises:
        InputError: If they do not match.
    """
    for part, key, fact, other in _FACTS:
        found, wanted = value(part, key), value(*other) if isinstance(other, tuple) else other
        if None not in (found, wanted) and found != wanted:
            raise InputError(
                f"The parts of model {name} do not match: {fact % found}; expected {wanted}.",
                "Use parts that were made for each other.",
                setting="model",
            )

"""The convolutions that a VAE computes, found without computing anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from cache.conv import card_of
from cache.conv_routes import ConvCase
from diffusers_helper.loading.quick_vae import quicken
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.vae.families import family_of


def conv_cases(
    vae: Any, dtype: torch.dtype, device: torch.device, height: int, width: int, windows: Iterable[int]
) -> list[ConvCase]:
    """Return the distinct convolutions of encoding a picture or a tile and decoding temporal windows.

    They are found by running a network with the configuration of `vae` on the meta device. The sides are in
    pixels, the lengths of the windows in latent frames.
    """
    found: dict[ConvCase, None] = {}
    arch, rocm = card_of(device)

    def note(case: ConvCase, rung: str) -> None:
        found.setdefault(replace(case, arch=arch, rocm=rocm))

    with torch.device("meta"):
        outline = type(vae).from_config(vae.config).eval()
    quicken(outline)
    nn.Module.to(outline, dtype)  # diffusers' own method warns about layers that it might keep in fp32
    family = family_of(outline)
    latents = [side // family.shrink for side in (height, width)]
    with torch.inference_mode(), initialize_miopen_fallback(on_first_call=note).install(outline):
        family.encode(torch.empty(1, 3, 1, height, width, dtype=dtype, device="meta"))
        for count in sorted(set(windows)):
            shape = (1, vae.config.latent_channels, count, *latents)
            for _ in family.decode(torch.empty(shape, dtype=dtype, device="meta")):
                pass
    return list(found)

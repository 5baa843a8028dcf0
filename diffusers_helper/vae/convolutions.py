"""The convolutions that a VAE computes, found without computing anything."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cache.conv import card_of, case_of
from cache.conv_rungs import ConvCase, parse_call
from cache.replaced import ReplacedFunctions
from diffusers_helper.loading.quick_vae import speed_up
from diffusers_helper.planning.vae import Tiles
from diffusers_helper.vae.families import vae_family
from diffusers_helper.vae.passes import Grid


def conv_cases(
    vae: Any,
    dtype: torch.dtype,
    device: torch.device,
    height: int,
    width: int,
    windows: Iterable[int],
    tile_px: int = 0,
) -> dict[ConvCase, int]:
    """Count the convolutions of encoding a picture or a tile and of decoding windows.

    A network with the configuration of `vae` runs on the meta device for that. Height and width are in
    pixels, the windows' lengths in latent frames.
    """
    arch, rocm = card_of(device)
    with torch.device("meta"):
        meta_vae = type(vae).from_config(vae.config).eval()
    speed_up(meta_vae)
    nn.Module.to(meta_vae, dtype)  # diffusers' own method warns about layers that it might keep in fp32
    family = vae_family(meta_vae)
    scale = family.spatial_compression
    grid = Grid.cut((height // scale, width // scale), Tiles.of(tile_px), scale)
    latent_sides = grid.rows.tile_size, grid.columns.tile_size
    height, width = (side * scale for side in latent_sides)
    calls, counts = list[ConvCase](), Counter[ConvCase]()

    def counting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            if parsed := parse_call(*args, **kwargs):
                calls.append(case_of(*parsed))
            return function(*args, **kwargs)

        return call

    functions = {function: counting(function) for function in (functional.conv2d, functional.conv3d)}
    with torch.inference_mode(), ReplacedFunctions(functions):
        family.encode(torch.empty(1, 3, 1, height, width, dtype=dtype, device="meta"))
        counts.update(calls)
        calls.clear()
        for num_latents, num_repeats in sorted(Counter(windows).items()):
            shape = (1, vae.config.latent_channels, num_latents, *latent_sides)
            for _ in family.decode(torch.empty(shape, dtype=dtype, device="meta")):
                pass
            counts.update(calls * num_repeats)
            calls.clear()
    return {replace(case, arch=arch, rocm=rocm): count for case, count in counts.items()}

"""The time of each way to compute the convolutions of FramePack's VAE, and the ways that fail."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from cache.conv_probe import condemn_interrupted, measure, multiplications
from cache.conv_routes import ConvCase, RouteStore
from diffusers_helper.bench.context import Case, Context, Figures
from diffusers_helper.bench.steps import profile_in
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.miopen_fallback import classify
from diffusers_helper.planning.estimates import OWN_WINDOW
from diffusers_helper.vae.convolutions import conv_cases
from diffusers_helper.vae.passes import DTYPES

_CPU_TILE, _CPU_WINDOW = 64, 2  # the full size would take a CPU minutes
_QUICK_SHAPES = 6


def convolutions(context: Context) -> Iterator[Case]:
    """Yield each distinct convolution of a picture and of a section's windows; quickly, some of them.

    If a way has ended the process, the convolution is measured again without that way.
    """
    find_mode = context.environ.get("MIOPEN_FIND_MODE", "default").lower()
    routes = RouteStore(context.folder / f"routes-{find_mode}")
    profile = profile_in(context)
    dtype = DTYPES.get(profile.vae_dtype.value, torch.float32)
    tile = profile.vae_tile.value if context.has_gpu else _CPU_TILE
    windows = (OWN_WINDOW,) if context.has_gpu else (_CPU_WINDOW,)
    vae = empty_network("vae", CONFIGS["vae"])
    cases = conv_cases(vae, dtype, context.torch_device, tile, tile, windows)
    condemn_interrupted(routes, cases[0].arch)
    if context.is_quick:
        cases = _spread(sorted(cases, key=multiplications))
    for case in cases:
        deadly = tuple(routes.get(case).blocklist)
        without = f", without {' and '.join(deadly)}" if deadly else ""
        yield f"{_words(case)}{without}", partial(_measured, context, case, routes, deadly)


def _spread(cases: list[ConvCase]) -> list[ConvCase]:
    """Return some evenly spread cases, which represent all."""
    count = min(_QUICK_SHAPES, len(cases))
    return [cases[(2 * n + 1) * len(cases) // (2 * count)] for n in range(count)]


def _words(case: ConvCase) -> str:
    sizes = "x".join(map(str, case.shape)), "x".join(map(str, case.weight))
    stride = "" if set(case.stride) == {1} else f", stride {'x'.join(map(str, case.stride))}"
    return f"{case.dtype} {sizes[0]} with {sizes[1]}{stride}"


def _measured(context: Context, case: ConvCase, routes: RouteStore, deadly: tuple[str, ...]) -> Figures:
    with torch.inference_mode():
        found = measure(case, context.torch_device, routes, classify, leave_out=deadly)
    plain = {} if case.rocm != "none" else {"miopen": "plain"}  # other platforms have no MIOpen

    def named(by_rung: dict[str, Any]) -> Figures:
        return {plain.get(rung, rung): value for rung, value in by_rung.items()}

    return {
        "milliseconds": named(found.milliseconds), "first_seconds": named(found.first_seconds),
        "fastest": plain.get(found.rung, found.rung) or None, "failed_ways": named(found.failed),
        "is_reduced": not context.has_gpu,
    }  # fmt: skip

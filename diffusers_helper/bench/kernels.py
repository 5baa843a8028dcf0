"""The speed of copies within main memory, of the disk and of the bus, and of the VAE's convolutions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from cache.conv_probe import measure, spread
from cache.conv_routes import ConvCase, RouteStore
from diffusers_helper.bench.context import Case, Context, Figures, profile_in
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.files import replacing
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine.local import disk_speed
from diffusers_helper.memory.measuring import wait_for
from diffusers_helper.planning.estimates import OWN_WINDOW
from diffusers_helper.vae.convolutions import conv_cases
from diffusers_helper.vae.passes import DTYPES

_SAMPLE_BYTES = 128 * 1024**2
_COPIES = 4


def host(context: Context) -> Iterator[Case]:
    """Yield a copy within main memory, and writing and reading of a file in the folder for files."""
    yield "copy within main memory", lambda: {"host_copy_bytes_per_second": _host_copy(context)}
    yield "disk", partial(_disk, context)


def _host_copy(context: Context) -> float:
    source, target = (torch.ones(_SAMPLE_BYTES, dtype=torch.uint8) for _ in range(2))
    return _SAMPLE_BYTES / context.time(lambda: target.copy_(source)).median


def _disk(context: Context) -> Figures:
    """Measure writing with a sync, and reads that bypass the kernel's memory where the system allows it."""
    sample, content = context.folder / "sample", torch.randint(256, (_SAMPLE_BYTES,), dtype=torch.uint8)
    begin = time.perf_counter()
    with replacing(sample) as temporary:
        temporary.write_bytes(content.numpy().data)
    seconds = time.perf_counter() - begin
    read = disk_speed(sample)
    sample.unlink()
    return {"disk_write_bytes_per_second": _SAMPLE_BYTES / seconds, "disk_read_bytes_per_second": read}


def bus(context: Context) -> Iterator[Case]:
    """Yield copies in both directions, from and to pinned and ordinary main memory."""
    for name, is_pinned in (("", False), ("pinned_", True)):
        yield f"{name}copies".replace("_", " "), partial(_bus, context, name, is_pinned)


def _bus(context: Context, name: str, is_pinned: bool) -> Figures:
    size = 2 * _SAMPLE_BYTES
    on_host = torch.ones(size, dtype=torch.uint8, pin_memory=is_pinned)
    on_card = torch.ones(size, dtype=torch.uint8, device=context.torch_device)

    def speed(target: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            for _ in range(_COPIES):
                target.copy_(source, non_blocking=is_pinned)

        return _COPIES * size / context.time(copy).median

    found = {
        f"host_to_device_{name}bytes_per_second": speed(on_card, on_host),
        f"device_to_host_{name}bytes_per_second": speed(on_host, on_card),
    }
    wait_for(context.device)
    return found


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
    routes.condemn_interrupted(cases[0].arch)
    if context.is_quick:
        cases = spread(cases, min(_QUICK_SHAPES, len(cases)))
    for case in cases:
        deadly = tuple(routes.get(case).deadly)
        without = f", without {' and '.join(deadly)}" if deadly else ""
        yield f"{_words(case)}{without}", partial(_measured, context, case, routes, deadly)


def _words(case: ConvCase) -> str:
    sizes = "x".join(map(str, case.shape)), "x".join(map(str, case.weight))
    stride = "" if set(case.stride) == {1} else f", stride {'x'.join(map(str, case.stride))}"
    return f"{case.dtype} {sizes[0]} with {sizes[1]}{stride}"


def _measured(context: Context, case: ConvCase, routes: RouteStore, deadly: tuple[str, ...]) -> Figures:
    with torch.inference_mode():
        found = measure(case, context.torch_device, routes, leave_out=deadly)
    plain = {} if case.rocm != "none" else {"miopen": "plain"}  # other platforms have no MIOpen

    def named(by_rung: dict[str, Any]) -> Figures:
        return {plain.get(rung, rung): value for rung, value in by_rung.items()}

    return {
        "milliseconds": named(found.milliseconds), "first_seconds": named(found.first_seconds),
        "fastest": plain.get(found.rung, found.rung) or None, "failed_ways": named(found.failed),
        "is_reduced": not context.has_gpu,
    }  # fmt: skip

"""The convolutions that a VAE computes, found without computing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cache.conv import card_of, case_of
from cache.conv_routes import ConvCase
from cache.conv_rungs import understood
from diffusers_helper.loading.quick_vae import quicken
from diffusers_helper.vae.families import family_of


class _ConvCalls(TorchFunctionMode):
    """A context that counts this thread's convolutions, each as often as `times` says."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.times = Counter[ConvCase](), 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if func in (functional.conv2d, functional.conv3d) and (known := understood(*args, **kwargs)):
            self.counts[case_of(*known)] += self.times
        return func(*args, **kwargs)


def conv_cases(
    vae: Any, dtype: torch.dtype, device: torch.device, height: int, width: int, windows: Iterable[int]
) -> dict[ConvCase, int]:
    """Return the convolutions of encoding a picture or a tile and decoding windows, with their calls.

    They are found by running a network with the configuration of `vae` on the meta device. The sides are in
    pixels, the lengths of the windows in latent frames.
    """
    arch, rocm = card_of(device)
    with torch.device("meta"):
        outline = type(vae).from_config(vae.config).eval()
    quicken(outline)
    nn.Module.to(outline, dtype)  # diffusers' own method warns about layers that it might keep in fp32
    family = family_of(outline)
    latents = [side // family.shrink for side in (height, width)]
    with torch.inference_mode(), _ConvCalls() as calls:
        family.encode(torch.empty(1, 3, 1, height, width, dtype=dtype, device="meta"))
        for count, calls.times in sorted(Counter(windows).items()):
            shape = (1, vae.config.latent_channels, count, *latents)
            for _ in family.decode(torch.empty(shape, dtype=dtype, device="meta")):
                pass
    return {replace(case, arch=arch, rocm=rocm): count for case, count in calls.counts.items()}

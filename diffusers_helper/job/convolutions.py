"""The choice of the convolutions that take most of a decode's time, by measurement before the VAE works.

MIOpen may choose a kernel that is ten to a hundred times as slow as another rung.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from cache.conv import card_of
from cache.conv_probe import heaviest
from cache.conv_routes import ConvCase
from cache.conv_tuning import measure_in_processes
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError
from diffusers_helper.families.packing import SectionPlan, decode_windows
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.device import Device
from diffusers_helper.vae.convolutions import conv_cases
from diffusers_helper.vae.families import vae_family

_log = logging.getLogger(__name__)

_SHARE = 0.9  # of the multiplications, whose shapes are measured
# The time after which no further shape is measured, and the time after which a measurement counts as hanging.
# In MIOpen's mode FAST, a kernel is compiled within seconds.
_ALL_SECONDS, _ONE_SECONDS = 60.0, 240.0


def choose_convolutions(
    plans: MemoryPlans, sections: SectionPlan, local: Local, on_progress: Callable[[int, int], object],
    cancel: CancelToken, device: Device,
) -> None:  # fmt: skip
    """Measure the shapes that take most of the time in a job's decodes and were not measured on this card.

    What cannot be measured is left to the ladder.
    """
    ladder = plans.models.convolutions.ladder
    measure = local.measure_convolutions
    routes = ladder.open_routes if ladder else None
    torch_device = device.torch_device
    start_time = time.monotonic()
    num_measured = 0
    if not ladder or not routes or not routes.folder or measure is None or card_of(torch_device)[1] == "none":
        return
    calls = _calls(plans, sections, torch_device)
    cases = [case for case in heaviest(calls, _SHARE) if not routes.get(case).is_measured]
    if not cases:
        return
    on_progress(num_measured, len(cases))

    def on_result(case: str, result: str) -> None:
        nonlocal num_measured
        num_measured += 1
        _log.info("%s: %s", case, result)
        on_progress(num_measured, len(cases))

    def run(tasks: Sequence[tuple[str, Sequence[str]]]) -> str:
        seconds = _ALL_SECONDS - (time.monotonic() - start_time)
        return "" if seconds <= 0 else measure(
            tasks, routes.folder, str(torch_device), take=on_result, limit_bytes=device.cap_bytes or 0,
            answer_seconds=_ONE_SECONDS, all_seconds=seconds, cancel=cancel,
        )  # fmt: skip

    try:
        measure_in_processes(cases, routes, run)
    except LongtakeError as error:
        _log.warning("%s", error.message)
    finally:
        ladder.reload()


def _calls(plans: MemoryPlans, sections: SectionPlan, torch_device: torch.device) -> Mapping[ConvCase, int]:
    vae = plans.models.component("vae")
    height, width = (min(side, plans.plan.vae_tile_px or side) for side in plans.size)
    windows = [size for sizes in decode_windows(sections, plans.request.vae_chunk) for size in sizes]
    if vae_family(vae).has_stream:
        windows = [section.decode_latents for section in sections]
    return conv_cases(vae, plans.dtype_of("vae"), torch_device, height, width, windows)

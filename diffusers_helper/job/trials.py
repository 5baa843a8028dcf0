"""The trials of kernels with which a job begins, each once on a card, and none for long."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from cache.conv import card_of
from cache.conv_probe import trials
from cache.conv_rungs import ConvCase
from diffusers_helper.attention.backends import NATIVE
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Stage
from diffusers_helper.families.packing import SectionPlan, decode_windows
from diffusers_helper.job.plans import LATE, TRIAL_SECONDS, MemoryPlans
from diffusers_helper.machine.local import Local, store_kernel
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.routes import KernelCase, RouteStore, Task
from diffusers_helper.memory.device import Device
from diffusers_helper.output.report import Report
from diffusers_helper.vae.convolutions import conv_cases
from diffusers_helper.vae.families import vae_family

_log = logging.getLogger(__name__)

_SHARE = 0.9  # of the multiplications of the decodes, whose shapes are measured
# A way that takes longer counts as hanging. In MIOpen's mode FAST, a kernel is compiled within seconds.
_CANDIDATE_SECONDS = 30.0


def with_trials_of(local: Local, stage: Stage, report: Report, cancel: CancelToken) -> Local:
    """Let the trials report their progress as a stage, end with the job, and take a minute at most."""
    if not local.try_candidates:
        return local
    plain = local.try_candidates

    def try_candidates(tasks: Sequence[Task], routes: RouteStore, **settings: Any) -> bool:
        num_tried, total = 0, sum(len(task.candidates) for task in tasks)
        report.trying(stage, num_tried, total)

        def on_result(task: Task, candidate: str, result: Mapping[str, Any]) -> None:
            nonlocal num_tried
            num_tried += 1
            _log.info("%s, %s: %s", task.case, candidate, result)
            report.trying(stage, num_tried, total)
            if candidate == NATIVE and isinstance(task.case, KernelCase) and "kernel" in result:
                store_kernel(local.kernels, task.case.card, version_of("torch"), result["kernel"])

        return plain(
            tasks, routes, on_result=on_result, cancel=cancel, seconds=_CANDIDATE_SECONDS,
            all_seconds=TRIAL_SECONDS, **settings,
        )  # fmt: skip

    return replace(local, try_candidates=try_candidates)


def choose_convolutions(
    plans: MemoryPlans, sections: SectionPlan, local: Local, warn: Callable[[str], None], device: Device
) -> None:
    """Measure the shapes that take most of the time in a job's decodes and were not measured on this card.

    MIOpen may choose a kernel that is ten to a hundred times as slow as another rung. What cannot be measured
    is left to the ladder.
    """
    ladder = plans.models.convolutions.ladder
    routes = ladder.open_routes if ladder else None
    torch_device = device.torch_device
    if (
        not ladder
        or not routes
        or not routes.folder
        or not local.try_candidates
        or card_of(torch_device)[0] == "cpu"
    ):
        return
    tasks = trials(_heaviest(_calls(plans, sections, device)), routes)
    if tasks:
        settings = {"device": str(torch_device), "limit_bytes": device.cap_bytes or 0}
        try:
            if not local.try_candidates(tasks, routes, **settings):
                warn(LATE)
        finally:
            ladder.reload()


def _calls(plans: MemoryPlans, sections: SectionPlan, device: Device) -> Mapping[ConvCase, int]:
    vae = plans.models.component("vae")
    windows = [size for sizes in decode_windows(sections, plans.request.vae_chunk) for size in sizes]
    if vae_family(vae).has_stream:
        windows = [section.decode_latents for section in sections]
    tile_px = plans.plan.vae_tile_px or 0
    return conv_cases(vae, plans.dtype_of("vae"), device.torch_device, *plans.size, windows, tile_px)


def _heaviest(calls: Mapping[ConvCase, int]) -> list[ConvCase]:
    """List the cases with the most multiplications, the largest first, until they make their share of all."""
    work = {case: case.multiplications * count for case, count in calls.items()}
    sorted_cases = sorted(work, key=lambda case: -work[case])
    sums = accumulate(work[case] for case in sorted_cases)
    limit = _SHARE * sum(work.values())
    return [case for case, total in zip(sorted_cases, sums, strict=True) if total - work[case] < limit]

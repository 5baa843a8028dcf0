"""The time that a person waits for a video: that of each stage, of a section, and of the whole video.

Where nothing was measured on this machine, these are estimates, each with its source.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffusers_helper.events import Stage
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.cards.speeds import Duration
from diffusers_helper.planning.profiles import YOU, Profile
from diffusers_helper.planning.video import VideoPlan, known_networks

# The trial of attention, and MIOpen's first search for the 56 shapes of convolutions of FramePack: 0.5 to 2
# minutes, of which this is the middle. Estimates, but for the 9 s of an H200 (docs/log/gpu.md).
_ATTENTION = {"rocm": Duration(18, "15 to 20 s"), "cuda": Duration(9, "docs/log/gpu.md, measured on an H200")}
_CONVOLUTIONS = {"rocm": Duration(75, "0.5 to 2 minutes with MIOpen")}


def expected_times(
    plan: VideoPlan, profile: Profile, info: ModelInfo, *, is_first: bool, section: int = 1
) -> Mapping[Stage, Duration]:
    """Return how long the stages of a job will probably take; those that are not known are left out.

    "sample" and "decode" are those of one section; the others come once.

    Args:
        section: The number of that section, from 1 in the order of making.
        is_first: Whether it is the first job of this kind on this machine, whose weights come from the disk,
            and which tries kernels.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    kind, found = profile.machine.kind, dict[Stage, Duration]()
    if is_first:
        disk, is_tried = plan.disk, plan.attention.source in (YOU, "measured")
        size = sum(network.file_bytes for network in known_networks(info, profile).values())
        found["load"] = Duration(size / disk.bytes_per_second, f"{disk.name}, {disk.source}")
        if kind in _ATTENTION and not is_tried:
            found["attention"] = _ATTENTION[kind]
        if kind in _CONVOLUTIONS:
            found["convolutions"] = _CONVOLUTIONS[kind]
    if plan.copies:
        copied = sum(cost.copied_bytes for cost in plan.costs if cost.stage in ("text", "text_2"))
        source = f"{plan.copies.name}, {plan.copies.source}"
        found["text"] = Duration(copied / plan.copies.bytes_per_second, source)
    if plan.step:
        lead = 0.0
        if plan.copies and not plan.job.keep_all_resident:
            lead = plan.job.stage("sample").resident_bytes / plan.copies.bytes_per_second
        found["sample"] = Duration(plan.steps[section - 1] * plan.step.seconds + lead, plan.step.source)
    if plan.decoding:
        seconds = plan.latents[section - 1] * plan.decoding.seconds
        found["decode"] = Duration(seconds, plan.decoding.source)
    return found

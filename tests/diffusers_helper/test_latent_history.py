"""Tests of the clean latents that a section of FramePack sees, against plain lists."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from diffusers_helper.families.packing import MODES, Mode, SectionPlan, plan_sections, with_closing_section
from diffusers_helper.framepack.history import LatentHistory


def model_of_latents(
    mode: Mode, plan: SectionPlan, prefix: list[float], suffix: list[float], end_distance: int | None
) -> list[Any]:
    """List what each section sees of a video of numbered latents, and which of them are decoded with it."""
    line, rows = [*(prefix if mode == "forward" else suffix)], list[Any]()
    for section in plan:
        new = [100.0 * section.number + number for number in range(plan.latent_window_size)]
        start = prefix[-1] if prefix else line[0] if line and mode == "forward" else 1.0
        clean = section.indices.clean
        if mode == "forward":
            *far, near_1, near_2, nearest = [*[0.0] * 19, *line][-19:]
            near = [near_1, near_2]
            line += new
        else:
            nearest, *others = [*line, *[0.0] * 19][:19]
            near, far = others[:2], others[2:]
            if section.number == 1 and end_distance is not None:
                nearest, clean = -1.0, (clean[0], clean[1] + end_distance)
            start = line[-1] if section.is_closing else start
            line = [*line, *new] if section.is_closing else [*prefix * section.has_start, *new, *line]
        count, lead = section.decode_latents, 0
        if section.number == 1 and mode == "inverted":
            count += min(len(suffix), 9)
        if section.video_index == 0 and len(prefix) > 1:
            lead = min(len(prefix) - 1, 9)
        if mode == "forward" or section.is_closing:
            decoded = line[-count - lead :]
        else:
            begin = len(prefix[:-1]) - lead if section.video_index == 0 else 0
            decoded = line[begin : begin + count + lead]
        start = 7.0 if section.number == 2 else start  # a picture of its own
        rows.append((clean, start, nearest, near, far, [*line], decoded))
    return rows


def numbered(values: Sequence[float]) -> Tensor:
    return torch.tensor([*values], dtype=torch.float32).view(1, 1, -1, 1, 1)


@pytest.mark.parametrize("num_suffix", [0, 8, 12])
@pytest.mark.parametrize("num_prefix", [0, 1, 8, 12])
@pytest.mark.parametrize("mode", MODES)
def test_each_section_sees_the_latents_next_to_it(mode: Mode, num_prefix: int, num_suffix: int) -> None:
    num_suffix *= mode == "inverted"  # what lies behind a video is known in this order alone
    prefix, suffix = [*range(2, 2 + num_prefix)], [*range(50, 50 + num_suffix)]
    for seconds, is_loop, end_distance in (
        (1.0, True, None), (4.0, False, None), (4.0, False, 18), (2.4, True, 0),
    ):  # fmt: skip
        plan = plan_sections(seconds, mode, has_picture=bool(prefix))
        plan = with_closing_section(plan) if is_loop and mode == "inverted" else plan
        end = None if end_distance is None else numbered([-1])
        history = LatentHistory(
            mode, numbered([1]), end, numbered(prefix), numbered(suffix), end_distance=end_distance or 0,
            section_starts={2: numbered([7])},
        )  # fmt: skip
        rows = list[Any]()
        for section in plan:
            seen = history.context(section)
            new = [100.0 * section.number + number for number in range(9)]
            history.add(numbered(new), section)
            parts = (
                seen.start, seen.history_1x, seen.history_2x, seen.history_4x, history.latents,
                history.to_decode(section),
            )  # fmt: skip
            (start,), (nearest,), *others = (part.flatten().tolist() for part in parts)
            rows.append((seen.indices.clean, start, nearest, *others))
        assert rows == model_of_latents(mode, plan, prefix, suffix, end_distance)

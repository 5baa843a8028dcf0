"""Tests that the small picture of a section shows the middle of what that section adds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.families.packing import MODES, Mode, plan_sections, with_closing_section
from diffusers_helper.output import previews
from diffusers_helper.output.previews import MIN_INTERVAL_SECONDS, THUMBNAIL_SIDE, Preview, write_thumbnail


@pytest.mark.parametrize("mode", MODES)
def test_each_section_shows_its_own_middle(mode: Mode, tmp_path: Path) -> None:
    plan = plan_sections(3.6, mode=mode)
    if mode == "inverted":
        plan = with_closing_section(plan)
    for section in plan:
        # Each frame is lighter by 0.02 than the one before it in the decode, beginning with black.
        levels = torch.arange(section.decoded_frames) * 0.02 - 1
        frames = levels.view(-1, 1, 1, 1).expand(-1, 64, 384, 3)
        path = tmp_path / "thumbs" / f"{section.number:04}.webp"
        write_thumbnail(path, section, frames, mode)
        with Image.open(path) as picture:
            assert picture.size == (THUMBNAIL_SIDE, THUMBNAIL_SIDE // 6)
            level = np.asarray(picture.convert("L")).mean() / 127.5
        begin = section.overlap_frames if mode == "forward" or section.is_closing else 0
        own = section.decoded_frames - section.overlap_frames
        assert level == pytest.approx((begin + own // 2) * 0.02, abs=0.03)
    assert {path.suffix for path in (tmp_path / "thumbs").iterdir()} == {".webp"}


def test_previews_leave_the_work_most_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, frame = [100.0], np.zeros((8, 8, 3), np.uint8)
    preview = Preview(tmp_path / "preview", 0.1)
    monkeypatch.setattr(previews.time, "monotonic", lambda: clock[0])

    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        clock[0] += 0.01 if clock[0] < 150 else 10  # a slow disk

    monkeypatch.setattr(previews, "write_atomic", write)
    slow = 210 + 10 * previews._PAUSE_FACTOR
    times = {100.0: True, 99.9 + MIN_INTERVAL_SECONDS: False, 100 + MIN_INTERVAL_SECONDS: True, 200.0: True}
    for time, is_written in {**times, slow - 0.1: False, slow: True}.items():
        clock[0] = time
        assert (preview.show_frame(frame, 1, round(time)) is not None) == is_written
    assert len([*(tmp_path / "preview").iterdir()]) == 2

"""Tests of what the command line writes about a running job."""

from __future__ import annotations

import io

from app.commands.terminal import ProgressBar
from diffusers_helper.events import Reading, StageStarted


def test_each_reading_of_weights_is_told_from_its_beginning() -> None:
    told = io.StringIO()
    bar = ProgressBar(io.BytesIO(), told)
    for total in (20, 40):
        bar.show(StageStarted(job="j", time=0.0, stage="load"))
        for tenth in (1, 1, 10):
            done = tenth * total * 2**30 // 10
            bar.show(Reading(job="j", time=1.0, done_bytes=done, total_bytes=total * 2**30))
    assert told.getvalue().splitlines() == [
        "Reading the model: 2 of 20 GB", "Reading the model: 20 of 20 GB",
        "Reading the model: 4 of 40 GB", "Reading the model: 40 of 40 GB",
    ]  # fmt: skip

"""Tests of jobs with a step cache: what they report and plan, and that they resume with the same bytes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diffusers_helper.events import Event, Finished, StepDone
from diffusers_helper.pipeline import generate
from tests.support.making import Stop, load_tiny, make, outline, seconds_for, tiny_request, write_scene


@pytest.mark.slow
def test_a_job_with_a_step_cache_reports_its_skips_and_resumes_with_the_same_bytes(
    tiny_model: Path, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == ["decode 2"]:
            raise Stop

    models, scene = load_tiny(tiny_model), write_scene(tmp_path / "scene.png")
    order = tiny_request(scene, seconds=seconds_for(3), steps=8, cfg=1.5, step_cache="magcache")
    result, events = make(order, models, tmp_path / "whole")
    steps = [event for event in events if isinstance(event, StepDone)]
    skips = [event.skipped for event in steps if event.section == 2]
    assert skips == [0, 1, 1, 2, 3, 3, 4, 4]  # the ratios of FramePack I2V, each for three of its 25 steps
    assert isinstance(events[-1], Finished)
    assert events[-1].steps_skipped == 3 * skips[-1]

    stages = json.loads((tmp_path / "whole" / "memory.json").read_text())["stages"]
    sampling = [stage for stage in stages if stage["stage"] == "sample"]
    plain, _ = make(replace(order, step_cache="off"), models, tmp_path / "plain")
    assert plain.video.read_bytes() != result.video.read_bytes()
    record = json.loads((tmp_path / "plain" / "memory.json").read_text())
    (without, *_) = [stage for stage in record["stages"] if stage["stage"] == "sample"]
    state = sampling[0]["predicted_bytes"] - without["predicted_bytes"]
    grown = sampling[0]["measured_bytes"] - without["measured_bytes"]
    assert 0 < grown <= state

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        generate(order, models, folder=broken, on_event=stop)
    again, _ = make(order, models, broken, resume_from=broken)
    assert again.video.read_bytes() == result.video.read_bytes()

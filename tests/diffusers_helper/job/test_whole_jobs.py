"""Whole jobs as a runner makes them: every line of their logs, what they keep, and what their recipes say."""

import json
import logging
import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event, from_dict, to_dict
from diffusers_helper.loading.loaders import Models
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.runner import Runner
from tests.support.answers import changed, text_of, without
from tests.support.jobs import asked_in
from tests.support.making import outline, tiny_request, write_scene

# What depends on the machine or its speed.
FIGURES = r"(peak_device_bytes|peak_host_bytes|seconds) [\d.]+"
KINDS = {
    "inverted": {"prompt": "the red zebra", "seconds": 2.4, "resolution": 64, "vram_cap_gb": 0.5},
    "forward": {"mode": "forward", "vram_cap_gb": 0.0055, "preserved_gb": 0.005, "cfg": 2.0},
}


def log_lines(folder: JobFolder) -> list[str]:
    lines = [line.partition(" INFO ")[2] for line in folder.log.read_text(encoding="utf-8").splitlines()]
    text = "\n".join(
        line for line in lines if not line.startswith(("read ", "mapped ", "=")) and "Gave back" not in line
    )
    return without(re.sub(FIGURES, r"\1 ...", text), job=folder.path).splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job(
    kind: str, deep_model: Path, deep_models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:  # fmt: skip
    folder, events = JobFolder(tmp_path / "job"), list[Event]()
    scene = write_scene(tmp_path / "scene.png", 90, 100)
    request = tiny_request(scene, model=str(deep_model), **KINDS[kind])
    caplog.handler.setLevel(logging.WARNING)  # as the console of a program without --verbose
    Runner().run(asked_in(folder.path, request), events.append, CancelToken())
    assert caplog.text == ""
    assert [from_dict(to_dict(event)) for event in events] == events
    assert {event.job for event in events} == {"job"}
    assert [event.time for event in events] == sorted(event.time for event in events)
    lines = [*log_lines(folder), text_of(outline(events))]
    record = json.loads(folder.memory.read_text())
    stages = record.pop("stages")
    assert (
        max(stage["measured_bytes"] for stage in stages) == record["peak_device_bytes"] <= record["cap_bytes"]
    )
    times = [time for stage in stages for time in (stage.pop("begin"), stage.pop("end"))]
    assert times == sorted(times)
    for stage in stages:
        assert 0 < stage.pop("measured_bytes") <= 1.02 * stage["predicted_bytes"]
    lines += [text_of(record | {"peak_device_bytes": "..."}), *map(text_of, stages)]
    files = sorted(path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*.[!w]*"))
    recipe, usual = read_recipe(folder.video), GenerationRequest(image="a.png").to_json()
    settings = [f"{name}: {value}" for name, value in recipe.settings.items()]
    own = changed(settings, [f"{name}: {value}" for name, value in json.loads(usual).items()])
    copy = GenerationRequest.from_dict(json.loads(folder.request.read_text(encoding="utf-8")))
    assert copy.image == str(folder.input)
    lines += [text_of(files), text_of([line for line in own if not line.startswith("no ")])]
    assert "\n".join([*lines, text_of(recipe.vae), folder.attention.read_text()]) == snapshot

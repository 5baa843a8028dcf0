"""Tests of whole jobs of a mid-size model under caps from generous to impossible, and of their check."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.caps import Caps, Row, Stage, measure
from diffusers_helper.cancel import CancelToken
from diffusers_helper.framepack.work import encode_states
from diffusers_helper.job.memory import JobMemory, MemoryPlans
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine import sysfs
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.report import Report
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.loras import write_lora
from tests.support.making import load_tiny, tiny_request, write_scene
from tests.support.mid_model import Size, write_mid_model

MB = 1024**2
SIZE = Size(width=384, dual=5, single=10)


def measured(caps: Caps, count: int) -> tuple[list[Row], list[str]]:
    found = list(measure(caps, count))
    return [row for row, _ in found], [fault for _, faults in found for fault in faults]


@pytest.fixture(autouse=True)
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in bf16 on every processor, as the sizes here are of it."""
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return load_tiny(write_mid_model(tmp_path_factory.mktemp("models") / "mid", SIZE))


@pytest.mark.slow
def test_every_cap_holds_changes_no_byte_and_is_predicted_within_a_tenth(
    models: Models, tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.png", 192, 96)
    request = tiny_request(scene)
    rows, faults = measured(Caps(models, request, tmp_path / "jobs"), 6)
    assert not faults, "\n".join(faults)
    done = rows[:-2]
    assert len(done) == 6
    assert done[0].measured > 100 * MB  # all at once
    assert sum(row.streamed > 0 for row in done) >= 2
    assert done[-1].measured < done[0].measured / 3
    assert {row.tile for row in done} >= {256, 64}
    # Every streamed block is copied once a step, and once for the prompt.
    assert sorted(row.streamed for row in done) == [row.streamed for row in done]


@pytest.mark.slow
def test_every_cap_holds_with_a_lora(models: Models, tmp_path: Path) -> None:
    file, network = tmp_path / "style.safetensors", models.component("transformer")
    write_lora(file, network, "kohya original", rank=64, alpha=32)
    request = tiny_request(write_scene(tmp_path / "scene.png", 192, 96), lora=str(file))
    rows, faults = measured(Caps(models, request, tmp_path / "jobs"), 3)
    assert not faults, "\n".join(faults)
    plain, _ = measured(Caps(models, replace(request, lora=""), tmp_path / "plain"), 1)
    # The branches are a part of the weights, and they are streamed with their blocks.
    branches = sum(tensor.numel() * 2 for tensor in load_file(file).values() if tensor.ndim == 2)
    more = rows[0].measured - plain[0].measured
    assert branches <= more < 1.5 * branches
    assert any(row.streamed for row in rows[:-2])


@pytest.mark.parametrize("prompt", ["", "the red ball moves right", "kaleidoscopically " * 12, "red " * 200])
def test_what_a_prompt_takes_beside_the_weights_is_within_a_tenth(
    prompt: str, models: Models, small_scene: Path, tmp_path: Path
) -> None:
    plans = MemoryPlans(tiny_request(small_scene, prompt=prompt), models, 64, 64, Local())
    tokenizer = models.component("tokenizer")
    job = plans, JobFolder(tmp_path), create_autospec(Report, instance=True), CancelToken()
    with torch.inference_mode(), JobMemory(*job) as memory:
        memory.run("text", lambda encoder: to_host(encode_states(encoder, tokenizer, prompt)))
        record = memory.store.records[-1]
    measured = record.measured_bytes - record.resident_bytes
    assert 0.9 < measured / plans.plan.stage("text").working_bytes <= 1


RIGHT = Row(
    cap=100, tile=256, planned=100, measured=95, same_latents=True, same_video=True,
    stages=[Stage("sample", 100, 95, 0)],
)  # fmt: skip


def test_the_check_notices_what_must_not_be() -> None:
    assert list(RIGHT.faults()) == []
    for wrong, reported in (
        (replace(RIGHT, cap=94), "took 95 bytes under a cap of 94"),
        (replace(RIGHT, same_video=False), "other bytes"),
        (replace(RIGHT, same_latents=False), "other bytes"),
        (replace(RIGHT, retries=1), "further attempts"),
        (replace(RIGHT, planned=105), "the job under a cap of 100: planned 1.105"),
        (replace(RIGHT, stages=[Stage("text", 112, 100, 0)]), "text under a cap of 100: planned 1.120"),
        (replace(RIGHT, stages=[Stage("text", 89, 100, 0)]), "text under a cap of 100: planned 0.890"),
    ):
        assert any(reported in fault for fault in wrong.faults()), reported

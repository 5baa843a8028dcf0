"""Tests of the benchmark's parts that need no GPU, and of random weights that stand for FramePack's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cache.conv_rungs import RUNGS
from diffusers_helper.bench import context, kernels, sections, steps
from diffusers_helper.bench.context import Context
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import NETWORKS
from tests.support.drivers import NO_ALGORITHM


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the published networks be as small as the bundled ones, with more blocks."""
    demo = find_model("demo")
    configs = {
        name: json.loads(Path(demo.components[name].location, "config.json").read_text(encoding="utf-8"))
        for name in NETWORKS
        if name in demo.components
    }
    configs["transformer"] |= {"num_layers": 3, "num_single_layers": 4}
    for module in (context, steps):
        monkeypatch.setattr(module, "CONFIGS", configs)
    monkeypatch.setattr(steps, "_FEW", {})
    monkeypatch.setattr(context, "stand_in_info", lambda: replace(demo, side=64))
    return configs


def cases(part: Any, context: Context) -> dict[str, Any]:
    return {label: work if isinstance(work, str) else work() for label, work in part(context)}


def test_stand_in_models_have_the_published_networks_and_the_bundled_tokenizers() -> None:
    published = find_model(context.PUBLISHED).components
    components = context.stand_in_info().components
    assert components == published | {
        name: find_model("demo").components[name] for name in ("tokenizer", "tokenizer_2")
    }


@pytest.mark.usefixtures("small")
def test_stand_in_models_load_random_networks(tmp_path: Path) -> None:
    models = context.StandInModels(tmp_path, torch.device("cpu"))
    assert len(models.component("transformer").single_transformer_blocks) == 4
    assert (tmp_path / "transformer" / context.WEIGHTS_FILE).exists()


def test_one_block_stands_for_all_in_the_file_and_not_on_the_device(
    small: dict[str, Any], tmp_path: Path
) -> None:
    network: Any = context.stand_in("transformer", tmp_path)
    file = tmp_path / "transformer" / context.WEIGHTS_FILE
    first, last = (network.single_transformer_blocks[n].proj_mlp.weight for n in (0, 3))
    assert first is not last
    assert first.data_ptr() == last.data_ptr()
    total, blocks = sizes_of(network, [*network.transformer_blocks, *network.single_transformer_blocks])
    assert total - 2 * blocks[0] - 3 * blocks[-1] < file.stat().st_size < total
    context.tie_blocks(network, "transformer")
    assert sizes_of(network, [])[0] == total - 2 * blocks[0] - 3 * blocks[-1]


def test_a_streamed_step_is_planned_copied_and_equal(small: dict[str, Any], tmp_path: Path) -> None:
    found = cases(steps.steps, Context(True, tmp_path))
    assert list(found) == ["computing alone", "all blocks streamed"]
    streamed = found["all blocks streamed"]
    assert (streamed["streamed_blocks"], streamed["blocks"]) == (7, 7)
    assert streamed["same_result"]
    assert streamed["copied_bytes"] == streamed["planned_copied_bytes"] > 0
    assert streamed["planned_bytes"] == pytest.approx(streamed["measured_bytes"], rel=0.1)


def test_a_step_with_weights_from_the_disk_leaves_no_file(small: dict[str, Any], tmp_path: Path) -> None:
    (figures,) = cases(steps.from_disk, Context(False, tmp_path)).values()
    assert figures["copied_bytes"] > 0
    assert figures["file_bytes"] > figures["copied_bytes"]
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_whole_section_with_random_weights(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The random networks compute in bf16 on any processor, and the plan is to take that for granted.
    monkeypatch.setattr("diffusers_helper.models.sizes.slow_types", lambda **_: ("float16",))
    found = cases(sections.framepack, Context(True, tmp_path))["section"]
    assert found["frames"] == 37
    assert found["is_finite"]
    assert set(found["stages"]) == {"text", "text_2", "vae_encode", "vision", "sample", "decode"}
    # The bundled model, whose files the plan reads, stores its other networks in other types.
    sample = found["stages"]["sample"]
    assert sample["planned_bytes"] == pytest.approx(sample["measured_bytes"], rel=0.1)


def test_ways_of_convolutions_that_fail_are_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*call: Any) -> torch.Tensor:
        raise RuntimeError(NO_ALGORITHM)

    monkeypatch.setattr(kernels, "_QUICK_SHAPES", 1)
    monkeypatch.setitem(RUNGS, "taps", replace(RUNGS["taps"], run=fail))
    (found,) = cases(kernels.convolutions, Context(True, tmp_path)).values()
    assert set(found["milliseconds"]) == {"plain", "tiles"}
    assert "No suitable algorithm" in found["failed_ways"]["taps"]
    assert found["fastest"] in found["milliseconds"]


def test_each_plan_of_the_vae_is_measured(tmp_path: Path) -> None:
    found = cases(sections.small_plans, Context(True, tmp_path))
    assert next(iter(found)).startswith("encode, ")
    assert any(label.startswith("decode, windows") for label in found)
    for label, figures in found.items():
        assert figures["stage"] == ("vae_encode" if label.startswith("encode") else "decode")
        assert figures["is_reduced"]
        assert figures["planned_bytes"] == pytest.approx(figures["measured_bytes"], rel=0.5), label

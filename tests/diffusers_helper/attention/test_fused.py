"""Tests of fused kernels: they compute what the blocks compute, and a job keeps those with which it began."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import HeliosTransformer3DModel
from torch import nn

from app.trials import try_kernels
from cache.kitchen import kitchen
from diffusers_helper.attention.fused import rotation_matrices, use_kernels
from diffusers_helper.attention.trial import try_kernels as try_here
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Warned
from diffusers_helper.machine.local import Facts, blocks_key, fastest_backends, store_trial
from diffusers_helper.machine.packages import kitchen_version
from diffusers_helper.pipeline import generate
from diffusers_helper.provenance.recipe import read_recipe
from tests.diffusers_helper.attention.test_dispatch import inputs
from tests.support import tiny_helios, tiny_model, tiny_wan
from tests.support.attention_kernels import ABORTS, HANGS, LOSES, RAISES, WRONG, write_kernel
from tests.support.making import Stop, load_tiny, make, outline, seconds_for, tiny_request

pytest.importorskip("comfy_kitchen")
SHAPE = (2, 96, 16, "bfloat16")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each use of the package: results may have the bits of plain ones."""
    calls: list[str] = []
    monkeypatch.setattr("diffusers_helper.attention.fused.kitchen", lambda: calls.append("used") or kitchen())
    return calls


def _wan() -> tuple[nn.Module, dict[str, Any]]:
    arguments = {
        "hidden_states": torch.randn(1, 48, 3, 8, 8), "timestep": torch.full((1,), 500.0),
        "encoder_hidden_states": torch.randn(1, 7, tiny_model.TEXT_DIM), "return_dict": False,
    }  # fmt: skip
    return tiny_wan.tiny_transformer(), arguments


def _framepack() -> tuple[nn.Module, dict[str, Any]]:
    return tiny_model.tiny_transformer(), inputs((0,))


def _helios() -> tuple[nn.Module, dict[str, Any]]:
    network: HeliosTransformer3DModel = tiny_helios.tiny_transformer()
    channels = network.config.in_channels
    history = {
        f"latents_history_{name}": torch.randn(1, channels, frames, 8, 8)
        for name, frames in (("short", 1), ("mid", 2), ("long", 4))
    }
    indices = {f"indices_{name}": torch.arange(tensor.shape[2])[None] for name, tensor in history.items()}
    arguments = {
        "hidden_states": torch.randn(1, channels, 3, 8, 8), "timestep": torch.full((1,), 500.0),
        "encoder_hidden_states": torch.randn(1, 7, tiny_model.TEXT_DIM), "return_dict": False,
        "indices_hidden_states": torch.arange(3)[None], **history,
        **indices,
    }  # fmt: skip
    return network, arguments


@pytest.mark.parametrize("family", [_framepack, _helios, _wan])
def test_a_network_gives_the_same_with_fused_kernels(
    family: Callable[[], tuple[nn.Module, dict[str, Any]]], calls: list[str]
) -> None:
    """Expect no more than the rounding of fp32, in norms whose weights differ from 1."""
    torch.manual_seed(5)
    network, arguments = family()
    for name, parameter in network.named_parameters():
        if "norm_" in name:
            nn.init.uniform_(parameter, 0.5, 2.0)
    with torch.inference_mode():
        expected = network(**arguments)[0]
        with use_kernels(network, "fused"):
            calls.clear()
            result = network(**arguments)[0]
        assert calls
        calls.clear()
        again = network(**arguments)[0]
    assert not calls
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(again, expected)


def test_tokens_of_the_text_are_not_rotated() -> None:
    cos, sin = torch.rand(5, 8), torch.rand(5, 8)
    matrices = rotation_matrices((cos, sin), unrotated=2)
    assert matrices.shape == (1, 7, 1, 4, 2, 2)
    assert torch.equal(matrices[0, 5:, 0], torch.eye(2).expand(2, 4, 2, 2))
    assert torch.equal(matrices[0, 1, 0, 3], torch.tensor([[cos[1, 6], -sin[1, 6]], [sin[1, 6], cos[1, 6]]]))


@pytest.mark.parametrize("spans_heads", [False, True])
def test_the_trial_measures_both_ways_with_the_error_of_their_type(spans_heads: bool) -> None:
    plain, fused = try_here(["plain", "fused"], *SHAPE, 0, spans_heads)
    assert (plain["kernel"], fused["kernel"]) == ("", "eager")
    for tried in (plain, fused):
        assert 1e-3 < tried["error"] < 1e-2
        assert tried["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (ABORTS, "its process ended with -6"),
        (RAISES, "no kernel image is available"),
        (LOSES, "HIP error: an illegal memory access was encountered"),
        (WRONG, "its results differ by "),
        ("return q / 0", "its results differ by "),
        (HANGS, "it took more than 3 seconds"),
    ],
    ids=["aborts", "raises", "loses the card", "is wrong", "is not finite", "hangs"],
)
def test_kernels_that_fail_leave_the_plain_way(body: str, failure: str, tmp_path: Path) -> None:
    write_kernel(tmp_path, "comfy_kitchen", body)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    seconds = 3.0 if body == HANGS else 100.0
    (fused,) = try_kernels(("fused",), *SHAPE, environ=environ, seconds=seconds)
    assert fused["failed"].startswith(failure)
    facts, key = Facts(tmp_path / "facts.json"), blocks_key(SHAPE, spans_heads=False)
    store_trial(facts, "gfx1100", key, [fused])
    assert fastest_backends(facts, "gfx1100", 0.01).get(key, "plain") == "plain"


@pytest.mark.parametrize(("seconds", "way"), [(0.5, "fused"), (0.95, "plain"), (2.0, "plain")])
def test_kernels_are_taken_only_if_they_are_faster(
    seconds: float, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, key = Facts(tmp_path / "facts.json"), blocks_key(SHAPE, spans_heads=True)
    results = [
        {"backend": name, "seconds": time, "error": 0.003, "kernel": ""}
        for name, time in (("plain", 1.0), ("fused", seconds))
    ]
    store_trial(facts, "gfx1100", key, results)
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: way}
    monkeypatch.setattr("diffusers_helper.machine.local.version_of", lambda name: "0.2.41")
    assert fastest_backends(facts, "gfx1100", 0.01) == {}  # another version is tried anew


@pytest.mark.slow
def test_a_resumed_job_has_the_kernels_with_which_it_began(
    tiny_model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == ["sample 2"]:
            raise Stop

    models = load_tiny(tiny_model)
    request = tiny_request(small_scene, seconds=seconds_for(2), steps=1, kernels="fused")
    whole, events = make(request, models, tmp_path / "whole")
    assert len(calls) > 1  # once it is asked for
    calls.clear()
    plain, _ = make(tiny_request(small_scene, seconds=seconds_for(2), steps=1), models, tmp_path / "plain")
    assert not calls
    torch.testing.assert_close(whole.latents, plain.latents, atol=1e-3, rtol=1e-3)
    assert (tmp_path / "whole/kernels").read_text() == kitchen_version("fused")
    assert not (tmp_path / "plain/kernels").exists()
    assert not any(isinstance(event, Warned) for event in events)

    for name in ("begun", "elsewhere"):
        with pytest.raises(Stop):
            generate(request, models, folder=tmp_path / name, on_event=stop)
    resumed, _ = make(request, models, tmp_path / "begun", resume_from=tmp_path / "begun")
    assert resumed.video.read_bytes() == whole.video.read_bytes()
    recipe = read_recipe(resumed.video)
    assert recipe.made_with["kernels"] == kitchen_version("fused")
    assert not [notice for notice in recipe.notices_on("cpu") if "comfy-kitchen" in notice]

    for module in ("job.setup", "provenance.recipe"):
        monkeypatch.setattr(f"diffusers_helper.{module}.kitchen_version", lambda kernels: "")
    assert [notice for notice in recipe.notices_on("cpu") if "which is not here" in notice]
    _, events = make(request, models, tmp_path / "elsewhere", resume_from=tmp_path / "elsewhere")
    told = next(event.message for event in events if isinstance(event, Warned))
    assert told.startswith(
        f"This video was begun with {kitchen_version('fused')} and goes on with PyTorch alone."
    )


def test_products_in_8_bit_differ_by_what_is_said_and_are_taken_only_when_chosen(
    tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    """Expect a layer's rounding of about 1 %, in a job whose weights are in int8, and a refusal elsewhere."""
    models = load_tiny(tiny_model)
    settings: dict[str, Any] = {"steps": 1, "weight_dtype": "int8"}
    results = dict[str, Any]()
    for kernels in ("plain", "fused", "fast8"):
        request = tiny_request(small_scene, kernels=kernels, **settings)
        results[kernels] = make(request, models, tmp_path / kernels)[0]
    plain, fused, fast = (result.latents for result in results.values())
    assert (fused - plain).norm() / plain.norm() < 1e-4
    assert 1e-4 < (fast - plain).norm() / plain.norm() < 0.05
    assert read_recipe(results["fast8"].video).made_with["kernels"] == kitchen_version("fast8")
    with pytest.raises(InputError, match="kernels is fast8, but the weights are not in int8"):
        make(tiny_request(small_scene, kernels="fast8"), models, tmp_path / "refused")

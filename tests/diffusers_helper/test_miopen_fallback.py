"""Tests that a failing convolution is computed in another way, without a trace in the picture."""

import copy
import gc
import logging
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan
from torch import Tensor, nn
from torch.nn import functional

from cache.conv import classify
from cache.conv_rungs import CHOSEN_RUNGS, RUNGS
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.miopen_fallback import (
    MIOpenFallbackHandler,
    _MethodWithFallback,
    initialize_miopen_fallback,
)
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.planning.variables import CONV_CHOICES
from tests.support.drivers import (
    MEMORY,
    NO_ALGORITHM,
    NONE,
    ONE,
    TEXTS,
    Driver,
    break_rungs,
    ladder,
    some_call,
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def call() -> tuple[Any, ...]:
    return some_call()


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLHunyuanVideo:
    """Return the demo model's VAE, with nothing installed."""
    folder = find_model("demo").components["vae"].location
    network = AutoencoderKLHunyuanVideo.from_pretrained(folder).eval().requires_grad_(False)
    return network


@pytest.fixture(scope="module")
def latents() -> Tensor:
    return torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(5)) * 2


@pytest.fixture(scope="module")
def undisturbed(vae: AutoencoderKLHunyuanVideo, latents: Tensor) -> Tensor:
    return vae.decode(latents, return_dict=False)[0]


# ---- recognising --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_known_errors(text: str) -> None:
    assert classify(RuntimeError(text)) == TEXTS[text]


def test_what_no_other_kernel_can_help() -> None:
    assert classify(torch.OutOfMemoryError("anything")) == "device_memory"
    assert classify(RuntimeError("Given groups=1, weight of size [1, 2], expected input to have 2")) is None
    assert classify(RuntimeError("")) is None
    assert classify(ValueError("miopenStatusUnknownError")) is None
    assert classify(KeyboardInterrupt("miopenStatusUnknownError")) is None


# ---- climbing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [NO_ALGORITHM, MEMORY, "hipErrorIllegalAddress"])
def test_the_pixels_of_a_decode_survive(
    text: str,
    driver: Driver,
    vae: AutoencoderKLHunyuanVideo,
    latents: Tensor,
    undisturbed: Tensor,
    tmp_path: Path,
) -> None:
    """Let every second shape fail. The second run avoids the failed shapes and gives the same bytes."""
    with initialize_miopen_fallback().install(vae):
        vae.decode(latents)
    doomed = set(sorted(set(driver.shapes))[::2])
    assert len(doomed) >= 5
    driver.text, driver.fails = text, lambda x, weight: tuple(x.shape) in doomed
    results = []
    for run in range(2):
        before = driver.failed
        with initialize_miopen_fallback(folder=tmp_path).install(vae) as handler:
            results.append(vae.decode(latents, return_dict=False)[0])
        assert (driver.failed > before) == (run == 0)
        assert (handler.statistics() == "") == (run == 1)
    difference = (results[0] - undisturbed).abs().max() / 2
    assert difference < 1 / 255
    assert (to_uint8(results[0]).astype(int) - to_uint8(undisturbed)).max() <= 1
    assert torch.equal(results[0], results[1])


def test_without_an_error_every_bit_is_the_same(
    vae: AutoencoderKLHunyuanVideo, latents: Tensor, undisturbed: Tensor, tmp_path: Path
) -> None:
    with initialize_miopen_fallback(folder=tmp_path / "routes").install(vae):
        assert torch.equal(vae.decode(latents, return_dict=False)[0], undisturbed)
    assert not (tmp_path / "routes").exists()


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", [name for name in RUNGS if name not in CHOSEN_RUNGS])
def test_a_forced_rung_is_the_only_one_and_teaches_nothing(
    rung: str, call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handler = initialize_miopen_fallback(folder=tmp_path, rung=rung)
    assert handler.ladder is not None
    assert torch.allclose(handler.ladder.conv3d(*call), functional.conv3d(*call), atol=1e-5)
    assert handler.ladder.attempts == {rung: 1}
    asked = break_rungs(monkeypatch, *RUNGS)
    again = initialize_miopen_fallback(folder=tmp_path, rung=rung).ladder
    assert again is not None
    with pytest.raises(RuntimeError, match="No suitable algorithm"):
        again.conv3d(*call)
    assert asked == [rung]
    assert list(tmp_path.iterdir()) == []


def test_a_forced_rung_that_cannot_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    x, weight = torch.ones(1, 1, 2, 3, 3), torch.ones(1, 1, 2, 3, 3)
    result = ladder(forced="tiles").conv3d(x, weight, None, ONE, NONE, ONE, 1)
    assert result.flatten().tolist() == [18.0]
    assert "rung tiles is forced but cannot compute" in caplog.text


def test_off_changes_nothing_and_an_unknown_choice_is_refused() -> None:
    module = nn.Conv3d(1, 1, 1)
    handler = initialize_miopen_fallback(rung="off").install(module)
    assert "_conv_forward" not in vars(module)
    assert handler.statistics() == ""
    refused = "LONGTAKE_CONV_RUNG is 'MIOpen'; expected one of auto, kitchen, miopen, channels, taps, "
    with pytest.raises(InputError, match=re.escape(refused)):
        initialize_miopen_fallback(rung="MIOpen")
    assert {"auto", "off", *RUNGS} == set(CONV_CHOICES)
    with pytest.raises(ValueError, match="expected one of kitchen, miopen"):
        ladder(forced="warp")


def test_statistics_as_the_document_shows_them(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = MIOpenFallbackHandler(ladder())
    assert handler.ladder is not None
    handler.print_stats()
    assert caplog.text == ""
    break_rungs(monkeypatch, "miopen", "taps", "native", "tiles")
    for _ in range(3):
        handler.ladder.conv3d(*call)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        handler.print_stats()
    first, second, *rest, last = caplog.messages
    assert first == "=== MIOpen Fallback Statistics ==="
    assert second == "CPU fallback attempts: 3, successes: 3"
    assert last == "==================================="
    assert rest[0] == f"miopen left for 1 shape, last because of: {NO_ALGORITHM}"
    assert "taps attempts: 1, successes: 0" in rest


# ---- installing ----------------------------------------------------------------------------------


def convs_of(module: nn.Module) -> Iterator[nn.Conv3d]:
    return (inner for inner in module.modules() if isinstance(inner, nn.Conv3d))


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": 1},
        {"padding": "same"},
        {"padding": "same", "kernel_size": (2, 4, 1)},
        {"padding": "valid", "stride": 2},
        {"padding": (1, 0, 2), "stride": (2, 1, 2), "dilation": (1, 2, 1), "groups": 2, "bias": False},
        {"padding": "same", "padding_mode": "replicate", "kernel_size": 2},
        {"padding": (2, 1, 0), "padding_mode": "circular"},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rung", [None, "taps"])
def test_a_module_computes_what_it_did(settings: dict[str, Any], rung: str | None) -> None:
    torch.manual_seed(1)
    module = nn.Conv3d(4, 6, **{"kernel_size": 3, **settings})
    for x in (torch.randn(2, 4, 5, 9, 8), torch.randn(4, 5, 9, 8)):
        expected = module(x)
        with MIOpenFallbackHandler(ladder(forced=rung)).install(module):
            found = module(x)
            assert torch.equal(copy.deepcopy(module)(x), found)
        assert torch.equal(found, expected) if rung is None else torch.allclose(found, expected, atol=1e-5)


def test_causal_subclasses_keep_their_own_padding() -> None:
    torch.manual_seed(1)
    wan = AutoencoderKLWan(base_dim=8, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[True])
    latents = torch.randn(1, 4, 2, 4, 4)
    with torch.inference_mode():
        expected = wan.decode(latents).sample
        with initialize_miopen_fallback().install(wan) as handler:
            assert torch.equal(wan.decode(latents).sample, expected)
    assert handler.ladder is not None
    assert handler.ladder.attempts["miopen"] > 10


def test_installing_twice_is_installing_once_and_removing_leaves_no_trace() -> None:
    module = nn.Sequential(nn.Conv3d(1, 2, 1), nn.Conv3d(2, 1, 1))

    def own(*call: Any) -> Tensor:
        return call[0]

    module[1]._conv_forward = own
    before = [dict(vars(inner)) for inner in module]
    first, second = initialize_miopen_fallback(), initialize_miopen_fallback()
    first.install(module)
    installed = [dict(vars(inner)) for inner in module]
    assert all(before != after for before, after in zip(before, installed, strict=True))
    first.install(module, module)
    assert [dict(vars(inner)) for inner in module] == installed
    with second.install(module):
        first.remove()  # does not exist any more
        assert vars(module[0])["_conv_forward"].ladder is second.ladder
    assert [dict(vars(inner)) for inner in module] == before


def test_a_handler_keeps_no_model_alive() -> None:
    handler, module = initialize_miopen_fallback(), nn.Conv3d(1, 1, 1)
    handler.install(module)
    seen = weakref.ref(module)
    del module
    gc.collect()
    assert seen() is None
    handler.remove()


def test_every_convolution_of_every_network_has_the_ladder(tiny_model: Path) -> None:
    models = load_models(find_model(str(tiny_model), allow_folder=True), device="cpu")
    found = {
        (name, isinstance(vars(conv).get("_conv_forward"), _MethodWithFallback))
        for name in CONFIGS
        for conv in models.component(name).modules()
        if isinstance(conv, nn.modules.conv._ConvNd)
    }
    assert found == {("transformer", True), ("vae", True), ("image_encoder", True)}


def test_a_model_is_loaded_with_the_handler_given(tiny_model: Path) -> None:
    info = find_model(str(tiny_model), allow_folder=True)
    handler = initialize_miopen_fallback(rung="tiles")
    models = load_models(info, device="cpu", convolutions=handler)
    models.component("vae").decode(torch.randn(1, 16, 1, 8, 8))
    assert handler.ladder is not None
    assert handler.ladder.attempts["tiles"] > 10

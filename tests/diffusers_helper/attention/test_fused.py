"""Tests of fused and compiled blocks: they give the same, and a job keeps those with which it began."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, HeliosTransformer3DModel
from gguf import GGMLQuantizationType
from torch import nn

from app.machine import machine_of_card
from cache.kitchen import kitchen
from cache.trial import try_candidates as try_here
from diffusers_helper.attention.fused import compiled_blocks, fused_norms, rotation_matrices, use_kernels
from diffusers_helper.attention.trial import block_work
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Warned
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.loading.casting import cast_weights
from diffusers_helper.loading.loaders import Models
from diffusers_helper.loading.lora_adapters import Loras
from diffusers_helper.loading.quick_vae import speed_up
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.packages import kernels_version, version_of
from diffusers_helper.machine.routes import BLOCK_WORK, Route, fastest
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.pipeline import generate
from diffusers_helper.planning.notes import COMPILES
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.weights.lora_files import loras_of
from tests.diffusers_helper.attention.test_choice import Tried
from tests.diffusers_helper.attention.test_dispatch import inputs
from tests.support import checkpoints, tiny_helios, tiny_model, tiny_wan
from tests.support.attention_kernels import (
    ABORTS,
    HANGS,
    LOSES,
    RAISES,
    WRONG,
    tried_in_processes,
    write_kernel,
)
from tests.support.checkpoints import write_quantised_gguf
from tests.support.loras import write_lora
from tests.support.making import Stop, add_model, load_tiny, make, outline, seconds_for, tiny_request

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


@pytest.mark.parametrize(("kernels", "is_fused"), [("fused", True), ("fast8", True), ("compiled", False)])
def test_a_decoder_gives_the_same_with_fused_norms(kernels: str, is_fused: bool, calls: list[str]) -> None:
    """Expect the statistics of all frames, which differ from one to the next, in a batch of two clips."""
    torch.manual_seed(5)
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 16, 16, 16), layers_per_block=1, norm_num_groups=8
    ).eval()  # fmt: skip
    speed_up(vae)
    for name, parameter in vae.decoder.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 2.0)
    latents = torch.randn(2, 16, 3, 4, 6) * torch.tensor([1.0, 9.0, 0.1])[:, None, None]
    with torch.inference_mode():
        expected = vae.decoder(latents)
        with fused_norms(vae, kernels):
            calls.clear()
            result = vae.decoder(latents)
        num_calls = len(calls)
        assert torch.equal(vae.decoder(latents), expected)
    assert num_calls == len(calls) == (40 if is_fused else 0)  # two norms in each of ten blocks, twice
    torch.testing.assert_close(result, expected, atol=2e-4, rtol=1e-4)  # processors round otherwise
    assert torch.equal(result, expected) != is_fused


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("kind", ["int8", "fp8", "scaled fp8", "Q8_0"])
def test_weights_in_8_bit_with_a_lora_take_fused_kernels_and_products_in_8_bit(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Expect the rounding of fp32 from fused kernels, and about 1 % from products in 8 bit."""
    torch.manual_seed(5)
    plain_network, arguments = _framepack()
    weights = plain_network.state_dict()
    converted = {
        "int8": checkpoints.to_int8, "fp8": partial(checkpoints.to_fp8, kind=torch.float8_e4m3fn),
        "scaled fp8": checkpoints.to_scaled_fp8, "Q8_0": dict,
    }[kind](weights)  # fmt: skip
    file = tmp_path / "weights"
    if kind == "Q8_0":
        write_quantised_gguf(file, weights, GGMLQuantizationType.Q8_0)
    else:
        checkpoints.write_safetensors(file, converted)
    network = add_model(tiny_model, transformer=file).component("transformer")
    for parameter in network.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()
    cast_weights(network, torch.float32)
    write_lora(tmp_path / "change.safetensors", plain_network)
    results = dict[str, torch.Tensor]()
    with torch.inference_mode(), Loras(loras_of(str(tmp_path / "change.safetensors"))) as loras:
        without_lora = network(**arguments)[0]
        loras.attach(network, torch.float32)
        for kernels in ("plain", "fused", "fast8", "plain again"):
            with use_kernels(network, kernels.removesuffix(" again")):
                results[kernels] = network(**arguments)[0]
    plain, fused, fast8, again = results.values()
    assert not torch.allclose(without_lora, plain, atol=1e-2)
    assert torch.equal(again, plain)
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-5)
    assert 1e-4 < (fast8 - plain).norm() / plain.norm() < 0.02


def test_tokens_of_the_text_are_not_rotated() -> None:
    cos, sin = torch.rand(5, 8), torch.rand(5, 8)
    matrices = rotation_matrices((cos, sin), unrotated=2)
    assert matrices.shape == (1, 7, 1, 4, 2, 2)
    assert torch.equal(matrices[0, 5:, 0], torch.eye(2).expand(2, 4, 2, 2))
    assert torch.equal(matrices[0, 1, 0, 3], torch.tensor([[cos[1, 6], -sin[1, 6]], [sin[1, 6], cos[1, 6]]]))


@pytest.mark.parametrize("spans_heads", [False, True])
def test_the_trial_measures_both_ways_with_the_error_of_their_type(spans_heads: bool) -> None:
    work = partial(block_work, *SHAPE, spans_heads, device=torch.device("cpu"))
    plain, fused = try_here([(work, ["plain", "fused"])])
    assert (plain["kernel"], fused["kernel"]) == ("", "eager")
    for tried in (plain, fused):
        assert 1e-3 < tried["error"] < 1e-2
        assert tried["milliseconds"] > 0


@pytest.mark.parametrize(("heads", "spans_heads"), [(24, False), (24, True), (40, True)])
def test_kernels_with_the_channels_of_the_families_round_as_fp32_does(heads: int, spans_heads: bool) -> None:
    work = partial(block_work, heads, 32, 128, "float32", spans_heads, device=torch.device("cpu"))
    for tried in try_here([(work, ["plain", "fused"])]):
        assert tried["error"] < 1e-6


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
    seconds = 3.0 if body == HANGS else 100.0
    route, _ = tried_in_processes(tmp_path, ["fused"], [*SHAPE, True], BLOCK_WORK, seconds=seconds)
    assert {**route.failed, **route.deadly}["fused"].startswith(failure)
    assert fastest(BLOCK_WORK, route) == "plain"


@pytest.mark.parametrize(("milliseconds", "candidate"), [(0.5, "fused"), (0.95, "plain"), (2.0, "plain")])
def test_kernels_are_taken_only_if_they_are_faster(milliseconds: float, candidate: str) -> None:
    assert fastest(BLOCK_WORK, Route(measured={"plain": 1.0, "fused": milliseconds})) == candidate


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
    assert (tmp_path / "whole/kernels").read_text() == kernels_version("fused")
    assert not (tmp_path / "plain/kernels").exists()
    assert not any(isinstance(event, Warned) for event in events)

    for name in ("begun", "elsewhere", "compiled"):
        with pytest.raises(Stop):
            generate(request, models, folder=tmp_path / name, on_event=stop)
    resumed, _ = make(request, models, tmp_path / "begun", resume_from=tmp_path / "begun")
    assert resumed.video.read_bytes() == whole.video.read_bytes()
    recipe = read_recipe(resumed.video)
    assert recipe.made_with["kernels"] == kernels_version("fused")
    assert not [notice for notice in recipe.notices_on("cpu") if "comfy-kitchen" in notice]

    (tmp_path / "compiled/kernels").write_text("compiled kernels of torch 2.13.0")
    _, events = make(request, models, tmp_path / "compiled", resume_from=tmp_path / "compiled")
    told = [event.message for event in events if isinstance(event, Warned)]
    assert "begun with compiled kernels of torch 2.13.0 and goes on with PyTorch alone" in told[0]
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: "it is not here")
    monkeypatch.setattr("diffusers_helper.provenance.recipe.kernels_version", lambda kernels: "")
    assert [notice for notice in recipe.notices_on("cpu") if "which is not here" in notice]
    _, events = make(request, models, tmp_path / "elsewhere", resume_from=tmp_path / "elsewhere")
    told = next(event.message for event in events if isinstance(event, Warned))
    assert told.startswith(
        f"This video was begun with {kernels_version('fused')} and goes on with PyTorch alone."
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
    assert read_recipe(results["fast8"].video).made_with["kernels"] == kernels_version("fast8")
    with pytest.raises(InputError, match="kernels is fast8, but the weights are not in 8 bit"):
        make(tiny_request(small_scene, kernels="fast8"), models, tmp_path / "refused")


def _blocks_of(network: nn.Module) -> list[nn.Module]:
    return [block for child in network.children() if isinstance(child, nn.ModuleList) for block in child]


def _raising(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    raise RuntimeError("there is no compiler")


def _not_finite(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    return lambda *values: [value * torch.nan for value in graph.forward(*values)]


@pytest.mark.parametrize(("family", "is_streamed"), [(_framepack, True), (_helios, False), (_wan, True)])
def test_a_network_gives_the_same_with_compiled_blocks(
    family: Callable[[], tuple[nn.Module, dict[str, Any]]], is_streamed: bool
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(5)
    network, arguments = family()
    blocks, graphs, staging = _blocks_of(network), list[str](), Staging(torch.device("cpu"))

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(str(graph.graph))
        return graph.forward

    with torch.no_grad():
        expected = network(**arguments)[0]
        streamed = [0] if is_streamed else []
        with closing(Resident(network, staging, blocks=blocks, streamed=streamed)):
            with compiled_blocks(network, blocks, backend):
                results = [network(**arguments)[0] for _ in range(2)]
            num_graphs = len(graphs)
            again = network(**arguments)[0]
    for result in results:
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(again, expected)
    assert 0 < num_graphs == len(graphs)


def test_blocks_that_cannot_be_compiled_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    failing = partial(compiled_blocks, backend=_raising)
    monkeypatch.setattr("diffusers_helper.attention.fused.compiled_blocks", failing)
    network, arguments = _framepack()
    with torch.no_grad():
        expected = network(**arguments)[0]
        with use_kernels(network, "compiled"):
            assert torch.equal(network(**arguments)[0], expected)


@pytest.mark.parametrize(
    ("backend", "failure"),
    [("aot_eager", ""), (_raising, " raised"), (_not_finite, "its results differ by")],
)
def test_the_trial_of_compiled_blocks_says_what_is_wrong(
    backend: Any, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    changed = partial(compiled_blocks, backend=backend)
    monkeypatch.setattr("diffusers_helper.attention.trial.compiled_blocks", changed)
    (tried,) = try_here([(partial(block_work, *SHAPE, False, device=torch.device("cpu")), ["compiled"])])
    assert failure in tried.get("failed", "")
    assert ("milliseconds" in tried) == (not failure)
    assert failure or 1e-3 < tried["error"] < 1e-2


@pytest.mark.parametrize(
    ("card", "problem", "ways"),
    [
        ("cuda:24", "it is not here", ["plain", "compiled"]),
        ("cuda:24", "", ["plain", "fused", "compiled"]),
        ("gfx1100:24", "", ["plain", "fused"]),
    ],
)
def test_blocks_are_compiled_on_nvidias_cards_alone_where_that_is_faster(
    card: str, problem: str, ways: list[str], deep_models: Models, small_scene: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("diffusers_helper.job.plans.machine_of", lambda *_: machine_of_card(card))
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: problem)
    times = {"native": 1.0, "plain": 2.0, "fused": 1.5, "compiled": 1.0}
    figures = {"kernel": "flash", "error": 0.001, "bytes": 0}
    tried = Tried({name: {**figures, "milliseconds": value} for name, value in times.items()})
    local = Local(folder=tmp_path, try_candidates=tried)
    plans = MemoryPlans(tiny_request(small_scene, attention="native"), deep_models, 64, 64, local)
    _, task = tried.asked
    assert task.candidates == ways
    assert plans.request.kernels == ways[-1]
    assert (COMPILES in plans.notes) == (ways[-1] == "compiled")
    if ways[-1] == "compiled":
        assert plans.kernels == f"compiled kernels of torch {version_of('torch')}"
    else:
        request = tiny_request(small_scene, kernels="compiled")
        with pytest.raises(InputError, match="kernels is compiled, but blocks are compiled on NVIDIA's"):
            MemoryPlans(request, deep_models, 64, 64, local)

"""Tests of overflow: the VAE decodes again in fp32, also in a resumed job; in latents it ends the job."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, LongtakeError
from diffusers_helper.events import Event, Finished, SectionFinished, Warned
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.planning.profiles import PROFILE_VARIABLE, VAE_DTYPE_VARIABLE
from diffusers_helper.planning.variables import FP32_VARIABLE
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.passes import PRECISIONS
from tests.support.making import load_tiny, make, outline, seconds_for, tiny_request, write_scene

pytestmark = pytest.mark.slow
NARROW = Local({VAE_DTYPE_VARIABLE: "fp16"})


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png", 32, 32)
    return tiny_request(scene, seconds=seconds_for(2), steps=1)


def overflowing(folder: Path, *narrow: torch.dtype) -> tuple[Models, list[torch.dtype]]:
    """Return a model whose VAE overflows in fp16 from its second pass on, and the types of all passes so far.

    It also overflows in the types `narrow`.
    """
    models, types = load_tiny(folder), list[torch.dtype]()

    def overflow(module: Any, _: Any, frames: torch.Tensor) -> torch.Tensor:
        types.append(frames.dtype)
        return frames / 0 if frames.dtype in (torch.float16, *narrow) and len(types) > 1 else frames

    models.component("vae").decoder.register_forward_hook(overflow)
    return models, types


@dataclass(frozen=True)
class Whole:
    """A job that overflowed and went on to its end."""

    result: Result
    events: list[Event]
    types: list[torch.dtype]
    folder: Path


@pytest.fixture(scope="module")
def whole(request_: GenerationRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return such a job, made once. Tests only read its folder."""
    folder = tmp_path_factory.mktemp("whole") / "job"
    models, types = overflowing(tiny_model)
    return Whole(*make(request_, models, folder, local=NARROW), types, folder)


def test_what_overflows_is_decoded_again_in_fp32(whole: Whole) -> None:
    types, events = whole.types, whole.events
    # The second window of the first section overflowed, and all later ones were computed in fp32.
    assert types[:2] == [torch.float16] * 2
    assert set(types[2:]) == {torch.float32}
    assert sum("Values overflowed in the VAE" in e.message for e in events if isinstance(e, Warned)) == 1
    assert outline(events).count("decode 1") == 2
    assert isinstance(events[-1], Finished)
    stages = json.loads((whole.folder / "memory.json").read_text(encoding="utf-8"))["stages"]
    narrow, *wide = [stage for stage in stages if stage["stage"] == "decode"]
    assert not narrow["is_complete"]
    assert all(stage["is_complete"] for stage in wide)
    assert wide[0]["predicted_bytes"] > 1.2 * narrow["predicted_bytes"]
    assert whole.result.frames == 73


@pytest.mark.parametrize("overflows", [False, True])
def test_a_card_that_computes_bf16_tries_it_first(
    overflows: bool, request_: GenerationRequest, tiny_model: Path, tmp_path: Path
) -> None:
    card, request = Local({**NARROW.environ, PROFILE_VARIABLE: "gfx1200"}), replace(request_, seconds=1.0)
    models, types = overflowing(tiny_model, *((torch.bfloat16,) if overflows else ()))
    _, events = make(request, models, tmp_path / "job", local=card)
    last = torch.float32 if overflows else torch.bfloat16
    assert types[2] == torch.bfloat16
    assert set(types[3:]) == {last}
    warnings = " ".join(event.message for event in events if isinstance(event, Warned))
    wider = [name for name in ("bf16", "fp32") if f"works in {name} from now on" in warnings]
    assert wider == (["bf16", "fp32"] if overflows else ["bf16"])
    again = JobFolder(tmp_path / "again")
    models, types = overflowing(tiny_model)
    make(request, models, again.path, local=card, resume_from=tmp_path / "job")
    assert set(types) <= {last}
    assert again.overflow.read_text() == PRECISIONS[last]


def test_a_job_that_goes_on_knows_what_overflowed(
    whole: Whole, request_: GenerationRequest, tiny_model: Path, tmp_path: Path
) -> None:
    cancel = CancelToken()

    def on_event(event: Event) -> None:
        if isinstance(event, SectionFinished):
            cancel.cancel()

    job = tmp_path / "job"
    models, _ = overflowing(tiny_model)
    with pytest.raises(GenerationCancelled):
        generate(request_, models, folder=job, local=NARROW, cancel=cancel, on_event=on_event)
    models, types = overflowing(tiny_model)
    resumed, events = make(request_, models, job, local=NARROW, resume_from=job)
    assert set(types) == {torch.float32}
    assert not [event.message for event in events if isinstance(event, Warned)]
    assert resumed.video.read_bytes() == whole.result.video.read_bytes()


def test_values_that_fp32_cannot_hold_end_the_job(
    request_: GenerationRequest, tiny_model: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_model)
    models.component("vae").decoder.register_forward_hook(lambda module, _, frames: frames / 0)
    with pytest.raises(LongtakeError, match="VAE gives values that are not finite"):
        make(request_, models, tmp_path / "job", local=NARROW)


def test_latents_that_are_no_numbers_are_not_kept(
    request_: GenerationRequest, tiny_model: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_model)
    models.component("transformer").proj_out.register_forward_hook(lambda module, _, out: out / 0)
    with pytest.raises(LongtakeError, match="not finite appeared while denoising section 1, also in fp32"):
        make(request_, models, tmp_path / "job")
    assert list((tmp_path / "job" / "sections").glob("*.safetensors")) == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_transformer_that_fp32_makes_slow_computes_in_it_only_if_a_person_asks_for_it(
    asked: bool, request_: GenerationRequest, tiny_model: Path, tmp_path: Path
) -> None:
    models = load_tiny(tiny_model)
    transformer = models.component("transformer").to(torch.bfloat16)
    types = list[torch.dtype]()

    def overflow(module: Any, _: Any, out: torch.Tensor) -> torch.Tensor:
        types.append(out.dtype)
        return out if out.dtype == torch.float32 else out / 0

    transformer.proj_out.register_forward_hook(overflow)
    local = Local({PROFILE_VARIABLE: "gfx1200", **({FP32_VARIABLE: "1"} if asked else {})})
    if asked:
        _, events = make(replace(request_, seconds=1.0), models, tmp_path / "job", local=local)
        warning = "while denoising section 1, so this stage is repeated in fp32."
        assert any(warning in event.message for event in events if isinstance(event, Warned))
        assert types[-1] == torch.float32
        return
    with pytest.raises(LongtakeError) as failure:
        make(request_, models, tmp_path / "job", local=local)
    assert failure.value.message == "Values that are not finite appeared while denoising section 1."
    assert "LONGTAKE_FP32=1 has such a stage repeated in fp32" in failure.value.remedy
    assert set(types) == {torch.bfloat16}


@pytest.mark.parametrize("stage", ["transformer", "text_encoder", "text_encoder_2", "image_encoder", "vae"])
def test_attention_that_gives_no_numbers_once_is_computed_once_more_in_fp32(
    stage: str, request_: GenerationRequest, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = load_tiny(tiny_model)
    network, types = models.component(stage), list[torch.dtype]()
    narrow = torch.float32 if stage == "vae" else torch.bfloat16
    if stage != "vae":
        network.to(narrow)
    plain = torch.nn.functional.scaled_dot_product_attention

    def attention(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        result = plain(query, *rest, **named)
        if computing:
            types.append(query.dtype)
            if len(types) == 1:
                result = torch.full_like(result, float("nan"))
        return result

    computing: list[str] = []
    network.register_forward_pre_hook(lambda *_: computing.append(stage))
    network.register_forward_hook(lambda *_: computing.clear())
    if stage == "vae":
        network.decoder.register_forward_pre_hook(lambda *_: computing.append(stage))
        network.decoder.register_forward_hook(lambda *_: computing.clear())
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    seconds = 2.4 if stage == "transformer" else 1.0
    result, events = make(replace(request_, seconds=seconds), models, tmp_path / "job")
    assert isinstance(events[-1], Finished)
    assert types[0] == narrow
    assert types[-1] == (narrow if stage == "transformer" else torch.float32)  # only what failed is repeated
    assert torch.float32 in types[1:]
    reported = [event.message for event in events if isinstance(event, Warned)]
    assert sum("this stage is repeated in fp32" in text for text in reported) == (stage != "vae")
    assert result.latents.isfinite().all()
    assert next(network.parameters()).dtype == narrow

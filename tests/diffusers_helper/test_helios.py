"""Tests that jobs with Helios have what jobs with FramePack have: resumption, branches, recipes and caps."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
import torch
from diffusers import HeliosDMDScheduler, HeliosScheduler

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Event, Finished, StepDone
from diffusers_helper.helios import work
from diffusers_helper.helios.schedule import flat_levels, new_scheduler, pyramid
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model, plan_of
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.replay import replay
from diffusers_helper.request import GenerationRequest
from tests.support.making import Stop, load_tiny, make, outline, tiny_request, write_scene

SECTIONS = 3


@pytest.fixture(scope="module", params=["base", "distilled"])
def models(request: pytest.FixtureRequest, tiny_helios: Path, tiny_helios_distilled: Path) -> Models:
    return load_tiny(tiny_helios if request.param == "base" else tiny_helios_distilled)


@pytest.fixture(scope="module")
def order(models: Models, tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png")
    return tiny_request(
        scene, model=str(models.info.folder), mode="forward", seconds=33 * SECTIONS / 24, steps=3,
        resolution=64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "parts"), [(5, [(0, 5)]), (33, [(0, 33)]), (40, [(7, 40)]), (99, [(0, 33), (33, 66), (66, 99)])]
)
def test_the_end_of_a_video_is_encoded_in_whole_sections(
    count: int, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(job: object, frames: list[int], purpose: str, number: int) -> torch.Tensor:
        return torch.tensor([frames[0], frames[-1] + 1, number, purpose == "tail"]).view(1, 1, -1, 1, 1)

    monkeypatch.setattr(work, "encode_pictures", encode)
    original: Any = SimpleNamespace(context_frames=[*range(count)])
    encoded = work._tail(cast(Any, None), original).view(-1, 4).tolist()
    assert encoded == [[*part, number, True] for number, part in enumerate(parts)]


@pytest.mark.parametrize("options", [{}, {"time_shift_type": "exponential"}])
def test_a_shift_is_one_of_levels_whatever_the_scheduler_says(options: Any) -> None:
    dynamic = {"use_dynamic_shifting": True, **options}
    levels = np.linspace(0.999, 0, 5)[:-1]
    flat = flat_levels(new_scheduler(HeliosScheduler(stages=1, **dynamic), 9.0), 4, (1, 16, 9, 8, 8), 9.0)
    assert flat[:-1].tolist() == pytest.approx(9 / (9 + 1 / levels - 1))
    plain, shifted = (
        pyramid(
            new_scheduler(HeliosDMDScheduler(stages=3, **dynamic), shift), 9, (1, 16, 9, 8, 8),
            lambda stage, size: torch.zeros(size), shift=shift,
        )
        for shift in (0.0, 9.0)
    )  # fmt: skip
    assert not any(
        torch.equal(*(stage.sigmas for stage in stages)) for stages in zip(plain, shifted, strict=True)
    )


def test_a_prompt_is_encoded_as_plain_text() -> None:
    texts = list[str]()

    def tokenizer(text: str, **_: object) -> dict[str, torch.Tensor]:
        texts.append(text)
        return {name: torch.ones(1, 2) for name in ("input_ids", "attention_mask")}

    encoder: Any = lambda **_: SimpleNamespace(last_hidden_state=torch.ones(1, 2, 4))  # noqa: E731
    encoder.device = torch.device("cpu")
    work.encode_states(encoder, cast(Any, tokenizer), " a &amp;lt; b &amp;\n  c\t ")
    assert texts == ["a < b & c"]


def test_the_video_has_33_frames_for_each_section(order: GenerationRequest, whole: Result) -> None:
    plan = plan_of(order)
    assert (len(plan), plan.fps, plan.total_frames, whole.frames) == (SECTIONS, 24, 99, 99)
    with av.open(whole.video) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert (stream.average_rate, len(frames)) == (24, 99)
    assert np.std(frames, axis=0).mean() > 2


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sample 2", "decode 2", "write 2", "finished 2/3"])
def test_a_resumed_job_gives_the_same_bytes(
    where: str, order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == [where]:
            raise Stop

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        generate(order, models, folder=broken, on_event=stop)
    result, events = make(order, models, broken, resume_from=broken)
    assert result.video.read_bytes() == whole.video.read_bytes()
    assert torch.equal(result.latents, whole.latents)
    assert not {"text", "vae_encode"} & {*outline(events)}


def test_the_first_section_of_a_pyramid_takes_twice_the_steps(
    order: GenerationRequest, models: Models, tmp_path: Path
) -> None:
    _, events = make(replace(order, seconds=2.75), models, tmp_path / "job")
    steps = [event for event in events if isinstance(event, StepDone)]
    first = 6 if models.info.multiple == 64 else 3
    assert [event.steps for event in steps] == [first] * first + [3] * 3


@pytest.mark.parametrize("cache", ["first-block", "taylorseer", "easycache"])
def test_a_step_cache_skips_steps_of_base(
    cache: str, tiny_helios: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.families.step_caches._FIRST_BLOCK_CHANGE", 10.0)
    request = tiny_request(
        small_scene, model=str(tiny_helios), mode="forward", seconds=2.75, steps=8, resolution=64, cfg=3.0,
        step_cache=cache,
    )  # fmt: skip
    result, events = make(request, load_tiny(tiny_helios), tmp_path / "job")
    assert 2 <= next(one for one in events if isinstance(one, Finished)).steps_skipped < 14
    assert result.latents.isfinite().all()
    assert result.latents.std() > 0.1


def test_a_captured_section_can_be_sampled_again(
    order: GenerationRequest, models: Models, tmp_path: Path
) -> None:
    generate(
        replace(order, seconds=1.375), models, folder=tmp_path / "job", local=Local({"LONGTAKE_DEBUG": "1"})
    )
    captures = JobFolder(tmp_path / "job").captures
    assert {path.name for path in captures.iterdir()} == {"text", "vae_encode", "sample", "decode"}
    for stage in ("text", "vae_encode", "sample", "decode"):
        compared = replay(min((captures / stage).glob("*.json")), Local())
        assert not compared.difference, (stage, str(compared))


def test_parts_of_another_family_are_refused(tiny_helios: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(tiny_helios, folder)
    shutil.rmtree(folder / "vae")
    shutil.copytree(tiny_model / "vae", folder / "vae")
    with pytest.raises(LongtakeError, match="AutoencoderKLHunyuanVideo; expected AutoencoderKLWan"):
        load_tiny(folder).component("vae")
    shutil.rmtree(folder / "scheduler")
    with pytest.raises(InputError, match="lacks scheduler"):
        find_model(str(folder), allow_folder=True)

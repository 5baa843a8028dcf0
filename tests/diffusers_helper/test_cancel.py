"""Tests that a cancel takes effect inside every stage, and leaves the video made so far."""

from pathlib import Path
from typing import Any

import av
import pytest
import torch
from torch import nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Cancelled, Event, StageStarted, StepDone
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import generate
from tests.support.making import load_tiny, outline, seconds_for, tiny_request, write_scene

# the stage, the model's part that works in it, the place of the blocks in the part, and their class
WORK = [
    ("text", "text_encoder", "", "LlamaDecoderLayer"),
    ("text", "text_encoder_2", "", "CLIPEncoderLayer"),
    ("vae_encode", "vae", "encoder", "HunyuanVideoResnetBlockCausal3D"),
    ("vision", "image_encoder", "", "SiglipEncoderLayer"),
    ("sample 2", "transformer", "", "HunyuanVideoSingleTransformerBlock"),
    ("decode 2", "vae", "decoder", "QuickBlock"),
]


@pytest.fixture
def models(tiny_model: Path) -> Models:
    loaded = load_tiny(tiny_model)
    loaded.load(CancelToken())
    return loaded


def cancelled(models: Models, folder: Path, cancel: CancelToken, on_event: Any) -> list[Event]:
    events: list[Event] = []

    def report(event: Event) -> None:
        events.append(event)
        on_event(event)

    scene = write_scene(folder.parent / "scene.png")
    request = tiny_request(scene, seconds=seconds_for(3))
    with pytest.raises(GenerationCancelled):
        generate(request, models, folder=folder, cancel=cancel, on_event=report)
    return events


def hooks_left(models: Models) -> int:
    networks = [part for part in models._components.values() if isinstance(part, nn.Module)]
    return sum(len(module._forward_pre_hooks) for network in networks for module in network.modules())


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "part", "place", "kind"), WORK)
def test_a_cancel_in_the_middle_of_a_network_ends_it_there(
    stage: str, part: str, place: str, kind: str, models: Models, tmp_path: Path
) -> None:
    cancel, reached = CancelToken(), []
    inside = models.component(part).get_submodule(place)
    block = next(module for module in inside.modules() if type(module).__name__ == kind)

    def in_block(*_: Any) -> None:
        reached.append(stage)
        cancel.cancel()

    def on_event(event: Event) -> None:
        if isinstance(event, StageStarted) and outline([event]) == [stage]:
            block.register_forward_hook(in_block)

    events = cancelled(models, tmp_path / "job", cancel, on_event)
    assert reached == [stage]  # The block that cancelled ran once, and no other tile ran after it.
    assert [line for line in outline(events) if not line.startswith(("step", "finished"))][-2] == stage
    assert hooks_left(models) == 0

    last = events[-1]
    assert isinstance(last, Cancelled)
    if stage.endswith("2"):
        assert last.video == str(tmp_path / "job" / "video.mp4")
        with av.open(last.video) as container:
            assert container.streams.video[0].frames == last.frames == 33
    else:
        assert (last.video, last.frames) == (None, 0)


def test_a_cancel_between_steps_makes_no_further_step(models: Models, tmp_path: Path) -> None:
    cancel = CancelToken()

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and (event.section, event.step) == (2, 1):
            cancel.cancel()

    events = cancelled(models, tmp_path / "job", cancel, on_event)
    assert outline(events)[-2:] == ["step 2 1/2", "Cancelled"]


def test_a_cancel_before_the_start_loads_nothing(tiny_model: Path, tmp_path: Path) -> None:
    cancel = CancelToken()
    cancel.cancel()
    models = load_tiny(tiny_model)
    events = cancelled(models, tmp_path / "job", cancel, lambda event: None)
    assert outline(events) == ["JobStarted", "load", "Cancelled"]
    assert not models._components


def test_hooks_are_on_the_blocks_and_go_with_the_context() -> None:
    network = nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])[0], nn.Linear(2, 2))
    holder = nn.Module()
    holder.blocks = nn.ModuleList([network, nn.Identity()])
    cancel = CancelToken()
    with cancel.within(holder):
        network(torch.zeros(1, 2))
        cancel.cancel()
        with pytest.raises(GenerationCancelled):
            network(torch.zeros(1, 2))
    network(torch.zeros(1, 2))

"""A test that a copy of a model that is here is recommended by its name."""

from pathlib import Path

import pytest

from diffusers_helper.machine.sysfs import Link
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel, AddedModels
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.set_ups import recommend
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB

INFO = find_model("framepack-i2v")
REQUEST = GenerationRequest(image="x", model=INFO.name, mode="inverted")
SLOWEST, SLOW, FAST = Link(2, 4), Link(3, 4), Link(4, 16)


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", None)


def radeon(size_gb: int, link: Link | None = FAST) -> Machine:
    return Machine("rocm", "gfx1100", "card", size_gb * GB, link=link)


def test_a_copy_that_is_here_is_recommended_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = AddedModels(tmp_path / "models.json")
    other_model = AddedModel("mine", "Mine", INFO.name, {"text_encoder": AddedComponent(str(tmp_path))})
    copy = AddedModel("framepack-i2v-int8", "In int8", INFO.name, {}, copy=str(tmp_path / "copy"))
    models.add(other_model)
    models.add(copy)
    monkeypatch.setattr(ADDED_MODELS, "file", models.file)
    seen: list[str] = []

    def plan(request: GenerationRequest, info: ModelInfo, transformer: Network | None) -> VideoPlan:
        seen.append(request.model)
        # As if the copy's files were those of the table, but on a fast link
        machine = radeon(8, FAST if info.name == copy.name else SLOWEST)
        return plan_video(request, info, profile_for(machine, {}))

    recommendation = recommend(REQUEST, INFO, plan)
    assert recommendation.set_up.settings["model"] == "framepack-i2v-int8"
    assert recommendation.words.startswith(
        "Recommended for this card: In int8 at 640 pixels, weights as they are"
    )
    assert "mine" not in seen

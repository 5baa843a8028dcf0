"""Tests over all known cards: no default refuses itself, no peak exceeds its cap, and refusals help."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.machine import machine_of_card
from diffusers_helper.families.family import buckets
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel, AddedModels
from diffusers_helper.models.registry import ModelInfo, find_model, model_names
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.profiles import FAMILIES, Profile, profile_for
from diffusers_helper.planning.set_ups import recommend
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import gb_bytes

SIZES = (8, 10, 16, 24, 48)
TYPES = ("default", "auto", "int8", "fp8_e4m3fn")
HELIOS = ("helios-distilled", "helios-base")


def card(family: str, size_gb: int) -> Profile:
    return profile_for(machine_of_card(f"{family}:{size_gb}"), {})


def command(name: str, weight_dtype: str = "default") -> GenerationRequest:
    info = find_model(name)
    return GenerationRequest(
        image="none", model=name, mode=info.modes[0], steps=info.steps, weight_dtype=weight_dtype
    )


def plan(request: GenerationRequest, profile: Profile, shape: tuple[int, int] | None = None) -> VideoPlan:
    return plan_video(request, find_model(request.model), profile, shape=shape)


def is_too_tight(name: str, family: str, size_gb: int, kind: str) -> bool:
    """Return whether a model's own resolution needs more of a card than defaults may take."""
    if name.startswith("wan-a14b"):  # a clip has four times the tokens of a section of Helios
        return size_gb <= (10 if family == "gfx1151" else 8)
    # Weights in eight bits make it fit, except on gfx1151, where sampling is estimated to take more memory.
    return name in HELIOS and size_gb == 8 and family != "cpu" and (kind == "default" or family == "gfx1151")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", model_names())
def test_no_default_refuses_itself(name: str, family: str) -> None:
    for size in SIZES:
        profile = card(family, size)
        for kind in (dtype for dtype in TYPES if not is_too_tight(name, family, size, dtype)):
            video_plan = plan(command(name, kind), profile)
            budget = video_plan.job.budget
            assert video_plan.job.peak_bytes <= budget.cap_bytes <= profile.max_cap_bytes
            assert family == "cpu" or budget.cap_bytes <= gb_bytes(size - 1.5)
            raised = [note for note in video_plan.notes if note.startswith("The default cap")]
            assert bool(raised) == (budget.cap_bytes > profile.cap_bytes.value)


@pytest.mark.parametrize("family", [member for member in FAMILIES if member != "cpu"])
@pytest.mark.parametrize("name", HELIOS)
def test_what_the_refusal_of_a_default_names_is_accepted(name: str, family: str) -> None:
    profile = card(family, 8)
    for kind in (dtype for dtype in TYPES if is_too_tight(name, family, 8, dtype)):
        request = command(name, kind)
        with pytest.raises(DoesNotFit) as refused:
            plan(request, profile)
        by_cap, *by_type, by_size = refused.value.remedies
        eight = replace(request, weight_dtype="int8")
        if by_type:
            assert by_type == ["Or set `weight_dtype` to int8."]
            narrow = plan(eight, profile).job
            assert narrow.peak_bytes <= narrow.budget.cap_bytes <= profile.max_cap_bytes
        elif kind == "default":
            with pytest.raises(DoesNotFit):
                plan(eight, profile)
        cap, side = (re.search(r" to ([\d.]+) or ", remedy) for remedy in (by_cap, by_size))
        assert cap
        assert side
        assert profile.max_cap_bytes < gb_bytes(float(cap[1])) <= profile.machine.total_bytes
        allowed = plan(replace(request, vram_cap_gb=float(cap[1])), profile)
        assert allowed.job.peak_bytes <= allowed.job.budget.cap_bytes == gb_bytes(float(cap[1]))
        smaller = plan(replace(request, resolution=int(side[1])), profile)
        assert smaller.job.peak_bytes <= smaller.job.budget.cap_bytes <= profile.max_cap_bytes


@pytest.mark.parametrize("size_gb", SIZES)
def test_the_resolution_of_a_refusal_is_accepted_for_each_shape_and_is_the_largest(size_gb: int) -> None:
    profile, info = card("gfx103x", size_gb), find_model("framepack-i2v")
    request = replace(command("framepack-i2v"), attention="native")
    with pytest.raises(DoesNotFit) as refused:
        plan(request, profile)
    side = refused.value.side
    assert side
    assert refused.value.remedies[1] == f"Set `resolution` to {side} or less."
    for shape in buckets(side, info.multiple):
        plan(replace(request, resolution=side), profile, shape)
    with pytest.raises(DoesNotFit):
        plan(replace(request, resolution=side + 32), profile)


def test_a_copy_that_is_here_is_recommended_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, request = find_model("framepack-i2v"), command("framepack-i2v")
    models = AddedModels(tmp_path / "models.json")
    other_model = AddedModel("mine", "Mine", info.name, {"text_encoder": AddedComponent(str(tmp_path))})
    copy = AddedModel("framepack-i2v-int8", "In int8", info.name, {}, copy=str(tmp_path / "copy"))
    models.add(other_model)
    models.add(copy)
    monkeypatch.setattr(ADDED_MODELS, "file", models.file)
    seen: list[str] = []

    def plan(request: GenerationRequest, planned: ModelInfo, transformer: Network | None) -> VideoPlan:
        seen.append(request.model)
        # As if the copy's files were those of the table, but on a fast link
        machine = replace(
            machine_of_card("gfx1100:8"), link=Link(4, 16) if planned.name == copy.name else Link(2, 4)
        )
        return plan_video(request, planned, profile_for(machine, {}))

    recommendation = recommend(request, info, plan)
    assert recommendation.set_up.settings["model"] == "framepack-i2v-int8"
    assert recommendation.words.startswith(
        "Recommended for this card: In int8 at 640 pixels, weights as they are"
    )
    assert "mine" not in seen

"""Tests of the time that streaming takes, and of the set-up that is recommended for a card."""

from functools import partial
from pathlib import Path

import pytest

from app.machine import machine_of_card
from diffusers_helper.machine.local import Local, Speeds, store_speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel, AddedModels
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.cards.speeds import Bus, bus_of, copies_of, disk_of
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.set_ups import Recommendation, recommend
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB, gb_bytes

INFO = find_model("framepack-i2v")
REQUEST = GenerationRequest(image="x", model=INFO.name, mode="inverted")
SLOWEST, SLOW, FAST = Link(2, 4), Link(3, 4), Link(4, 16)


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", None)


def best(machine: Machine, ram_gb: int = 64, request: GenerationRequest = REQUEST) -> Recommendation:
    plan = partial(
        plan_video, profile=profile_for(machine, {}), free_ram_bytes=ram_gb * GB, disk_speed=lambda file: 3e9
    )
    return recommend(request, INFO, plan)


def radeon(size_gb: int, link: Link | None = FAST) -> Machine:
    return Machine("rocm", "gfx1100", "card", size_gb * GB, link=link)


def chosen(recommendation: Recommendation) -> tuple[object, ...]:
    settings = recommendation.set_up.settings
    return settings["weight_dtype"], settings["preserved_gb"], settings["resolution"]


@pytest.mark.parametrize(
    ("machine", "name", "gb_per_second", "source"),
    [
        (radeon(24), "PCIe 4.0 x16", 28.4, "from the card's link"),
        (radeon(24, SLOW), "PCIe 3.0 x4", 3.5, "from the card's link"),
        (machine_of_card("gfx1100:24"), "PCIe 4.0 x16", 28.4, "assumed"),
        (machine_of_card("gfx1100:8"), "PCIe 4.0 x8", 14.2, "assumed"),
        (machine_of_card("gfx1200:16"), "PCIe 5.0 x16", 56.7, "assumed"),
        (machine_of_card("cuda:8"), "PCIe 4.0 x16", 28.4, "assumed"),
        (machine_of_card("gfx1151:96"), "the shared memory", 64.0, "assumed"),
    ],
)
def test_the_way_to_a_card_is_known_or_assumed(
    machine: Machine, name: str, gb_per_second: float, source: str
) -> None:
    bus = bus_of(machine)
    assert (bus.name, round(bus.bytes_per_second / 1e9, 1), bus.source) == (name, gb_per_second, source)


def test_a_measured_speed_takes_the_place_of_the_links() -> None:
    pinned = bus_of(radeon(24), Speeds(20e9, 8e9))
    assert pinned == Bus(20e9, "PCIe 4.0 x16", "measured")
    plain = bus_of(machine_of_card("gfx1100:24"), Speeds(host_to_device_bytes_per_second=8e9))
    assert plain == Bus(8e9, "the card's bus", "measured")
    assert bus_of(Machine("cpu", "", "CPU", 8 * GB), Speeds(20e9)) is None


@pytest.mark.parametrize(
    ("machine", "host_speed", "disk_speed", "expected"),
    [
        (radeon(24), None, 90e9, ("main memory", "assumed")),
        (radeon(24), 9e9, 90e9, ("main memory", "measured")),
        (radeon(24), 40e9, 90e9, ("PCIe 4.0 x16", "from the card's link")),
        (radeon(24), 40e9, 3e9, ("the disk", "measured")), (radeon(24), 40e9, None, ("the disk", "assumed")),
        (machine_of_card("gfx1151:96"), 1e9, 90e9, ("the shared memory", "assumed")),
    ],
)  # fmt: skip
def test_streamed_weights_come_as_fast_as_the_slowest_part_of_their_way(
    machine: Machine, host_speed: float | None, disk_speed: float | None, expected: tuple[str, str]
) -> None:
    measured = Speeds(host_copy_bytes_per_second=host_speed)
    copies = copies_of(machine, measured, disk_of(disk_speed))
    assert copies
    assert (copies.name, copies.source) == expected
    assert copies.seconds(10**9) == (None if copies.source == "assumed" else 1e9 / copies.bytes_per_second)
    assert copies_of(Machine("cpu", "", "CPU", 8 * GB), measured, disk_of(disk_speed)) is None
    assert disk_of(2e9).reading(500, 1000) == Bus(4e9, "the disk", "measured")


def test_a_plan_says_the_time_of_its_copies_as_this_machine_measured_it(tmp_path: Path) -> None:
    local, profile = Local(folder=tmp_path), profile_for(radeon(24), {})
    assert plan_video(REQUEST, INFO, profile, local=local).streaming == (
        "22.3 GB are streamed per step: about 1.9 s, limited by main memory (assumed), while the card "
        "computes."
    )
    store_speeds(local.speeds, "gfx1100", Speeds(17.1e9, host_copy_bytes_per_second=19e9))
    guided = GenerationRequest(image="x", model=INFO.name, mode="inverted", cfg=2.0)
    video_plan = plan_video(guided, INFO, profile, local=local)
    assert video_plan.streaming == (
        "44.6 GB are streamed per step: about 2.8 s, limited by PCIe 4.0 x16 (measured), while the card "
        "computes."
    )
    assert (video_plan.step_bytes, video_plan.disk_bytes) == (47_915_500_544, 0)
    whole = plan_video(REQUEST, INFO, profile_for(machine_of_card("gfx1151:96"), {}))
    assert (whole.streaming, whole.copy_seconds, whole.disk_bytes) == ("", 0, 0)


@pytest.mark.parametrize("size_gb", [12, 16, 20, 24])
def test_where_copies_hide_a_card_keeps_its_defaults(size_gb: int) -> None:
    recommendation = best(radeon(size_gb))
    assert chosen(recommendation) == ("default", None, None)
    assert recommendation.copy is None
    assert "A step computes for longer than it copies: about " in recommendation.words
    assert "(estimate, others' reports of an RX 7900 XTX" in recommendation.words


def test_a_card_whose_time_is_not_known_counts_as_an_rtx_4090() -> None:
    unknown = Machine("cuda", "", "NVIDIA GPU", 24 * GB, link=FAST)
    recommendation = best(unknown)
    assert recommendation.set_up.plan.computing is None
    assert recommendation.words.endswith(" about 3.7 s (estimate, FramePack's README for an RTX 4090).")
    # A card that computes faster hides less.
    assert chosen(recommendation)[0] == "default"
    assert chosen(best(Machine("cuda", "", "NVIDIA H200", 24 * GB, link=FAST)))[0] == "int8"


def test_where_they_do_not_less_is_preserved_and_then_rounded() -> None:
    assert chosen(best(radeon(24, Link(3, 8)))) == ("default", None, None)
    assert chosen(best(radeon(24, SLOW))) == ("default", 4.4, None)
    slow = best(radeon(24, SLOWEST))
    assert chosen(slow) == ("int8", 4.5, None)
    assert slow.words == (
        "Recommended for this card: FramePack I2V at 640 pixels, weights rounded to int8, 4.5 GB preserved. "
        "Nothing is streamed in a step."
    )
    # Guidance doubles the copies of a step and its computation.
    guided = GenerationRequest(image="x", model=INFO.name, mode="inverted", cfg=2.0)
    assert chosen(best(radeon(24, SLOW), request=guided)) == ("default", 4.4, None)


def test_blocks_that_are_streamed_are_never_rounded_but_a_copy_in_int8_is_named() -> None:
    recommendation = best(radeon(8, SLOWEST))
    assert chosen(recommendation) == ("default", None, None)
    assert recommendation.words.endswith(
        "A step takes about 14 s to copy; with these files, no set-up is faster. With a file in int8, that "
        "would take about 8.8 s; `longtake models convert framepack-i2v --weight-dtype int8` writes one."
    )


def test_main_memory_that_is_too_small_changes_the_set_up() -> None:
    recommendation = best(radeon(24), ram_gb=16)
    assert (chosen(recommendation), recommendation.set_up.plan.job.preserved_bytes) == (
        ("default", None, None),
        gb_bytes(4.4),
    )
    assert "limited by main memory (assumed)" in recommendation.words
    assert "limited by the disk (measured)" in best(radeon(24), ram_gb=8).words
    recommendation = best(radeon(12), ram_gb=16)
    assert "about 7.2 s to copy from the disk" in recommendation.words
    assert "With a file in int8, that would take about 0.9 s" in recommendation.words


def test_a_card_that_is_too_small_for_the_models_own_size_gets_the_largest_that_fits() -> None:
    recommendation = best(machine_of_card("gfx103x:6"))
    assert recommendation.set_up.side == recommendation.set_up.settings["resolution"] == 480
    plan = recommendation.set_up.plan
    assert plan.job.peak_bytes <= plan.job.budget.cap_bytes
    with pytest.raises(DoesNotFit):
        best(radeon(2))


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

"""Tests of the time that plans tell a person, by others' figures for a card, or as jobs here measured it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.machine import machine_of_card
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Facts, Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import networks
from diffusers_helper.planning.cards.speeds import (
    MEASURED,
    Duration,
    decode_time,
    keep_times,
    known_card,
    step_key,
    step_time,
    work_of,
)
from diffusers_helper.planning.estimates import tokens_by_size
from diffusers_helper.planning.profiles import Machine, Profile, profile_for
from diffusers_helper.planning.times import expected_times, forecast
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.making import make, tiny_request

INFO = find_model("framepack-i2v")
FRAMEPACK = networks(INFO, on_cpu=False)["transformer"]
TOKENS = 18_485  # of a section of 640x608 pixels
REQUEST = GenerationRequest(image="x", model=INFO.name, mode="inverted")
XTX = profile_for(machine_of_card("gfx1100:24"), {})


def radeon(arch: str, gb: float, name: str = "", *, is_apu: bool = False) -> Machine:
    return Machine("rocm", arch, name or arch, round(gb * GB), is_apu)


def plan(
    profile: Profile = XTX, request: GenerationRequest = REQUEST, local: Local | None = None
) -> VideoPlan:
    info = find_model(request.model)
    return plan_video(request, info, profile, shape=(640, 608), local=local or Local())


def facts(duration: Duration | None) -> tuple[float, str]:
    return duration.seconds, duration.source


def test_the_work_of_a_step_follows_from_the_networks_shape() -> None:
    work = work_of(FRAMEPACK, [TOKENS])
    figures = work.products / 1e12, work.attention / 1e12, work.traffic / 1e12
    assert figures == pytest.approx((251, 252, 0.80), rel=0.01)
    assert work_of(FRAMEPACK, [TOKENS], 2).flop == 2 * work.flop
    helios = networks(find_model("helios-base"), on_cpu=False)["transformer"]
    # Query, key, value and result, the text's query and result, and twice the feed-forward part, per token.
    values = 40 * (6 * 5120**2 + 2 * 5120 * 13824)
    assert work_of(helios, [1000]).products == 2 * 1000 * values


def test_the_sizes_of_a_pyramid_have_a_quarter_of_the_noisy_tokens_each() -> None:
    noisy = 9 * 24 * 40
    assert tokens_by_size(10_000, 384, 640, 3) == [10_000, 10_000 - 0.75 * noisy, 10_000 - 15 / 16 * noisy]


@given(st.floats(1e3, 1e5), st.floats(1e3, 1e5))
def test_more_tokens_never_take_less_time(count_a: float, count_b: float) -> None:
    card = known_card(XTX.machine)
    seconds = [card.step(work_of(FRAMEPACK, [count])).seconds for count in sorted((count_a, count_b))]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("machine", "least", "most"),
    [
        (radeon("gfx1100", 23.98), 7.5, 9), (radeon("gfx1100", 19.98), 8.5, 9.5),
        (radeon("gfx1101", 15.98), 11.5, 12.5), (radeon("gfx1201", 15.9, "AMD Radeon RX 9070 XT"), 8, 9),
        (radeon("gfx1151", 64, is_apu=True), 26, 33), (radeon("gfx1030", 16), 83, 87),
        (Machine("cuda", "", "NVIDIA H200", 140 * GB), 1.07, 1.18),
        (Machine("cuda", "", "NVIDIA GeForce RTX 4090", 24 * GB), 3.5, 3.7),
    ],
)  # fmt: skip
def test_a_card_takes_the_time_that_others_figures_give(machine: Machine, least: float, most: float) -> None:
    card = known_card(machine)
    assert least <= card.step(work_of(FRAMEPACK, [TOKENS])).seconds <= most


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (radeon("gfx1100", 24, "Navi 31 [Radeon RX 7900 XT/7900 XTX]"), "RX 7900 XTX"),
        (radeon("gfx1030", 16, "AMD Radeon RX 6800 XT"), "RX 6800 XT"),
        (radeon("gfx1030", 16), "RX 6800"),  # the slowest of those that it may be
        (radeon("gfx1201", 16), "RX 9070"),
        (radeon("gfx1034", 8), "RX 6600"),  # a gfx name without a row
        (radeon("gfx1150", 28, is_apu=True), "Radeon 890M"), (radeon("gfx1100", 10), None),
        (radeon("gfx1103", 16, is_apu=True), None), (radeon("gfx942", 192), None),
        (Machine("cuda", "", "NVIDIA GPU", 0), None), (Machine("cpu", "", "CPU", 16 * GB), None),
    ],
)  # fmt: skip
def test_a_card_is_told_by_its_gfx_name_its_memory_and_its_name(machine: Machine, name: str | None) -> None:
    card = known_card(machine)
    assert (card and card.name) == name


def test_an_estimate_names_whose_figures_it_is() -> None:
    step = plan(profile_for(radeon("gfx1102", 8), {})).step
    assert step.words == ("about 22 s (estimate, others' reports of an RX 7900 XTX, scaled to the RX 7600)")
    assert Duration(3.0, MEASURED).words == "about 3.0 s (measured here)"


def test_the_stages_of_a_first_job_have_times_and_later_jobs_leave_some_out() -> None:
    video_plan = plan()
    first, later = (expected_times(video_plan, XTX, INFO, is_first=is_first) for is_first in (True, False))
    assert [*first] == ["load", "attention", "convolutions", "text", "sample", "decode"]
    assert [*later] == ["text", "sample", "decode"]
    assert facts(first["load"]) == (pytest.approx(39.4 * GB / 2e9, rel=0.01), "the disk, assumed")
    step = video_plan.step
    assert first["sample"].seconds == pytest.approx(25 * step.seconds, rel=0.01)
    decodes = [
        expected_times(video_plan, XTX, INFO, is_first=True, section=number)["decode"].seconds
        for number in (1, 2, 3, 4)
    ]
    assert decodes == pytest.approx([20, 20 * 15 / 13, 20 * 18 / 13, 20 * 29 / 13])
    # A way that is set is not tried, and a card of NVIDIA has no MIOpen.
    native = plan(request=replace(REQUEST, attention="native"))
    assert "attention" not in expected_times(native, XTX, INFO, is_first=True)
    nvidia = profile_for(Machine("cuda", "", "NVIDIA H200", 140 * GB), {})
    assert "convolutions" not in expected_times(plan(nvidia), nvidia, INFO, is_first=True)
    assert [*expected_times(plan(PLAIN), PLAIN, INFO, is_first=True)] == ["load"]


PLAIN = profile_for(Machine("cpu", "", "CPU", 64 * GB), {})


def test_a_video_takes_what_its_stages_take() -> None:
    video_plan = plan()
    times = forecast(video_plan, XTX, INFO)
    first = expected_times(video_plan, XTX, INFO, is_first=True)
    assert times.first_second_seconds.first_job == pytest.approx(
        sum(stage.seconds for stage in first.values())
    )
    ends, begins = times.video_seconds, times.first_second_seconds
    assert ends.first_job - ends.later == pytest.approx(begins.first_job - begins.later)
    assert ends.later > 4 * 25 * times.step.seconds
    assert times.text == (
        "A step takes about 7.5 s, a section about 3 min 30 s. The first second of video comes after about "
        "5 min 30 s in a first job, about 3 min 30 s later; the whole video takes about 16 min in a first "
        "job, about 14 min later (estimate, others' reports of an RX 7900 XTX)."
    )
    assert forecast(plan(PLAIN), PLAIN, INFO) is None
    helios = replace(REQUEST, model="helios-distilled", mode="forward", steps=6)
    helios_times = forecast(plan(request=helios), XTX, find_model(helios.model))
    assert "without the time to decode, which is not known" in helios_times.text


def test_copies_that_do_not_hide_are_the_time_of_a_step() -> None:
    video_plan = plan_video(
        REQUEST, INFO, profile_for(radeon("gfx1100", 12, "RX 7700 XT"), {}), shape=(640, 608),
        free_ram_bytes=4 * GB, disk_speed=lambda file: 5e8,
    )  # fmt: skip
    assert video_plan.step == Duration(video_plan.copy_seconds, "limited by the disk, measured")
    assert video_plan.copy_seconds > 40


def test_what_a_job_took_here_takes_the_place_of_estimates(tmp_path: Path) -> None:
    local, usual = Local(folder=tmp_path), plan()
    keep_times(local.step_times, step_key(XTX.machine, INFO), usual.work, 6.0, 640 * 608 * 2.0)
    measured = plan(local=local)
    assert facts(measured.step) == (pytest.approx(6.0), MEASURED)
    assert facts(measured.decoding) == (pytest.approx(0.5), MEASURED)
    guided = plan(request=replace(REQUEST, cfg=2.0), local=local)
    assert facts(guided.step) == (pytest.approx(12), MEASURED)
    times = forecast(measured, XTX, INFO)
    assert times.text.endswith("the whole video takes about 11 min (measured here).")
    assert " first job" not in times.text
    # Nothing is known of another model, nor by a damaged entry.
    other = plan(request=replace(REQUEST, model="framepack-f1", mode="forward"), local=local).step
    assert other.source != MEASURED
    local.step_times.write(step_key(XTX.machine, INFO), {"flop_per_second": "fast", "decode_per_second": 0})
    assert plan(local=local) == usual


def test_decoding_is_estimated_for_wan_and_not_for_helios() -> None:
    r9700 = replace(machine_of_card("gfx1200:32"), name="PRO R9700")

    def decoding(model: str) -> Duration | None:
        vae = networks(find_model(model), on_cpu=False)["vae"]
        return decode_time(r9700, vae, 832 * 480, Facts(), "")

    wan = decoding("wan-5b-fast")
    assert 31 * wan.seconds == pytest.approx(13.9, rel=0.05)  # the reported time of a PRO R9700
    assert decoding("helios-distilled") is None


def test_a_step_that_launches_rule_has_no_estimate() -> None:
    small = work_of(FRAMEPACK, [10])
    assert step_time(XTX.machine, small, Facts(), "") is None


def test_a_finished_job_stores_what_its_steps_and_decodes_took(
    deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    local, request = Local(folder=tmp_path / "cache"), tiny_request(small_scene, steps=2)
    make(request, deep_models, tmp_path / "job", local=local)
    (entry,) = json.loads((tmp_path / "cache" / "step_times.json").read_text()).values()
    assert entry.keys() == {"flop_per_second", "decode_per_second"}
    assert min(entry.values()) > 0
    video_plan = plan_video(request, deep_models.info, PLAIN, shape=(64, 64), local=local)
    assert (video_plan.step.source, video_plan.decoding.source) == (MEASURED, MEASURED)
    cached = tiny_request(small_scene, steps=2, step_cache="first-block")
    other = Local(folder=tmp_path / "other")
    make(cached, deep_models, tmp_path / "cached", local=other)
    assert not (tmp_path / "other" / "step_times.json").exists()

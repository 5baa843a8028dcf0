"""Tests of the time that plans tell a person, by others' figures for a card, or as jobs here measured it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.machine import machine_of_card
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import networks
from diffusers_helper.planning.cards.speeds import (
    MEASURED,
    known_card,
    work_of,
)
from diffusers_helper.planning.estimates import tokens_by_size
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import plan_video
from diffusers_helper.units import GB
from tests.support.making import make, tiny_request

INFO = find_model("framepack-i2v")
FRAMEPACK = networks(INFO, on_cpu=False)["transformer"]
TOKENS = 18_485  # of a section of 640x608 pixels
XTX = profile_for(machine_of_card("gfx1100:24"), {})


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


PLAIN = profile_for(Machine("cpu", "", "CPU", 64 * GB), {})


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

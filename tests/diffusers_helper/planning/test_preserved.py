"""Tests of the automatic preserved memory, and of the plans by card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import JobPlan
from diffusers_helper.planning.cards import CARDS_GB, plans_by_card
from diffusers_helper.planning.job import VideoPlan, plan_video
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB

INFO = find_model("framepack-i2v")
REQUEST = GenerationRequest(image="none", model=INFO.name)


def plan(card_gb: int, preserved_gb: float | None = None) -> VideoPlan:
    machine = Machine("rocm", "gfx1100", "card", card_gb * GB)
    return plan_video(replace(REQUEST, preserved_gb=preserved_gb), INFO, profile_for(machine, {}))


def resident(job: JobPlan) -> list[int]:
    return [stage.resident_bytes for stage in job.stages]


@pytest.mark.parametrize("card_gb", [12, 16, 20, 24, 48])
def test_the_automatic_value_holds_nothing_back_and_is_the_largest_that_does_not(card_gb: int) -> None:
    choice = plan(card_gb).preserved
    assert choice is not None
    automatic = choice.automatic.budget.preserved_bytes
    assert resident(plan(card_gb, automatic / GB).job) == resident(plan(card_gb, 0.0).job)
    assert choice.automatic.peak_bytes <= choice.plan.budget.cap_bytes
    assert resident(plan(card_gb, automatic / GB + 0.2).job) != resident(plan(card_gb, 0.0).job)


def test_the_documents_value_says_what_it_costs() -> None:
    choice = plan(24).preserved
    assert choice is not None
    now = choice.plan.stage("sample").streamed_bytes
    assert choice.saved_bytes == now - choice.automatic.stage("sample").streamed_bytes > 10 * GB
    assert choice.words.startswith("18 of 20 GB are preserved, as docs/amd-memory.md sets it")
    assert (
        "1.7 GB of the transformer stay on the device and 22.3 GB are streamed in each pass." in choice.words
    )
    automatic = plan(24, choice.automatic.budget.preserved_bytes / GB).preserved
    assert automatic is not None
    assert (automatic.saved_bytes, automatic.words) == (0, "")


def test_each_card_has_its_plans() -> None:
    plans = plans_by_card(REQUEST, INFO)
    assert [one.card_gb for one in plans] == list(CARDS_GB)
    assert plans[0].default is plans[0].automatic is None
    assert plans[0].smallest_cap_bytes > plans[0].cap_bytes
    streamed = 0
    for one in plans[1:]:
        assert one.default is not None
        assert one.automatic is not None
        same = plan(one.card_gb).job
        assert one.default.resident_bytes == same.stage("sample").resident_bytes
        assert one.default.peak_bytes == same.peak_bytes
        assert one.automatic.resident_bytes > max(one.default.resident_bytes, streamed)
        streamed = one.automatic.resident_bytes
    twice = plans_by_card(replace(REQUEST, cfg=2.0), INFO)[-1].default
    assert plans[-1].default is not None
    assert twice is not None
    assert twice.streamed_bytes == 2 * plans[-1].default.streamed_bytes

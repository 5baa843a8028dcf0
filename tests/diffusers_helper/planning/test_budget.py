"""Tests of the planner: no plan exceeds its cap, a larger cap never streams more, the least cap is exact."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.families.family import buckets
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.models.sizes import Weights, networks
from diffusers_helper.planning.backend import FACTORS, Backend
from diffusers_helper.planning.budget import (
    RING_BLOCKS,
    Budget,
    Demand,
    DoesNotFit,
    Stage,
    StagePlan,
    min_resident_bytes,
    plan_job,
    plan_stage,
    smallest_cap,
)
from diffusers_helper.planning.estimates import demand_of, tile_steps
from diffusers_helper.units import GB, gb_bytes

KNOWN = {name: networks(find_model(name), on_cpu=False) for name in model_names()}
SHAPES = {name: buckets(find_model(name).side, find_model(name).multiple) for name in model_names()}

models = st.builds(
    lambda fixed, blocks: Weights("model", fixed + sum(blocks), tuple(blocks)),
    st.integers(0, 50),
    st.lists(st.integers(0, 40), max_size=12),
)
stages = st.builds(Stage, st.just("stage"), models, st.integers(0, 60))
budgets = st.builds(
    Budget, st.just(4000), st.integers(0, 800), st.integers(0, 300), st.integers(0, 30), st.booleans()
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Budget, tuple[Demand, ...]]:
    name = draw(st.sampled_from(model_names()))
    height, width = draw(st.sampled_from(SHAPES[name]))
    backend = draw(st.sampled_from((Backend(), replace(Backend(), **FACTORS["rocm"]))))
    wanted = draw(st.none() | st.sampled_from((64, 128, 256)))
    cap = gb_bytes(draw(st.floats(2, 192)))
    preserved = gb_bytes(draw(st.floats(0, 64)))
    budget = Budget(192 * GB, cap, preserved, draw(st.sampled_from((0, GB))), draw(st.booleans()))
    tiles = tile_steps(256, wanted)
    return budget, tuple(demand_of(KNOWN[name], height, width, tile, backend=backend) for tile in tiles)


def check(budget: Budget, plan: StagePlan, stage: Stage) -> None:
    """Assert what holds for every plan."""
    parts = (plan.others_bytes, plan.resident_bytes, plan.ring_bytes, plan.working_bytes, plan.reserve_bytes)
    assert plan.peak_bytes == sum(parts) <= budget.cap_bytes
    free = budget.cap_bytes - plan.resident_bytes - plan.others_bytes
    assert free >= stage.working_bytes + budget.reserve_bytes
    # Only the weights that the device needs at least may lie in the preserved memory.
    fewest = plan_stage(replace(budget, preserved_bytes=budget.cap_bytes), stage).resident_bytes
    assert free >= budget.preserved_bytes or plan.resident_bytes == fewest
    blocks = stage.model.block_bytes
    assert sorted((*plan.resident_blocks, *plan.streamed_blocks)) == list(range(len(blocks)))
    streamed = [blocks[index] for index in plan.streamed_blocks]
    assert plan.streamed_bytes == sum(streamed)
    assert plan.resident_bytes + plan.streamed_bytes == stage.model.total_bytes
    assert plan.ring_bytes == RING_BLOCKS * max(streamed, default=0)


@given(budget=budgets, stage=stages)
def test_a_stage_fits_from_the_smallest_cap_on_and_not_one_byte_below(budget: Budget, stage: Stage) -> None:
    smallest = smallest_cap(budget, (stage,))
    for cap in (smallest, smallest + 1, smallest + 100, max(smallest, budget.cap_bytes)):
        check(budget.with_cap(cap), plan_stage(budget.with_cap(cap), stage), stage)
    if smallest:
        with pytest.raises(DoesNotFit) as caught:
            plan_stage(budget.with_cap(smallest - 1), stage)
        assert caught.value.smallest_cap_bytes == smallest


@given(budget=budgets, stage=stages, more=st.integers(0, 300))
def test_a_larger_cap_never_streams_more(budget: Budget, stage: Stage, more: int) -> None:
    budget = budget.with_cap(max(budget.cap_bytes, smallest_cap(budget, (stage,))))
    small = plan_stage(budget, stage)
    large = plan_stage(budget.with_cap(budget.cap_bytes + more), stage)
    assert set(large.streamed_blocks) <= set(small.streamed_blocks)


@given(job=jobs())
def test_no_plan_of_any_model_shape_and_cap_exceeds_the_cap(job: tuple[Budget, tuple[Demand, ...]]) -> None:
    budget, wanted = job
    by_tile = {demand.vae_tile_px: demand for demand in wanted}
    smallest = min(smallest_cap(budget, demand.stages) for demand in wanted)
    if budget.cap_bytes < smallest:
        with pytest.raises(DoesNotFit) as caught:
            plan_job(budget, wanted)
        assert caught.value.smallest_cap_bytes == smallest
        budget = budget.with_cap(smallest)
    plan = plan_job(budget, wanted)
    assert plan.smallest_cap_bytes == smallest
    assert plan.peak_bytes == max(stage.peak_bytes for stage in plan.stages) <= budget.cap_bytes
    for stage, planned in zip(by_tile[plan.vae_tile_px].stages, plan.stages, strict=True):
        check(budget, planned, stage)
        assert not plan.keep_all_resident or not planned.streamed_blocks
    # The planner may pass over a larger tile only where it does not fit.
    for demand in wanted[: [demand.vae_tile_px for demand in wanted].index(plan.vae_tile_px)]:
        with pytest.raises(DoesNotFit):
            plan_job(budget, [demand])


@pytest.mark.parametrize("blocks", [(50,), (50, 50), (80, 10, 10)])
def test_no_model_is_streamed_that_takes_less_memory_as_a_whole(blocks: tuple[int, ...]) -> None:
    model = Weights("model", 10 + sum(blocks), blocks)
    plan = plan_stage(Budget(1000, 120, 1000, 0), Stage("sample", model, 5))
    assert (plan.streamed_blocks, plan.peak_bytes) == ((), model.total_bytes + 5)
    assert min_resident_bytes(model) == model.total_bytes


def test_one_large_model_at_a_time_unless_all_fit() -> None:
    large, small = Weights("large", 90, (30, 30, 30)), Weights("small", 20)
    stages = Stage("sample", large, 10), Stage("decode", small, 10)
    for cap, others, peak in ((100, [0, 0], 100), (120, [0, 90], 120)):
        job = plan_job(Budget(1000, cap, 0, 0), [Demand(None, stages)])
        assert ([plan.others_bytes for plan in job.stages], job.peak_bytes) == (others, peak)


@given(job=jobs())
def test_preserved_memory_never_refuses_and_never_copies_less(job: tuple[Budget, tuple[Demand, ...]]) -> None:
    budget, wanted = job
    budget = budget.with_cap(
        max(budget.cap_bytes, min(smallest_cap(budget, alternative.stages) for alternative in wanted))
    )
    streamed, kept = list[int](), list[int]()
    for preserved in (0, 4, 18, 20, 64, 1000):
        plan = plan_job(replace(budget, preserved_bytes=preserved * GB), wanted)
        streamed.append(plan.stage("sample").streamed_bytes)
        kept.append(plan.preserved_bytes)
        assert plan.preserved_bytes <= preserved * GB
    assert streamed == sorted(streamed)
    assert kept == sorted(kept)


def test_a_cap_that_is_not_fixed_is_raised_as_far_as_the_job_needs() -> None:
    demand = Demand(None, (Stage("sample", Weights("transformer", 6 * GB, (GB, GB, GB, GB)), 2 * GB),))
    budget = Budget(8 * GB, 4 * GB, 0, GB, max_cap_bytes=7 * GB)
    plan = plan_job(budget, [demand])
    assert (plan.budget.cap_bytes, plan.peak_bytes) == (7 * GB, 7 * GB)
    enough = replace(budget, cap_bytes=7 * GB + 9)
    assert plan_job(enough, [demand]).budget.cap_bytes == 7 * GB + 9
    with pytest.raises(DoesNotFit) as caught:
        plan_job(replace(budget, max_cap_bytes=7 * GB - 1), [demand])
    assert caught.value.budget.cap_bytes == 7 * GB - 1
    with pytest.raises(DoesNotFit):
        plan_job(budget.with_cap(4 * GB), [demand])

"""Tests of the preserved memory with the fewest copies, and of the sizes of files in blocks."""

from dataclasses import replace

import pytest

from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import JobPlan
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.set_ups import (
    networks_by_format,
)
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from diffusers_helper.weights.gguf_file import LOADABLE

INFO = find_model("framepack-i2v")
REQUEST = GenerationRequest(image="none", model=INFO.name)


def plan(card_gb: int, preserved_gb: float | None = None) -> VideoPlan:
    machine = Machine("rocm", "gfx1100", "card", card_gb * GB)
    return plan_video(replace(REQUEST, preserved_gb=preserved_gb), INFO, profile_for(machine, {}))


def resident(job: JobPlan) -> list[int]:
    return [*(stage.resident_bytes for stage in job.stages), job.keep_all_resident]


@pytest.mark.parametrize("card_gb", [12, 16, 20, 24, 48])
def test_the_value_with_the_fewest_copies_is_the_largest_that_holds_nothing_back(card_gb: int) -> None:
    video_plan = plan(card_gb)
    fewest = video_plan.fewest_copies.budget.preserved_bytes
    assert resident(plan(card_gb, fewest / GB).job) == resident(plan(card_gb, 0.0).job)
    assert video_plan.fewest_copies.peak_bytes <= video_plan.job.budget.cap_bytes
    assert resident(plan(card_gb, fewest / GB + 0.2).job) != resident(plan(card_gb, 0.0).job)


def test_the_sizes_in_blocks_are_near_those_of_a_file() -> None:
    """Compare them with a file whose matrices are in blocks, and everything else in 32 bit."""
    from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES
    from gguf import GGML_QUANT_SIZES

    from diffusers_helper.families.framepack import CONFIGS
    from diffusers_helper.loading.networks import empty_network

    kinds = [kind for kind in SUPPORTED_GGUF_QUANT_TYPES if kind.name != "BF16"]
    assert {kind.name for kind in kinds} == {*LOADABLE}
    by_name = {name: network for network, names in networks_by_format(INFO).items() for name in names}
    tensors = empty_network("transformer", CONFIGS["transformer"]).state_dict().values()
    for kind in kinds:
        block, size = GGML_QUANT_SIZES[kind]
        stored = sum(
            tensor.numel() * size / block if tensor.dim() == 2 else 4 * tensor.numel() for tensor in tensors
        )
        assert by_name[kind.name].file_bytes == pytest.approx(stored, rel=0.02)

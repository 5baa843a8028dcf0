"""Tests of the preserved memory with the fewest copies, and of the plans by card."""

from dataclasses import replace

import pytest

from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import JobPlan
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.set_ups import (
    CARDS_GB,
    STORED,
    networks_by_format,
    plans_by_card,
    plans_by_format,
)
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import WEIGHT_TYPES, GenerationRequest
from diffusers_helper.units import GB, gb_text
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


def test_the_documents_value_says_what_it_costs() -> None:
    video_plan = plan(24)
    now = video_plan.job.stage("sample").streamed_bytes
    assert video_plan.saved_bytes == now - video_plan.fewest_copies.stage("sample").streamed_bytes > 10 * GB
    words = video_plan.preserved_text
    assert words.startswith("18 of 20 GB are preserved, as docs/amd-memory.md sets it")
    assert "1.7 GB of the transformer stay on the device and 22.3 GB are streamed in each pass." in words
    assert words.endswith(
        f"each pass would copy {gb_text(video_plan.saved_bytes)} GB less, which is "
        f"{gb_text(video_plan.saved_bytes * 25 * video_plan.sections)} GB in the whole video."
    )
    fewest = plan(24, video_plan.fewest_copies.budget.preserved_bytes / GB)
    assert (fewest.saved_bytes, fewest.preserved_text) == (0, "")


def test_each_card_has_its_plans() -> None:
    plans = plans_by_card(REQUEST, INFO)
    assert [card.card_gb for card in plans] == list(CARDS_GB)
    streamed = 0
    for card in plans:
        assert card.default.cap_bytes == max(card.cap_bytes, card.smallest_cap_bytes)
        same = plan(card.card_gb).job
        assert card.default.resident_bytes == same.stage("sample").resident_bytes
        assert card.default.peak_bytes == same.peak_bytes
        assert card.fewest_copies.resident_bytes >= card.default.resident_bytes
        assert card.fewest_copies.resident_bytes > streamed
        streamed = card.fewest_copies.resident_bytes
    twice = plans_by_card(replace(REQUEST, cfg=2.0), INFO)[-1].default
    assert twice.streamed_bytes == 2 * plans[-1].default.streamed_bytes


def test_each_format_of_the_file_has_its_plans() -> None:
    formats = plans_by_format(REQUEST, INFO)
    names = [name for file_format in formats for name in file_format.formats]
    assert names[0] == STORED
    by_name = {name: file_format for file_format in formats for name in file_format.formats}
    assert {*by_name} == {STORED, *WEIGHT_TYPES, *LOADABLE} - {"auto", "default"}
    assert list(by_name[STORED].cards) == plans_by_card(REQUEST, INFO)
    assert by_name["bf16"] is by_name[STORED]
    for file_format in formats:
        fits = [fit for card in file_format.cards for fit in (card.default, card.fewest_copies) if fit]
        assert fits
        for fit in fits:
            assert fit.resident_bytes + fit.streamed_bytes == file_format.file_bytes
            assert fit.host_bytes == fit.disk_bytes == fit.streamed_bytes
    sizes = [by_name[kind].file_bytes for kind in LOADABLE]
    assert sizes == sorted(sizes, reverse=True)


def test_a_setting_leaves_the_files_as_they_are() -> None:
    twice = replace(REQUEST, weight_dtype="fp8_e4m3fn", cfg=2.0)
    settings = plans_by_card(twice, INFO)
    assert any(card.default for card in settings)
    files = next(plans for plans in plans_by_format(REQUEST, INFO) if "fp8_e4m3fn" in plans.formats)
    for setting, file in zip(settings, files.cards, strict=True):
        assert (setting.default is None) == (file.default is None)
        if setting.default and file.default:
            assert setting.default.streamed_bytes == 2 * file.default.streamed_bytes
            assert setting.default.host_bytes > 1.5 * file.default.host_bytes
            assert setting.default.disk_bytes == 2 * setting.default.host_bytes


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

"""Tests of the set-up of a job: what an earlier run leaves to it, and what it leaves to the next one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.families.packing import plan_sections
from diffusers_helper.framepack.joining import FrameBlender, _match_edge
from diffusers_helper.job import plans, setup
from diffusers_helper.job.card import card_name
from diffusers_helper.job.original import Original
from diffusers_helper.job.plans import MemoryPlans, kernels_problem
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.planning.profiles import Machine
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import VaeUse, read_uses, record_use
from diffusers_helper.request import START_PICTURE, GenerationRequest
from tests.support.answers import text_of

REQUEST = GenerationRequest(image="x", model="framepack-i2v")
SLICED = "sliced 77"
FUSED, OLDER = (f"fused kernels of comfy-kitchen 0.{version}" for version in (2, 1))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    (tmp_path / "job").mkdir()
    return JobFolder(tmp_path / "job")


def test_a_job_goes_on_with_the_kernels_with_which_it_began_where_this_machine_has_them(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lines = list[str]()
    for attention, kernels, problem, device in (
        (None, FUSED, "", "cuda"), (SLICED, None, "", "cpu"), (SLICED, FUSED, "", "cuda"),
        (SLICED, OLDER, "", "cuda"), (SLICED, FUSED, "lacks it", "cuda"), (SLICED, "odd", "", "cuda"),
        ("kitchen 5", FUSED, "", "cuda"), ("kitchen 5", None, "lacks it", "cuda"),
        ("kitchen 5", None, "", "cpu"), ("warp 5", None, "", "cuda"), (f"sliced {10**15}", None, "", "cuda"),
        (f"sliced {10**15 - 1}", None, "", "cuda"),
    ):  # fmt: skip
        for module in ("setup", "plans"):
            monkeypatch.setattr(
                f"diffusers_helper.job.{module}.kitchen_problem", lambda problem=problem: problem
            )
        monkeypatch.setattr(setup, "kernels_version", lambda name: f"{name} kernels of comfy-kitchen 0.2")
        for file, text in ((folder.attention, attention), (folder.kernels, kernels)):
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_text(text)
        models: Any = SimpleNamespace(device=torch.device(device))
        begun, stored, texts = setup._begun_with(REQUEST, folder, models)
        own, *_ = setup._begun_with(replace(REQUEST, attention="math"), folder, models)
        facts = begun.attention, begun.kernels, stored, own.attention
        lines.append(f"{attention}, {kernels}, {problem or 'has it'}, {device}: {text_of(facts)} {texts}")
        assert setup._begun_with(REQUEST, None, models) == (REQUEST, None, "")
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize(
    ("asked", "stored", "expected"),
    [("auto", "int8", "int8"), ("auto", None, "auto"), ("bf16", "int8", "bf16")],
)
def test_the_type_that_a_job_has_chosen_stays_where_it_may_choose(
    asked: str, stored: str | None, expected: str, folder: JobFolder
) -> None:
    if stored:
        folder.weight_type.write_text(stored)
    request = replace(REQUEST, weight_dtype=asked)
    assert setup._with_weight_dtype(request, folder).weight_dtype == expected
    assert setup._with_weight_dtype(request, None) == request


@pytest.mark.parametrize(
    ("kernels", "overflow", "is_same"),
    [("", None, True), ("", "bf16", False), (FUSED, "fp32", False), (FUSED, "of an earlier version", True)],
)
def test_what_a_run_writes_is_what_the_next_one_reads(
    kernels: str, overflow: str | None, is_same: bool, folder: JobFolder, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = folder if is_same else JobFolder(tmp_path / "new")
    for section in (0, 1):
        record_use(folder.vae, VaeUse(section, 256 - 64 * section, "fp16", 2))
    if overflow:
        folder.overflow.write_text(overflow)
    folder.kernels.write_text(OLDER)
    folder.blas.write_text("ck")
    plans: Any = SimpleNamespace(
        request=replace(REQUEST, weight_dtype="int8"),
        attention=("sliced", 77),
        kernels=kernels,
        blas="default",
    )
    auto = replace(REQUEST, weight_dtype="auto")
    assert setup._write_facts(new, auto, folder, Lineage(parent="another"), plans) == plans.request
    assert new.weight_type.read_text() == "int8"
    assert new.attention.read_text() == SLICED
    if is_same or kernels:  # what an earlier run wrote here is no longer true
        assert new.kernels.read_text() == kernels
    else:
        assert not new.kernels.exists()
    assert new.blas.read_text() == "default" if is_same else not new.blas.exists()
    assert [use.section for use in read_uses(new.vae)] == ([0, 1] if is_same else [0])
    precision = {None: "", "of an earlier version": "fp32"}.get(overflow, overflow)
    assert setup._earlier_vae_precision(new) == precision
    assert setup._earlier_vae_precision(None) == ""
    setup._write_facts(new, REQUEST, None, Lineage(parent="a third"), plans)
    assert Lineage.read(new.lineage).parent == "another"


def test_a_plan_counts_with_the_most_that_any_section_asks_for() -> None:
    spans = [
        replace(REQUEST, prompt="a longer one", negative="x", cfg=1.0, seed=1),
        replace(REQUEST, prompt="z", negative="blurred", cfg=6.0, seed=2),
    ]
    for requests in (spans, spans[::-1]):
        lineage: Any = SimpleNamespace(requests=lambda request, requests=requests: requests)
        largest = setup._largest_request(lineage, REQUEST)
        assert largest == replace(REQUEST, prompt="a longer one", negative="blurred", cfg=6.0)


def test_a_folder_holds_one_video_and_its_files_are_written_once(folder: JobFolder, tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 8), "red")
    setup._open_folder(folder, REQUEST, {START_PICTURE: picture}, folder)
    written = folder.input.read_bytes(), folder.request.read_bytes()
    folder.segments.mkdir()
    other = replace(REQUEST, seed=9)
    setup._open_folder(folder, other, {START_PICTURE: Image.new("RGB", (8, 8), "blue")}, folder)
    assert (folder.input.read_bytes(), folder.request.read_bytes()) == written
    with pytest.raises(InputError, match="holds another video"):
        setup._open_folder(folder, other, {}, None)
    nested = JobFolder(tmp_path / "outputs" / "new")
    with pytest.raises(FileNotFoundError):  # a folder that has vanished is not made again
        setup._open_folder(nested, REQUEST, {}, nested)
    setup._open_folder(nested, REQUEST, {}, folder)
    assert nested.request.exists()


def test_a_card_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(pci_domain_id=1, pci_bus_id=2, pci_device_id=3, uuid="u")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: place)
    assert (card_name(torch.device("cpu")), card_name(torch.device("cuda"))) == ("", "card-1-2-3-u")


def test_words_of_all_prompts_are_looked_up() -> None:
    models: Any = SimpleNamespace(info=find_model("demo"))
    request = replace(REQUEST, prompt="[0s: a red balloon]\n[1.2s: it hovers]")
    assert setup._unknown_words(request, models).endswith("ignores them: balloon, hovers.")


@pytest.mark.parametrize(
    ("name", "kind", "problem", "sentence"),
    [
        ("plain", "cpu", "away", ""), ("auto", "cpu", "away", ""), ("fused", "cpu", "", ""),
        ("fused", "cuda", "away", "comfy-kitchen cannot be used (away)"),
        ("fast8", "rocm", "away", "comfy-kitchen cannot be used (away)"), ("fast8", "cpu", "", ""),
        ("compiled", "cuda", "away", ""), ("compiled", "rocm", "", "on NVIDIA's cards alone"),
        ("compiled", "cpu", "", "on NVIDIA's cards alone"),
    ],
)  # fmt: skip
def test_kernels_need_their_package_or_their_card(
    name: str, kind: Any, problem: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: problem)
    result = kernels_problem(name, kind)
    assert result.endswith(sentence)
    assert bool(result) == bool(sentence)


@pytest.mark.parametrize("is_last", [False, True])
def test_the_difference_to_the_original_fades_over_a_section(is_last: bool) -> None:
    original: Any = SimpleNamespace(is_last=is_last, edge_frame=Image.new("RGB", (1, 1), (255, 255, 255)))
    faded = _match_edge(original, torch.zeros(4, 1, 1, 3))[:, 0, 0, 0]
    shares = torch.linspace(1, 0, 4)
    assert torch.allclose(faded, shares.flip(0) if is_last else shares)
    # The frame at the border stands for the one of the original, which is not shown twice.
    original.is_next_to = lambda section: True
    frames = torch.linspace(-1, 1, 37).view(-1, 1, 1, 1).expand(37, 1, 1, 3)
    frames = frames if is_last else frames.flip(0)
    final, _ = FrameBlender("inverted", original).add(frames, plan_sections(1.0)[0])
    assert np.array_equal(final, to_uint8(frames[:-1] if is_last else frames[1:]))


# ---- the video that a job continues -------------------------------------------------------------------


@pytest.mark.parametrize("is_last", [False, True])
def test_the_end_of_a_video_that_meets_the_new_part_is_its_context(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in range(0, 70, 10)]
    original = Original(Path("x"), (4, 4), (1.0, 0.5, 0.5), find_model("framepack-i2v").family, is_last)
    asked = list[tuple[Any, ...]]()
    module = "diffusers_helper.job.original"
    for name, part in (("first_frames", frames[:3]), ("last_frames", frames[-3:])):
        monkeypatch.setattr(f"{module}.{name}", lambda *given, part=part: asked.append(given) or part)
    assert np.asarray(original.edge_frame)[0, 0, 0] == (0 if is_last else 60)
    assert asked == [(Path("x"), original.family.tail_frames, original.family.fps)]
    plan = plan_sections(6.0)
    nearest = {section.number for section in plan if original.is_next_to(section)}
    assert nearest == ({1} if is_last else {section.number for section in plan if section.video_index == 0})
    assert [original.num_extra_frames(section) for section in plan] == [
        4 * (is_last and section.number == 1) for section in plan
    ]
    progress, many = list[int](), [frames[0]] * 61
    monkeypatch.setattr(f"{module}.all_frames", lambda path, fps: iter(many))
    assert len([*original.frames(lambda: progress.append(1))]) == 61
    assert len(progress) == 3


# ---- the plans ----------------------------------------------------------------------------------------

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def test_each_network_computes_in_the_type_that_is_asked_for_or_that_the_card_can(
    snapshot: SnapshotAssertion,
) -> None:
    memory_plans, lines = object.__new__(MemoryPlans), list[str]()
    for name, weights, has_bf16, widened, stored, own in (
        ("vae", "bf16", True, None, FP16, None), ("vae", "bf16", False, None, BF16, None),
        ("vae", "bf16", True, ("vae", BF16), FP16, None), ("transformer", "default", True, None, BF16, None),
        ("transformer", "default", True, None, BF16, FP32),
        ("transformer", "default", False, None, BF16, None),
        ("transformer", "default", False, None, FP16, None), ("transformer", "bf16", False, None, FP16, FP32),
        ("transformer", "fp8_e4m3fn", True, None, BF16, None),
        ("transformer", "fp8_e4m3fn", False, None, BF16, None),
        ("transformer", "bf16", True, ("transformer", FP32), BF16, None),
        ("transformer", "bf16", True, ("text_encoder", FP32), BF16, None),
        ("text_encoder", "bf16", True, None, FP16, None), ("text_encoder", "bf16", False, None, BF16, FP16),
        ("text_encoder", "default", True, ("text_encoder", FP32), FP16, None),
    ):  # fmt: skip
        profile = SimpleNamespace(vae_dtype=SimpleNamespace(value="fp32"), has_bf16=has_bf16)
        models = SimpleNamespace(
            compute_dtype=lambda _, own=own: own, stored_dtype=lambda _, dtype=stored: dtype
        )
        memory_plans._profile, memory_plans.models = cast(Any, profile), cast(Any, models)
        memory_plans.request, memory_plans.widened = replace(REQUEST, weight_dtype=weights), widened
        case = f"{name} {weights}{' with bf16' * has_bf16} widened {widened} of {stored} or {own}"
        lines.append(f"{case}: {memory_plans.dtype_of(name)}".replace("torch.", ""))
    assert "\n".join(lines) == snapshot


def test_a_machine_is_what_torch_and_the_system_say_of_its_card(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    properties, lines = SimpleNamespace(name="Card", gcnArchName="gfx1100:sramecc+"), list[str]()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(plans, "host_memory", lambda: SimpleNamespace(total=64))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx1100"])
    for has_gpu, hip, detected, properties.is_integrated in (
        (False, None, 0, False), (True, None, 0, False), (True, "7.2", 0, False), (True, "7.2", 90, True),
        (True, "7.2", 8, True), (True, "7.2", 90, False),
    ):  # fmt: skip
        monkeypatch.setattr(torch.version, "hip", hip)
        result = Machine("rocm", "gfx1100", "x", detected)
        monkeypatch.setattr(plans, "detect", lambda environ, result=result: result)
        device: Any = SimpleNamespace(has_gpu=has_gpu, torch_device=torch.device("cpu"), total_bytes=16)
        lines.append(repr(plans.machine_of(device, {})))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx1030"])
    with pytest.raises(LongtakeError) as caught:
        plans.machine_of(device, {})
    assert "\n".join([*lines, f"{caught.value.code}: {caught.value}"]) == snapshot

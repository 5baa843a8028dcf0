"""The cards that --devices names, and several engines under one queue."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cards import NamedCard, VideoCard, list_cards, parse_devices, with_unique_keys
from app.machine import _nvidia_card, machine_of_card, output_of, this_machine
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.planning.budget import Budget, DoesNotFit
from diffusers_helper.planning.profiles import CAP_VARIABLE, HELPER_VARIABLE, Machine, detect, profile_for
from diffusers_helper.units import GB, gb_bytes
from tests.support.reported_jobs import job_of

FIRST, SECOND = "0000:03:00.0", "0000:0b:00.0"


def write_card(root: Path, node: int, minor: int, address: str, uuid: str, *, arch: int = 110000) -> None:
    folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
    folder.mkdir(parents=True)
    folder.joinpath("properties").write_text(f"gfx_target_version {arch}\ndrm_render_minor {minor}\n")
    device = root / f"sys/bus/pci/devices/{address}"
    device.mkdir(parents=True)
    device.joinpath("mem_info_vram_total").write_text(str(24 * 10**9 if uuid else 16 * 10**9))
    if uuid:
        device.joinpath("unique_id").write_text(f"{uuid}\n")
    render = root / f"sys/class/drm/renderD{minor}"
    render.mkdir(parents=True)
    render.joinpath("device").symlink_to(device)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a machine on which the kernel lists the cards in another order than the bus."""
    write_card(tmp_path, 1, 128, SECOND, "c0ffee0000000002")
    write_card(tmp_path, 2, 129, FIRST, "", arch=120001)
    return tmp_path


def test_cards_are_in_the_order_of_the_bus_and_are_chosen_by_uuid(root: Path) -> None:
    first, second = list_cards(root)
    assert first == NamedCard(("0", FIRST), {"ROCR_VISIBLE_DEVICES": "1"})
    assert second.names == ("1", SECOND, "gpu-c0ffee0000000002")
    assert second.variables == {"ROCR_VISIBLE_DEVICES": "GPU-c0ffee0000000002"}
    for name in second.names:
        assert parse_devices(name, [first, second]) == [second.variables]
    assert parse_devices("auto", [first, second]) == [first.variables, second.variables]
    assert parse_devices("auto", []) == [{}]
    assert parse_devices("1, 0=12", [first, second]) == [
        second.variables, {**first.variables, CAP_VARIABLE: "12"},
    ]  # fmt: skip


def test_cards_of_nvidia_are_in_the_order_of_the_bus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "00000000:41:00.0, GPU-B", "00000000:01:00.0, GPU-A", "no device"
    monkeypatch.setattr("app.cards.amd_gpus", lambda root: [])
    monkeypatch.setattr("app.cards.output_of", lambda *_: "\n".join(rows))
    assert list_cards() == [
        NamedCard(("0", "00000000:01:00.0", "gpu-a"), {"CUDA_VISIBLE_DEVICES": "GPU-A"}),
        NamedCard(("1", "00000000:41:00.0", "gpu-b"), {"CUDA_VISIBLE_DEVICES": "GPU-B"}),
    ]


def test_a_process_sees_the_chosen_card_alone(root: Path) -> None:
    found = [detect(variables, root) for variables in parse_devices("0,1", list_cards(root))]
    kinds = [(one.arch, one.total_bytes) for one in found]
    assert kinds == [("gfx1201", 16 * 10**9), ("gfx1100", 24 * 10**9)]
    assert detect(parse_devices("cpu", list_cards(root))[0], root).kind == "cpu"


def test_a_machine_is_described_by_name_and_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, kind, arch, is_apu in (
        ("gfx1100:24", "rocm", "gfx1100", False), ("gfx1151:24", "rocm", "gfx1151", True),
        ("gfx103x:24", "rocm", "gfx1030", False), ("cdna:24", "rocm", "gfx942", False),
        ("gfx90a:24", "rocm", "gfx90a", False), ("cuda:24", "cuda", "", False), ("cpu:24", "cpu", "", False),
    ):  # fmt: skip
        family = text.partition(":")[0]
        assert machine_of_card(text) == Machine(kind, arch, f"{family} with 24 GB", 24 * GB, is_apu=is_apu)
    assert machine_of_card("cpu:9999.9").total_bytes == gb_bytes(9999.9)
    with pytest.raises(InputError, match="card is 'cpu:10000'"):
        machine_of_card("cpu:10000")
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr("app.machine.detect", lambda *_: Machine("cuda", "", "a card", 0))
    monkeypatch.setattr("app.machine.output_of", lambda *words: asked.append(words) or "RTX, a, 32607\nB, 1")
    for visible, chosen in (("GPU-a,GPU-b", ("--id", "GPU-a")), ("", ())):
        _nvidia_card.cache_clear()
        machine = this_machine({"CUDA_VISIBLE_DEVICES": visible})
        assert (machine.name, machine.total_bytes) == ("RTX, a", 32607 * 2**20)
        assert asked.pop()[1:-2] == chosen
    _nvidia_card.cache_clear()


def test_a_program_that_cannot_answer_says_nothing() -> None:
    assert output_of("sh", "-c", "echo ' a b '; cat") == "a b"
    for command in (("sh", "-c", "echo a; exit 3"), ("sleep", "60"), ("no-such-program",)):
        assert output_of(*command, seconds=0.2) == ""


def test_cards_with_one_name_get_numbers_and_sizes_are_told() -> None:
    cards = [VideoCard.from_environment({CAP_VARIABLE: cap}) for cap in ("4", "0.5", "4")]
    other = replace(cards[0], key="gpu-1", label="card 1")
    named = [(card.key, card.label) for card in with_unique_keys([cards[0], other, *cards[1:]])]
    assert named == [
        ("cpu", "processor 1"), ("gpu-1", "card 1"), ("cpu-2", "processor 2"), ("cpu-3", "processor 3")
    ]  # fmt: skip
    assert [card.name for card in cards[:2]] == ["processor (4 GB)", "processor (0.5 GB)"]
    for environ, size in (
        ({}, "24 GB"),
        ({CAP_VARIABLE: "9"}, "9 GB"),
        ({HELPER_VARIABLE: "8.5"}, "24 GB and 8.5 GB"),
    ):
        profile = profile_for(Machine("rocm", "gfx1100", "card", 24 * GB), environ)
        assert replace(other, profile=profile).size == size
    unknown = profile_for(Machine("cuda", "", "card", 0), {})
    assert replace(other, profile=unknown).name == "card 1"


def test_what_fits_a_card_is_planned_once_for_each_request_and_anew_for_another_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, refused = list[Any](), [False]
    card = VideoCard.from_environment({CAP_VARIABLE: "4"})

    def plan(request: Any, info: Any, profile: Any, *, shape: Any, local: Any) -> None:
        asked.append(shape)
        if refused[0]:
            raise DoesNotFit.__new__(DoesNotFit)
        raise LongtakeError("The engine knows.", "")

    monkeypatch.setattr("app.cards.plan_video", plan)
    monkeypatch.setattr("app.cards.size_of", lambda job: (96, 64) if job.id == "sized" else (0, 0))
    monkeypatch.setattr("app.cards._MAX_CACHED_FITS", 3)
    job = job_of(id="sized")
    assert [card.fits(job), card.fits(job), asked] == [True, True, [(64, 96)]]
    refused[0] = True
    edited = replace(job, request=replace(job.request, steps=3))
    assert [card.fits(job), card.fits(edited), card.fits(job_of(id="b"))] == [True, False, False]
    assert asked[1:] == [(64, 96), None]
    card.update(replace(card, away="It is away.", reported_bytes=5, label="card 7"))
    assert [card.fits(job), card.away, card.reported_bytes, card.label] == [True, "It is away.", 5, "card 7"]
    for changed in ({"models": ["demo"]}, {"profile": profile_for(Machine("cpu", "", "CPU", GB), {})}):
        card.update(replace(card, **changed))
        refused[0] = not refused[0]
        assert card.fits(job) is not refused[0]
        assert all(getattr(card, name) == value for name, value in changed.items())
    for number in range(4):
        card.fits(job_of(id=f"{number}"))
    assert len(card._fits) <= 3


def test_what_a_card_of_another_machine_lacks_and_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    card = VideoCard.from_environment({CAP_VARIABLE: "4"})
    far = replace(card, machine="desk", models=["demo"], reported_bytes=5)
    job = job_of()
    with_lora = replace(job, request=replace(job.request, lora="a.safetensors"))
    elsewhere = replace(job, request=replace(job.request, model="/models/mine"))
    assert [far.lacks(job), far.lacks(with_lora), far.lacks(elsewhere)] == [
        "", "does not have LoRAs", "lacks the model mine",
    ]  # fmt: skip
    assert [card.lacks(with_lora), card.lacks(elsewhere), far.fits(with_lora)] == ["", "", False]
    gpus = [SimpleNamespace(address=FIRST, used_bytes=7)]
    monkeypatch.setattr("app.cards.amd_gpus", lambda: gpus)
    assert [far.used_bytes, replace(card, address=FIRST).used_bytes, card.used_bytes] == [5, 7, 0]
    assert replace(far, address=SECOND).used_bytes == 5


def test_the_processor_may_have_several_engines_that_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cards.processors", lambda: 8)
    one, other = parse_devices("cpu=4,cpu=0.5", [])
    assert one["OMP_NUM_THREADS"] == other["OMP_NUM_THREADS"] == "4"
    assert (one[CAP_VARIABLE], other[CAP_VARIABLE]) == ("4", "0.5")


def test_a_card_that_helps_is_seen_behind_the_one_that_samples(root: Path) -> None:
    (both,) = parse_devices("1=20+0=8.5", list_cards(root))
    assert both == {
        "ROCR_VISIBLE_DEVICES": "GPU-c0ffee0000000002,1",
        CAP_VARIABLE: "20",
        HELPER_VARIABLE: "8.5",
    }
    card = VideoCard.from_environment(both, root)
    assert (card.label, card.size) == ("card 1", "20 GB and 8.5 GB")
    budget = card.profile.budget()
    assert budget.helper == Budget(gb_bytes(8.5), gb_bytes(8.5), 0, budget.reserve_bytes)
    (pair,) = parse_devices("cpu=1+cpu", [])
    assert pair["ROCR_VISIBLE_DEVICES"] == "-1"
    assert float(pair[HELPER_VARIABLE]) > 0.5


@pytest.mark.parametrize(
    "text",
    [
        "0+1+cpu", "0+cpu", "cpu+0", "0+0", "0+", "0=12+1=0", "", "2", "0,0", "gpu-", "0,,1", "0=much",
        "0=-1", "cpu=nan", "cpu=inf",
    ],
)  # fmt: skip
def test_a_name_or_cap_that_cannot_be_and_a_card_that_cannot_help_are_refused(text: str, root: Path) -> None:
    with pytest.raises(InputError, match="devices"):
        parse_devices(text, list_cards(root))

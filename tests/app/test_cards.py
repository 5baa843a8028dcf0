"""The cards that --devices names, and several engines under one queue."""

from pathlib import Path

import pytest

from app.cards import NamedCard, VideoCard, list_cards, parse_devices
from diffusers_helper.errors import InputError
from diffusers_helper.planning.budget import Budget
from diffusers_helper.planning.profiles import CAP_VARIABLE, HELPER_VARIABLE, detect
from diffusers_helper.units import gb_bytes

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


def test_a_process_sees_the_chosen_card_alone(root: Path) -> None:
    found = [detect(variables, root) for variables in parse_devices("0,1", list_cards(root))]
    kinds = [(one.arch, one.total_bytes) for one in found]
    assert kinds == [("gfx1201", 16 * 10**9), ("gfx1100", 24 * 10**9)]
    assert detect(parse_devices("cpu", list_cards(root))[0], root).kind == "cpu"


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

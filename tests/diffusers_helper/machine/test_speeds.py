"""Tests of the card's link in the kernel's files, and of measured speeds in their store."""

from pathlib import Path

import pytest

from diffusers_helper.machine.local import Local, Speeds, speeds, store_speeds
from diffusers_helper.machine.sysfs import Link, amd_gpus, nvidia_link
from diffusers_helper.planning.profiles import detect
from tests.support.machines import GB, write, write_card

CHAIN = "sys/devices/pci0000:00"


def write_link(folder: Path, speed: str, lanes: int, most: int = 16) -> None:
    write(folder / "current_link_speed", "2.5 GT/s PCIe\n")  # as of a link that is idle
    write(folder / "max_link_speed", f"{speed}\n")
    write(folder / "current_link_width", f"{lanes}\n")
    write(folder / "max_link_width", f"{most}\n")


def put_in_chain(root: Path, *folders: str) -> Path:
    """Write a Radeon that lies beneath bridges, as the kernel shows it, and return the card's folder."""
    write_card(root, 110000, 24 * GB)
    device = root / "sys/class/drm/renderD128/device"
    place = root.joinpath(CHAIN, *folders)
    place.parent.mkdir(parents=True)
    device.rename(place)
    device.symlink_to(place)
    return place


def test_a_link_carries_what_its_generation_says() -> None:
    found = {Link(3, 4): 3.94, Link(4, 8): 15.75, Link(4, 16): 31.51, Link(5, 16): 63.02, Link(2, 16): 8.0}
    assert {link: round(link.bytes_per_second / 1e9, 2) for link in found} == found
    assert Link(4, 16).name == "PCIe 4.0 x16"


def test_the_link_of_a_radeon_is_the_slowest_above_its_own_switch(tmp_path: Path) -> None:
    card = put_in_chain(tmp_path, "0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
    write_link(card, "32.0 GT/s PCIe", 16)
    write_link(card.parent, "32.0 GT/s PCIe", 16)
    assert detect({}, tmp_path).link == Link(5, 16)
    write_link(card.parents[1], "32.0 GT/s PCIe", 8)  # in a slot with half of the lanes
    write_link(card.parents[2], "16.0 GT/s PCIe", 8)  # of an older board
    assert amd_gpus(tmp_path)[0].link == Link(4, 8)


@pytest.mark.parametrize("speed", ["Unknown", "", "7.0 GT/s PCIe", "16.0"])
def test_a_link_that_the_kernel_does_not_tell_is_unknown(speed: str, tmp_path: Path) -> None:
    card = put_in_chain(tmp_path, "0000:03:00.0")
    assert amd_gpus(tmp_path)[0].link is None
    write_link(card, speed, 16)
    assert amd_gpus(tmp_path)[0].link is None


def test_the_link_of_an_nvidia_card_is_found_beside_other_devices(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    assert nvidia_link(tmp_path) is None
    for name, vendor, kind, speed in (
        ("0000:01:00.0", "0x8086", "0x030000", "8.0 GT/s PCIe"),
        ("0000:02:00.0", "0x10de", "0x040300", "8.0 GT/s PCIe"),
        ("0000:03:00.0", "0x10de", "0x030200", "16.0 GT/s PCIe"),
    ):
        write(devices / name / "vendor", f"{vendor}\n")
        write(devices / name / "class", f"{kind}\n")
        write_link(devices / name, speed, 16)
    assert nvidia_link(tmp_path) == Link(4, 16)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert detect({}, tmp_path).link == Link(4, 16)


def test_speeds_are_kept_by_card_and_added_to(tmp_path: Path) -> None:
    facts = Local(folder=tmp_path).speeds
    assert speeds(facts, "gfx1100") == Speeds()
    store_speeds(facts, "gfx1100", Speeds(27.3e9, 12.1e9))
    store_speeds(facts, "gfx1100", Speeds(disk_read_bytes_per_second=3.5e9))
    store_speeds(facts, "gfx1151", Speeds(60e9))
    assert speeds(facts, "gfx1100") == Speeds(27_300_000_000, 12_100_000_000, 3_500_000_000)
    assert speeds(facts, "gfx1151") == Speeds(60e9)
    assert facts.file == tmp_path / "speeds.json"

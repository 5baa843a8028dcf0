"""Tests of the free memory of a GPU, of which only the driver's answers are stood in for."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffusers_helper.machine.sysfs import Gpu
from diffusers_helper.memory import device as module
from diffusers_helper.memory.device import CudaDevice
from diffusers_helper.units import GB

# HIP says that 21 of 24 GB are free. Torch holds 2 GB and uses 1 of them, and the desktop has 3 GB.
CARD = Gpu("gfx1100", vram_total=24 * GB, vram_used=5 * GB, address="0000:0c:00.0")
PLACE = {"pci_domain_id": 0, "pci_bus_id": 12, "pci_device_id": 0}


def free_bytes(patch: pytest.MonkeyPatch, cards: list[Gpu], **facts: Any) -> float:
    properties = SimpleNamespace(**{"total_memory": 24 * GB, "is_integrated": 0, **facts})
    for name, answer in {
        "current_device": 0, "mem_get_info": (21 * GB, 24 * GB), "memory_allocated": GB,
        "memory_reserved": 2 * GB, "get_device_properties": properties,
    }.items():  # fmt: skip
        patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    patch.setattr(module, "amd_gpus", lambda: cards)
    return CudaDevice(torch.device("cuda", 0)).free_bytes() / GB


def test_what_the_desktop_takes_of_a_radeon_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(CARD, vram_used=20 * GB, address="0000:0c:00.1")
    assert free_bytes(monkeypatch, [other, CARD], **PLACE) == 20
    assert free_bytes(monkeypatch, [replace(CARD, vram_used=2 * GB)], **PLACE) == 22


@pytest.mark.parametrize(
    ("cards", "facts"),
    [
        ([], PLACE),  # of another maker, or in WSL
        ([CARD], {}),  # with torch 2.7, which does not tell the address
        ([CARD], PLACE | {"pci_bus_id": 3}),
        ([CARD], PLACE | {"is_integrated": 1}),  # whose memory is the main memory
        ([replace(CARD, is_apu=True)], PLACE),
    ],
)  # fmt: skip
def test_elsewhere_the_driver_is_believed(
    cards: list[Gpu], facts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert free_bytes(monkeypatch, cards, **facts) == 22

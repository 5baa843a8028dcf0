"""Tests of a torch that was built without kernels for the card: nothing is computed, and it is told."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app import probe
from diffusers_helper.errors import LongtakeError
from diffusers_helper.job.plans import machine_of


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that lets torch see an AMD card of a kind, with kernels for two others."""

    def see(arch: str) -> None:
        facts = SimpleNamespace(name="Radeon", gcnArchName=f"{arch}:xnack-")
        answers: dict[str, Any] = {
            "is_available": True, "device_count": 1, "get_device_properties": facts,
            "mem_get_info": (2**33, 2**34), "get_arch_list": ["gfx1030", "gfx1100"],
        }  # fmt: skip
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch.version, "hip", "7.2")
        monkeypatch.setattr(probe, "_kernel", lambda device: "flash")

    return see


@pytest.mark.parametrize(("arch", "kernel"), [("gfx1100", "flash"), ("gfx1036", "")])
def test_the_probe_tells_what_torch_was_built_for(
    arch: str, kernel: str, card: Callable[[str], None]
) -> None:
    card(arch)
    facts = next(probe._facts())
    assert (facts["arch"], facts["arch_list"], facts["kernel"]) == (arch, ["gfx1030", "gfx1100"], kernel)


def test_an_engine_refuses_a_card_without_kernels_before_anything_is_loaded(
    card: Callable[[str], None],
) -> None:
    device: Any = SimpleNamespace(has_gpu=True, torch_device=torch.device("cuda"), total_bytes=2**34)
    card("gfx1103")
    with pytest.raises(LongtakeError, match="This card is gfx1103, and the installed PyTorch") as refusal:
        machine_of(device, {})
    assert refusal.value.code == "installation"
    card("gfx1030")
    assert machine_of(device, {}).arch == "gfx1030"

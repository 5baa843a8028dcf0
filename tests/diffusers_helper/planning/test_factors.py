"""Tests of the table of factors by card, and of the corrections that measured rows make."""

from dataclasses import replace
from pathlib import Path

import pytest

from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import networks
from diffusers_helper.planning.backend import FACTORS, Backend, missing_kernels, reserve_of, wider_types
from diffusers_helper.planning.cards.reported import RATIOS
from diffusers_helper.planning.estimates import calibration_of, demand_of
from diffusers_helper.units import GB

FULL = networks(find_model("framepack-i2v"), on_cpu=False)


@pytest.mark.parametrize(
    ("family", "dtype", "network", "asked", "expected"),
    [
        ("gfx1100", "fp16", "vae", "", ("bf16", "fp32")),
        ("cuda", "bf16", "transformer", "", ("fp32",)),
        ("cpu", "fp16", "vae", "", ("fp32",)),
        ("gfx103x", "fp16", "text_encoder", "", ("fp32",)),  # which emulates bf16
        ("gfx103x", "fp32", "transformer", "", ("fp32",)),
        ("gfx1151", "fp16", "transformer", "", ("bf16",)),
        ("gfx1200", "bf16", "transformer", "", ()),
        ("gfx1200", "bf16", "transformer", "0", ()),
        ("gfx1200", "bf16", "transformer", "1", ("fp32",)),
        ("gfx1200", "bf16", "text_encoder", "", ("fp32",)),
    ],
)
def test_what_is_not_finite_is_repeated_in_wider_types_that_the_card_computes_well(
    family: str, dtype: str, network: str, asked: str, expected: tuple[str, ...]
) -> None:
    assert wider_types(family, dtype, network, {"LONGTAKE_FP32": asked}) == expected


WHEEL = ["gfx900", "gfx90a:xnack-", "gfx1030", "gfx1100", "gfx1201"]


@pytest.mark.parametrize(
    ("arch", "built", "remedy"),
    [
        ("gfx1031", WHEEL, "Set HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ("gfx1103", WHEEL, "Install AMD's build of PyTorch for this card with webui.sh."),
        ("gfx1151", WHEEL, "Install AMD's build of PyTorch for this card with webui.sh."),
        ("gfx1030", WHEEL, ""),
        ("gfx90a", WHEEL, ""),
        ("", ["sm_80", "sm_90"], ""),
        ("gfx1103", [], ""),
        ("gfx1103", [*WHEEL, "gfx11-generic"], ""),  # which may be enough
    ],
)
def test_a_torch_without_kernels_for_the_card_is_told(arch: str, built: list[str], remedy: str) -> None:
    wrong = missing_kernels(arch, built)
    if not remedy:
        assert wrong is None
        return
    assert f"This card is {arch}, and " in wrong[0]
    assert "gfx1030, gfx1100, gfx1201, gfx900, gfx90a only" in wrong[0]
    assert wrong[1].startswith(remedy)


def test_a_plan_takes_the_ratios_of_its_card_unless_this_machine_knows_better(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend, measured = replace(Backend(), **FACTORS["rocm"]), Local(folder=tmp_path).calibration

    def working(stage: str, card: str = "gfx1100") -> int:
        calibration = calibration_of(measured, card)
        demand = demand_of(FULL, 640, 608, 256, backend=backend, calibration=calibration)
        return next(need.working_bytes for need in demand.stages if need.name == stage)

    before = working("sample"), working("decode")
    assert (reserve_of("gfx1100", "gfx1100").value, reserve_of("cpu", "cpu").value) == (GB, 0)
    monkeypatch.setitem(RATIOS, "gfx1100", {"sample": 1.5, "reserve": 1.5})
    assert working("sample") == pytest.approx(1.5 * before[0], rel=0.001)
    assert working("decode") == before[1]
    assert working("sample", card="gfx1101") == before[0]
    assert reserve_of("gfx1100", "gfx1100").value == 1.5 * GB
    assert reserve_of("gfx1100", "gfx1100").source == "measured on such a card"
    measured.write("gfx1100", {"sample": 1.0})
    assert working("sample") == before[0]

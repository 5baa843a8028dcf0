"""Tests of the command `plan`: its table, its JSON and its refusals, for the demo and for an absent model."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.commands import plan as plan_command
from app.machine import this_local
from diffusers_helper.machine.local import store_kernel
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.notes import FORGET
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.smaller_plans import level_key
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB, gb_bytes
from tests.app.conftest import Longtake
from tests.support.jobs import write_picture

STAGES = ["text", "text_2", "vae_encode", "vision", "sample", "decode"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("VRAM_CAP_GB", "PRESERVED_GB", "VAE_TILE", "VAE_DTYPE", "ATTENTION", "PROFILE"):
        monkeypatch.delenv(f"LONGTAKE_{name}", raising=False)
    monkeypatch.setattr(plan_command, "this_machine", lambda _: Machine("cpu", "", "CPU", 32 * GB))


def as_json(longtake: Longtake, *arguments: str) -> dict[str, Any]:
    return json.loads(longtake("plan", "--json", *arguments))


PLANS = """
--model framepack-i2v --card gfx1100:24 --steps 10 --cfg 2 --vae-tile 128 --preserved-gb 12.5
--model framepack-i2v --card gfx1100:16 --preserved-gb 0 --recommended
--model framepack-f1 --card gfx1100:24 --seconds 1 --vae-chunk 2 --image picture.png
--model helios-distilled --card gfx103x:24 --seconds 4.1 --steps 2 --shape 9:16
--model wan-5b --card gfx906:16 --seconds 3
--card cpu:32 --shape 1:1 --steps 12 --mode forward --end-image picture.png
""".strip().splitlines()


@pytest.mark.parametrize("arguments", PLANS)
def test_a_plan_is_told_in_words_and_as_json(
    arguments: str,
    longtake: Longtake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("diffusers_helper.machine.sysfs.computes_bf16", lambda: True)
    write_picture(tmp_path / "picture.png")
    plan = as_json(longtake, *arguments.split())
    words = longtake("plan", *arguments.split()).splitlines()
    left_out = {"stages", "notes", "first_job_stages"}
    facts = _rounded({name: value for name, value in plan.items() if name not in left_out})
    stages = [f"{_rounded(stage)}" for stage in (*plan["stages"], plan["first_job_stages"])]
    assert "\n".join([*words, f"{facts}", *stages]) == snapshot


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return f"{len(value)}: {value[-1:]}"
    return float(f"{value:.5g}") if isinstance(value, float) else value


def test_what_does_not_fit_names_the_smallest_cap_which_then_works(longtake: Longtake) -> None:
    common = ["plan", "--model", "framepack-i2v", "--card", "gfx1100:24"]
    reported, sentence = longtake(*common, "--json", "--vram-cap-gb", "3", code=2).splitlines()
    refusal = json.loads(reported)
    assert (refusal["fits"], refusal["stage"]) == (False, "sample")
    named = sentence.partition("--vram-cap-gb to ")[2].split(" ")[0]
    first = f"Set --vram-cap-gb to {named} or more."
    assert refusal["remedies"] == [first, "No smaller --resolution fits."]
    assert gb_bytes(float(named)) >= refusal["smallest_cap_bytes"] > gb_bytes(float(named) - 0.1)
    longtake(*common, "--vram-cap-gb", named)
    longtake(*common, "--vram-cap-gb", float(named) - 0.1, code=2)


def test_what_jobs_and_doctor_found_is_in_the_plan(
    longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Machine("rocm", "gfx1100", "card", 24 * GB)
    monkeypatch.setattr(plan_command, "this_machine", lambda _: card)
    monkeypatch.setattr(plan_command, "host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))
    common = ["--model", "framepack-i2v", "--preserved-gb", "0"]
    before, local = as_json(longtake, *common), this_local({})
    info, profile = find_model("framepack-i2v"), profile_for(card, {})
    request = GenerationRequest(image="none", model=info.name)
    key = level_key(request, info, profile, before["height"], before["width"])
    local.smaller_plans.write(key, {"weights": 1})
    after = as_json(longtake, *common)
    assert after["stages"][4]["resident_bytes"] < before["stages"][4]["resident_bytes"]
    assert [
        note for note in after["notes"] if "Memory ran out on this card before" in note and FORGET in note
    ]
    # A card named on the command line has learned nothing on this machine.
    assert "ran out" not in str(as_json(longtake, *common, "--card", "gfx1100:24")["notes"])
    local.smaller_plans.forget()
    assert as_json(longtake, *common) == before
    store_kernel(local.kernels, "gfx1100", metadata.version("torch"), "_scaled_dot_product_attention_math")
    sliced = as_json(longtake, *common)
    assert (before["attention"], sliced["attention"]) == ("native", "sliced")
    longtake("plan", *common, "--attention", "native", code=2)


def test_a_small_cap_takes_smaller_tiles_and_says_so(longtake: Longtake) -> None:
    plan = as_json(longtake, "--resolution", "256", "--vram-cap-gb", "0.13")
    assert plan["vae_tile_px"] < 256
    assert plan["peak_bytes"] <= plan["cap_bytes"] == gb_bytes(0.13)
    assert any("instead of 256" in note for note in plan["notes"])
    assert "leave out --vae-tile" in longtake(
        "plan", "--resolution", "256", "--vram-cap-gb", "0.13", "--vae-tile", "256", code=2
    )


def test_a_plan_does_not_say_that_its_cap_is_too_small(longtake: Longtake) -> None:
    arguments = ("--model", "framepack-i2v", "--card", "gfx1100:24", "--vram-cap-gb")
    smallest = as_json(longtake, *arguments, "6")["smallest_cap_bytes"] / GB
    text = longtake("plan", *arguments, f"{smallest + 1e-6:.6f}")
    cap, needed = (float(re.search(f"{words} ([0-9.]+)", text)[1]) for words in ("Cap", "that works is"))
    assert needed <= cap
    text = longtake("plan", *arguments, f"{smallest - 1e-3:.6f}", code=2)
    cap, needed = (float(re.search(f"{words} ([0-9.]+)", text)[1]) for words in ("fit into", "gb to"))
    assert cap < needed

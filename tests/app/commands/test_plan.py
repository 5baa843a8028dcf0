"""Tests of the command `plan`: its table, its JSON and its refusals, for the demo and for an absent model."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from app.commands import plan as plan_command
from app.machine import machine_of_card, this_local
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


def test_the_demo_needs_no_setting(longtake: Longtake) -> None:
    plan = as_json(longtake)
    assert plan["fits"]
    assert [stage["stage"] for stage in plan["stages"]] == STAGES
    assert (plan["sections"], plan["frames"], plan["vae_tile_px"]) == (4, 145, 256)
    assert plan["keep_all_resident"]
    assert plan["peak_bytes"] < 0.2 * GB
    assert plan["cap_bytes"] == 28 * GB


def test_the_steps_of_the_model_count_until_others_are_given(longtake: Longtake) -> None:
    def passes(*arguments: str) -> int:
        return as_json(longtake, *arguments)["stages"][STAGES.index("sample")]["passes"]

    assert passes() == find_model("demo").steps == 4
    assert passes("--steps", "12") == 12


def test_the_memory_documents_card_in_words(longtake: Longtake) -> None:
    text = longtake("plan", "--model", "framepack-i2v", "--card", "gfx1100:24", "--seconds", "10")
    assert "8 sections, 289 frames, on gfx1100 with 24 GB (profile gfx1100)" in text
    assert "Cap 20 of 24 GB, preserved 18 GB, reserve 1 GB" in text
    row = next(line.split() for line in text.splitlines() if line.startswith("sample"))
    assert row[:6] == ["sample", "transformer", "8", "1.7", "22.3", "per"]
    assert "Denoising: 2 of 60 blocks stay on the device: of 20 GB, 18 GB are preserved." in text
    streamed = "22.3 GB are streamed per step: about 1.9 s, limited by main memory (assumed), while the card"
    assert f"{streamed} computes." in text.splitlines()
    assert "A step takes about 7.8 s, a section about 3 min 30 s. The first second of video comes" in text
    assert "Text encoder: 2 of 32 blocks stay on the device: of 20 GB" in text
    assert "1 section, 37 frames" in longtake("plan", "--card", "gfx1100:24", "--seconds", "1")


def test_the_recommended_set_up_is_planned_and_given_as_arguments(longtake: Longtake) -> None:
    common = ["plan", "--recommended", "--model", "framepack-i2v", "--preserved-gb", "0"]
    lines = longtake(*common, "--card", "gfx1100:24").splitlines()
    assert lines[0].startswith("Recommended for this card: FramePack I2V at 640 pixels, weights as they are")
    assert lines[1] == "As arguments: --model framepack-i2v --weight-dtype default"
    assert "preserved 18 GB" in lines[4]
    found = json.loads(longtake(*common, "--card", "gfx103x:16", "--json"))
    assert found["recommended"] == {
        "model": "framepack-i2v", "weight_dtype": "default", "preserved_gb": None, "resolution": None,
    }  # fmt: skip
    assert "at 640 pixels" in found["recommended_words"]
    assert found["bus"] == {
        "bytes_per_second": pytest.approx(28.36e9, rel=1e-3), "name": "PCIe 4.0 x16", "source": "assumed",
    }  # fmt: skip
    assert found["copy_seconds_per_step"] == pytest.approx(
        found["streamed_bytes_per_step"] / found["copies"]["bytes_per_second"]
    )
    assert "No smaller --resolution fits." in longtake(
        "plan", "--recommended", "--model", "framepack-i2v", "--card", "gfx1100:2", code=2
    )


def test_costs_count_every_step_and_section(longtake: Longtake) -> None:
    common = ["--model", "framepack-i2v", "--card", "gfx1100:24", "--steps", "10"]
    for cfg, passes in (("1", 10), ("2", 20)):
        stage = as_json(longtake, *common, "--cfg", cfg)["stages"][4]
        assert (stage["runs"], stage["passes"]) == (4, passes)
        assert stage["copied_bytes"] == 4 * (stage["resident_bytes"] + passes * stage["streamed_bytes"])


def test_costs_count_the_longer_first_section_of_a_pyramid(longtake: Longtake) -> None:
    common = ["--model", "helios-distilled", "--card", "gfx1100:24", "--seconds", "4.1"]
    for steps, passes, more in (("6", 6, 12), ("2", 3, 4)):
        found = as_json(longtake, *common, "--steps", steps)
        stage = next(stage for stage in found["stages"] if stage["stage"] == "sample")
        assert (stage["runs"], stage["passes"], stage["all_passes"]) == (3, passes, more + 2 * passes)
        streamed = stage["all_passes"] * stage["streamed_bytes"]
        assert stage["copied_bytes"] == 3 * stage["resident_bytes"] + streamed


def test_only_windows_of_time_change_pixels(longtake: Longtake) -> None:
    def notes(model: str) -> str:
        return str(as_json(longtake, "--model", model, "--card", "gfx1100:24", "--vae-chunk", "2")["notes"])

    assert "The VAE chunk is 2 instead of the VAE's own 3" in notes("framepack-f1")
    assert "chunk" not in notes("helios-base")  # Wan's VAE gives the same bits by any number of frames


def test_settings_change_the_plan(longtake: Longtake, tmp_path: Path) -> None:
    common = ["--model", "framepack-i2v", "--card", "gfx1100:24"]
    resident = [
        as_json(longtake, *common, "--preserved-gb", value)["stages"][4]["resident_bytes"]
        for value in ("18", "12.5", "6", "0")
    ]
    assert resident == sorted(set(resident))
    tile = as_json(longtake, *common, "--vae-tile", "128")
    assert tile["vae_tile_px"] == 128
    assert tile["stages"][5]["working_bytes"] < as_json(longtake, *common)["stages"][5]["working_bytes"]
    picture = as_json(longtake, *common, "--image", str(write_picture(tmp_path / "picture.png")))
    assert (picture["height"], picture["width"]) == (512, 768)
    small = as_json(longtake, *common, "--resolution", "320")
    assert small["peak_bytes"] < picture["peak_bytes"]


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


def head(longtake: Longtake, *arguments: str) -> tuple[str, str]:
    lines = longtake("plan", *arguments).splitlines()
    return lines[0], lines[-1]


def test_without_a_picture_the_shape_counts_or_the_plan_says_which_one_it_took(
    longtake: Longtake,
) -> None:
    words = (
        "Without --image and --shape, the plan is for 176x96 pixels, the shape that needs the most memory."
    )
    assert head(longtake) == (
        "Longtake demo model: 176x96, 4 sections, 145 frames, on CPU (profile cpu).", words
    )  # fmt: skip
    first, last = head(longtake, "--shape", "1:1", "--one-frame", "9")
    assert first == "Longtake demo model: 128x128, 1 section, 1 frame, on CPU (profile cpu)."
    assert "--shape" not in last
    assert (as_json(longtake, "--shape", "9:16")["width"], as_json(longtake)["width"]) == (96, 176)


def test_a_plan_does_not_say_that_its_cap_is_too_small(longtake: Longtake) -> None:
    arguments = ("--model", "framepack-i2v", "--card", "gfx1100:24", "--vram-cap-gb")
    smallest = as_json(longtake, *arguments, "6")["smallest_cap_bytes"] / GB
    text = longtake("plan", *arguments, f"{smallest + 1e-6:.6f}")
    cap, needed = (float(re.search(f"{words} ([0-9.]+)", text)[1]) for words in ("Cap", "that works is"))
    assert needed <= cap
    text = longtake("plan", *arguments, f"{smallest - 1e-3:.6f}", code=2)
    cap, needed = (float(re.search(f"{words} ([0-9.]+)", text)[1]) for words in ("fit into", "gb to"))
    assert cap < needed


@pytest.mark.parametrize(("card", "family"), [("gfx1030:16", "gfx103x"), ("gfx906:16", "radeon")])
def test_a_card_may_have_its_own_name(card: str, family: str, longtake: Longtake) -> None:
    assert machine_of_card("gfx103x:16") == Machine("rocm", "gfx1030", "gfx103x with 16 GB", 16 * GB)
    assert machine_of_card("cuda:80").kind == "cuda"
    plan = as_json(longtake, "--card", card)
    name, _, size = card.partition(":")
    assert (plan["device"], plan["profile"]) == (f"{name} with {size} GB", family)

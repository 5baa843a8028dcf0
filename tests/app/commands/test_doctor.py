"""Tests of the command `doctor`: findings and remedies on machines laid out as files, and MIOpen's caches."""

import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from app.commands import doctor
from app.commands.doctor import Finding, examine
from app.machine import this_local, this_machine
from app.miopen import clear_miopen_cache
from diffusers_helper.machine.local import Local, shape_key, stored_kernel
from diffusers_helper.machine.routes import KernelCase
from diffusers_helper.planning.notes import FORGET
from tests.app.conftest import Longtake
from tests.support.machines import GB, write, write_card, write_memory

CPU = {
    "torch": "2.13.0", "hip": "", "cuda": "", "devices": 0, "kernel": "_scaled_dot_product_flash_attention",
}  # fmt: skip
ROCM = {
    **CPU, "hip": "7.2", "devices": 1, "arch": "gfx1100", "name": "Radeon", "dnn": 3005000,
    "total_bytes": 24 * GB,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_memory(tmp_path, 64 * GB, 50 * GB, swap=8 * GB, swap_free=8 * GB)
    return tmp_path


def look(
    root: Path,
    facts: dict[str, Any],
    environ: dict[str, str] | None = None,
    model: str = "demo",
    local: Local | None = None,
) -> list[Finding]:
    def probe(given: Mapping[str, str]) -> dict[str, Any]:
        assert set(environ or {}) <= set(given)
        return facts

    return examine(model, root, environ or {}, root, probe, local or Local())


def problems(report: list[Finding]) -> list[str]:
    return [f"{finding.topic}: {finding.text}" for finding in report if finding.level == "problem"]


def test_a_machine_without_a_gpu_is_well(root: Path) -> None:
    report = look(root, CPU)
    assert not problems(report)
    texts = [finding.text for finding in report]
    assert "no GPU is used; the CPU is" in texts
    assert "50 of 64 GB available" in texts
    assert "SDPA runs _scaled_dot_product_flash_attention (flash); plans assume it" in texts
    assert any("OMP_WAIT_POLICY=PASSIVE (Longtake's" in text for text in texts)
    assert any("peaks at" in text for text in texts)


def test_a_radeon_is_described_with_whose_values_are_in_force(root: Path) -> None:
    write_card(root, 110000, 24 * GB, used=GB, gtt=32 * GB, name="RX 7900 XTX")
    write(root / "opt/rocm/.info/version", "7.2.0")
    link = root / "sys/class/drm/renderD128/device"
    write(link / "max_link_speed", "8.0 GT/s PCIe")
    write(link / "current_link_width", "16")
    report = look(root, ROCM, {"MIOPEN_FIND_MODE": "NORMAL"}, "framepack-i2v")
    assert [problem.partition(":")[0] for problem in problems(report)] == ["weights"]
    text = "\n".join(f"{finding.topic} {finding.text}" for finding in report)
    for part in (
        "RX 7900 XTX, gfx1100; VRAM 1 of 24 GB used", "cap 20 GB",
        "machine torch 2.13.0 for ROCm 7.2; RX 7900 XTX (gfx1100); 24 GB of VRAM; cap 20 GB: 3.5 GB",
        "preserved 18 GB", "2.13.0 for ROCm 7.2", "MIOpen 3005000", "MIOPEN_FIND_MODE=NORMAL (yours",
        "PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8 (Longtake's",
        "7.2.0 in /opt/rocm",
        "job 22.3 GB are streamed per step: about 1.9 s, limited by main memory (assumed), while",
        "set-up Recommended for this card: FramePack I2V at 640 pixels, weights as they are stored, 18 GB",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("version", "backends", "expected"),
    [
        ("", [], []),
        ("0.2.40", ["hip", "eager"], ["comfy-kitchen 0.2.40 has kernels for hip, eager"]),
        ("0.2.40", [], ["comfy-kitchen 0.2.40: its import fails, or ends the process"]),
    ],
)
def test_the_optional_kernels_are_told(
    version: str, backends: list[str], expected: list[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda name: version)
    monkeypatch.setattr(doctor, "kitchen_problem", lambda: "")
    report = look(root, {**CPU, "kitchen": backends} if backends else CPU)
    texts = [finding.text.partition(";")[0] for finding in report if finding.topic == "kernels"]
    assert texts == expected


@pytest.mark.parametrize(
    ("facts", "problem", "remedy"),
    [
        ({}, "torch: does not start", "webui.sh"),
        ({**ROCM, "devices": 0}, "torch: does not see", "groups render and video"),
        ({**CPU, "cuda": "13"}, "torch: does not see", "build for this card"),
    ],
    ids=("crash", "rights", "build"),
)
def test_a_torch_that_cannot_use_the_card_is_a_problem(
    root: Path, facts: dict[str, Any], problem: str, remedy: str
) -> None:
    write_card(root, 110000, 24 * GB)
    report = look(root, facts)
    assert problems(report)
    (finding,) = [finding for finding in report if finding.level == "problem"]
    assert f"{finding.topic}: {finding.text}".startswith(problem)
    assert remedy in finding.remedy


def test_the_math_kernel_is_replaced_by_slices(root: Path) -> None:
    write_card(root, 110000, 24 * GB)
    facts = {**ROCM, "kernel": "_scaled_dot_product_attention_math"}
    assert not problems(look(root, facts))
    report = look(root, facts, model="framepack-i2v")
    assert [text.split()[:2] for text in problems(report)] == [["weights:", "Model"]]
    assert any("slices are used instead" in finding.text for finding in report)
    assert any("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL" in finding.remedy for finding in report)


def test_the_kernel_that_ran_is_kept_for_plans(root: Path, tmp_path: Path) -> None:
    write_card(root, 100300, 24 * GB)
    local = Local(folder=tmp_path / "cache")
    report = look(root, {**ROCM, "arch": "gfx1030", "devices": 0}, local=local)
    assert any(finding.topic == "torch" and finding.level == "problem" for finding in report)
    assert not local.kernels.file or not local.kernels.file.exists()  # the CPU's attention kernel ran
    facts = {**ROCM, "torch": metadata.version("torch"), "arch": "gfx1030"}
    # The profile assumes the math kernel, with which nothing would fit.
    assert [
        problem.partition(":")[0]
        for problem in problems(look(root, facts, model="framepack-i2v", local=local))
    ] == ["weights"]
    assert stored_kernel(local.kernels, "gfx1030") == "_scaled_dot_product_flash_attention"
    look(root, {**facts, "kernel": "_scaled_dot_product_attention_math"}, local=local)
    assert stored_kernel(local.kernels, "gfx1030") == "_scaled_dot_product_attention_math"


def test_a_way_that_is_refused_for_its_deviation_is_named(root: Path, tmp_path: Path) -> None:
    write_card(root, 120001, 16 * GB)
    local, key = Local(folder=tmp_path / "cache"), shape_key(24, 18485, 128, "bfloat16")
    case = KernelCase("attention", "gfx1201", key)
    sage = {"milliseconds": 500.0, "error": 0.0142, "bytes": 0}
    for candidate, result in {"sage": sage, "kitchen": {"failed": "no kernel"}}.items():
        with local.routes.trying(case, candidate) as results:
            results.append(result)
    facts = {**ROCM, "torch": metadata.version("torch"), "arch": "gfx1201"}
    (found,) = (one for one in look(root, facts, local=local) if "left out" in one.text)
    assert (
        "SageAttention is left out, as its results differ by 1.4% from fp32 math; at most 1.0%" in found.text
    )
    (choice,) = (one.text for one in look(root, facts, local=local) if "is taken" in one.text)
    assert choice.endswith("sliced is taken; sage 500 ms, off by 1.4%; kitchen failed (no kernel)")
    assert (found.level, found.remedy) == ("ok", "Set LONGTAKE_ATTENTION_DEVIATION=2 to accept it.")
    wide = look(root, facts, {"LONGTAKE_ATTENTION_DEVIATION": "2"}, local=local)
    assert not [one for one in wide if "left out" in one.text]


def test_a_torch_without_kernels_for_the_card_is_a_problem(root: Path) -> None:
    write_card(root, 100301, 12 * GB)
    facts = {**ROCM, "arch": "gfx1031", "arch_list": ["gfx1030", "gfx1100"], "kernel": ""}
    (found,) = (one for one in look(root, facts) if one.level == "problem")
    assert (
        found.text == "This card is gfx1031, and the installed PyTorch has kernels for gfx1030, gfx1100 only."
    )
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in found.remedy
    assert not problems(look(root, {**facts, "arch_list": ["gfx1030", "gfx1031"]}))


def test_smaller_plans_are_forgotten_on_demand(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    learned = this_local({}).smaller_plans
    learned.write("card, model, size", {"weights": 1, "tile": 0})
    assert "Forgot 1 smaller plan" in longtake(*FORGET.split()[1:])
    assert learned.read("card, model, size") == {}
    assert "Forgot 0 smaller plans" in longtake(*FORGET.split()[1:])


def test_what_is_odd_but_works_is_a_note_with_a_remedy(root: Path) -> None:
    write_card(root, 110000, 24 * GB, used=10 * GB)
    write_memory(root, 64 * GB, GB, swap=8 * GB, swap_free=GB)
    environ = {
        "MIOPEN_FIND_TIME_LIMIT": "30",
        "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
    }
    report = look(root, {**ROCM, "arch": "gfx1100"}, environ)
    notes = {finding.text: finding.remedy for finding in report if finding.level == "note"}
    for part in (
        "other programs hold 10 GB", "MIOPEN_FIND_TIME_LIMIT", "expandable segments", "GB used",
        "calls the card gfx1100, but the kernel driver calls it gfx1030",
    ):  # fmt: skip
        assert any(part in text and remedy for text, remedy in notes.items()), part


def test_hidden_cards_and_a_processors_graphics_are_told(root: Path) -> None:
    write_card(root, 110501, GB, gtt=GB, cores=16, number=1)
    write_card(root, 110000, 24 * GB, number=2)
    texts = [finding.text for finding in look(root, {**ROCM, "arch": "gfx1100"})]
    assert "AMD card, gfx1151; VRAM 0 of 1 GB used; left out, beside a card of its own" in texts
    assert (
        "ROCR_VISIBLE_DEVICES=1 (Longtake's; hides the processor's graphics, which may be the first device)"
        in texts
    )
    hidden = look(root, CPU, {"HIP_VISIBLE_DEVICES": ""})
    assert any("hides all AMD cards" in finding.text for finding in hidden)


def test_a_model_that_is_not_there_is_a_problem(root: Path) -> None:
    report = look(root, CPU, model="nope")
    (problem,) = problems(report)
    assert problem.startswith("job: --model is 'nope'; expected one of demo")
    assert problems(report)


def test_a_model_whose_weights_are_missing_fails(
    root: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ask_torch", lambda environ: CPU)
    said = longtake("doctor", "--out", root, "--model", "framepack-f1", code=1)
    assert "PROBLEM weights     Model framepack-f1 is not on this machine: 39.4 GB to download" in said
    assert f"GB free in {root / 'hub'}." in said
    assert "generate --yes" in said
    assert said.endswith("A job would fail.\n")


def test_the_command_prints_words_or_json_and_exits_with_the_verdict(
    root: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setattr(doctor, "ask_torch", lambda environ: CPU)
    assert longtake("doctor", "--out", root).endswith("A job would work.\n")
    monkeypatch.setattr(doctor, "ask_torch", lambda environ: {})
    report = json.loads(longtake("doctor", "--out", root, "--json", code=1))
    assert not report["ok"]
    assert {"level", "topic", "text", "remedy"} == set(report["findings"][0])


@pytest.mark.slow
def test_torch_tells_its_version_and_the_kernel_it_runs() -> None:
    facts = doctor.ask_torch({"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"})
    assert facts["torch"].startswith("2.")
    assert "attention" in facts["kernel"]


def test_only_miopens_own_folders_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    write(home / ".config/miopen/gfx1100.ukdb", "x" * 2_097_152)
    write(home / ".config/other/settings", "keep")
    write(home / ".cache/torch/kernel", "keep")
    write(elsewhere / "kernels", "keep")
    (home / ".cache/miopen").symlink_to(elsewhere)
    assert clear_miopen_cache(home, {"MIOPEN_USER_DB_PATH": str(elsewhere)}) == 0
    said = capsys.readouterr().out
    assert f"Removed {home / '.config/miopen'}: 1 file, 0.002 GB." in said
    assert "is a link to" in said
    assert f"MIOPEN_USER_DB_PATH names {elsewhere}, which was left alone" in said
    assert not (home / ".config/miopen").exists()
    kept = [home / ".config/other/settings", home / ".cache/torch/kernel", elsewhere / "kernels"]
    assert all(file.read_text() == "keep" for file in kept)
    clear_miopen_cache(home, {})
    assert "no MIOpen cache to remove" in capsys.readouterr().out


def test_doctor_and_plan_say_one_peak(
    root: Path, tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_card(root, 110000, 8 * GB)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("app.commands.plan.this_machine", lambda environ: this_machine(environ, root))
    local = this_local({})
    local.calibration.write("gfx1100", {"decode": 1.5, "sample": 1.25})
    report = look(root, ROCM, model="framepack-i2v", local=local)
    reported = re.findall(r"Predicted peak ([0-9.]+) GB", longtake("plan", "--model", "framepack-i2v"))
    said = [finding.text for finding in report if finding.topic == "job"]
    assert f"peaks at {reported[0]} of " in said[0]
    assert any(text.startswith("The default cap of 4.5 GB is too small") for text in said)
    local.calibration.forget()
    assert f"Predicted peak {reported[0]} GB" not in longtake("plan", "--model", "framepack-i2v")

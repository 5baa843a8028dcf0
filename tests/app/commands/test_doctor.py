"""What `doctor` says: its whole text for machines laid out as files, its verdict, and its clean-ups."""

import difflib
import json
import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.commands import doctor
from app.commands.doctor import examine
from app.machine import this_local, this_machine
from app.miopen import clear_miopen_cache
from diffusers_helper.machine.local import Local, shape_key, stored_kernel
from diffusers_helper.machine.routes import KernelCase
from diffusers_helper.planning.notes import FORGET
from tests.app.conftest import Longtake
from tests.support.machines import GB, write, write_card, write_machine, write_memory

CPU = {
    "torch": "2.13.0", "hip": "", "cuda": "", "devices": 0, "kernel": "_scaled_dot_product_flash_attention",
}  # fmt: skip
ROCM = {
    **CPU, "hip": "7.2", "devices": 1, "arch": "gfx1100", "name": "Radeon", "dnn": 3005000,
    "total_bytes": 24 * GB,
}  # fmt: skip
MATH = "_scaled_dot_product_attention_math"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a machine without a card, on whose disk nothing is stored, and which has no other package."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    usage = SimpleNamespace(total=500 * GB, used=0, free=64 * GB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(doctor, "version_of", lambda _: "")
    monkeypatch.setattr(doctor, "can_stay_awake", lambda: True)
    monkeypatch.setattr(doctor, "rocm_of_torch", lambda: (7, 2))
    monkeypatch.setattr("diffusers_helper.machine.sysfs.computes_bf16", lambda: True)
    write_memory(tmp_path, 64 * GB, 50 * GB, swap=8 * GB, swap_free=8 * GB)
    return tmp_path


def look(
    root: Path, facts: Mapping[str, Any], model: str = "demo", *, local: Local | None = None, **environ: str
) -> list[str]:
    report = examine(model, root / "out", environ, root, lambda _: dict(facts), local or Local())
    lines = [
        f"{finding.level} {finding.topic}: {finding.text}{finding.remedy and f' -> {finding.remedy}'}"
        for finding in report
    ]
    return [line.replace(str(root), "TMP") for line in lines]


def xtx(root: Path) -> None:
    write_card(root, 110000, 24 * GB, used=GB, gtt=32 * GB, name="RX 7900 XTX")


def changed(lines: list[str], usual: list[str]) -> list[str]:
    """Return what is said instead of the usual lines, and the topics about which less is said."""
    differences = [*difflib.ndiff(usual, lines)]
    less = dict.fromkeys(line[2:].partition(":")[0] for line in differences if line[0] == "-")
    return [*(line[2:] for line in differences if line[0] == "+"), f"instead of: {', '.join(less)}"]


def test_a_machine_without_a_card_and_a_radeon(root: Path, snapshot: SnapshotAssertion) -> None:
    assert look(root, CPU) == snapshot(name="processor")
    xtx(root)
    write(root / "opt/rocm/.info/version", "7.2.0")
    link = root / "sys/class/drm/renderD128/device"
    write(link / "max_link_speed", "8.0 GT/s PCIe")
    write(link / "current_link_width", "16")
    assert look(root, ROCM, "framepack-i2v", MIOPEN_FIND_MODE="NORMAL") == snapshot(name="7900 XTX")


ODD = {
    "MIOPEN_FIND_TIME_LIMIT": "30", "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
    "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
}  # fmt: skip
# What torch tells on a machine with a 7900 XTX, and the environment.
FAULTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "torch does not start": ({}, {}),
    "no rights": ({**ROCM, "devices": 0}, {}),
    "torch for another maker": ({**CPU, "cuda": "13"}, {}),
    "the math kernel": ({**ROCM, "kernel": MATH}, {}),
    "no kernels for it": ({**ROCM, "arch_list": ["gfx1030", "gfx1101"], "kernel": ""}, {}),
    "kernels for it": ({**ROCM, "arch_list": ["gfx1030", "gfx1100"]}, {}),
    "another name, and variables without use": ({**ROCM, "arch": "gfx1030"}, ODD),
    "hidden": (CPU, {"HIP_VISIBLE_DEVICES": "", "MIOPEN_FIND_MODE": "FAST"}),
    "kitchen": ({**ROCM, "kitchen": ["hip", "eager"]}, {}),
    "kitchen that fails": (ROCM, {"kitchen": "0.2.40"}),
    "find mode by number": (ROCM, {"MIOPEN_FIND_MODE": "1"}),
    "enforced": (ROCM, {"MIOPEN_FIND_MODE": "FAST", "MIOPEN_FIND_ENFORCE": "4"}),
    "enforced safely": (ROCM, {"MIOPEN_FIND_MODE": "NORMAL", "MIOPEN_FIND_ENFORCE": "4"}),
}


def test_what_is_wrong_is_told_with_a_remedy(
    root: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    on_processor = look(root, CPU)
    xtx(root)
    usual, lines = look(root, ROCM), list[str]()
    for name, (facts, environ) in FAULTS.items():
        monkeypatch.setattr(doctor, "version_of", lambda _, name=name: "0.2.40" * ("kitchen" in name))
        monkeypatch.setattr(doctor, "kitchen_problem", lambda: "")
        others = on_processor if name == "hidden" else usual
        lines += [f"> {name}", *changed(look(root, facts, **environ), others)]
    assert "\n".join(lines) == snapshot(name="torch and environment")
    monkeypatch.setattr(doctor, "version_of", lambda _: "")
    monkeypatch.setattr(doctor, "rocm_of_torch", lambda: (10,))
    assert "expandable segments" not in "".join(look(root, ROCM, **ODD))
    lines = ["> a model that does not exist", *changed(look(root, ROCM, "nope"), usual)]
    lines += ["> a model without its files", *changed(look(root, ROCM, "framepack-f1"), usual)]
    local = Local(folder=root / "cache")
    local.calibration.write("gfx1100", {"decode": 1.5, "sample": 1.25})
    for tokens, error in ((9242, 0.0133), (18485, 0.0142), (40000, 0.0133)):
        key = shape_key(24, tokens, 128, "bfloat16")
        sage = {"milliseconds": 500.0, "error": error, "bytes": 0}
        for candidate, result in {"sage": sage, "kitchen": {"failed": "no kernel"}}.items():
            with local.routes.trying(KernelCase("attention", "gfx1100", key), candidate) as results:
                results.append(result)
    lines += ["> after trials", *changed(look(root, ROCM, local=local), usual)]
    accepted = look(root, ROCM, local=local, LONGTAKE_ATTENTION_DEVIATION="2")
    lines += ["> with more deviation", *changed(accepted, usual)]
    write_card(root, 110000, 24 * GB, used=10 * GB)
    write_memory(root, 64 * GB, GB, swap=8 * GB, swap_free=GB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=GB, used=0, free=GB))
    monkeypatch.setattr(doctor, "can_stay_awake", lambda: False)
    lines += ["> all is nearly full", *changed(look(root, ROCM), usual)]
    write_card(root, 110000, 8 * GB)
    lines += ["> a small card", *changed(look(root, ROCM, "framepack-i2v", local=local), usual)]
    usual = look(root, ROCM)
    (root / "out").touch()
    lines += ["> no folder", *changed(look(root, ROCM), usual)]
    assert "\n".join(lines) == snapshot(name="models and memory")


def test_swap_is_a_fault_only_where_memory_is_short_and_the_disk_is_that_of_the_nearest_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, level in ((2 * GB, "ok"), (2 * GB - 1, "note")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        disk = doctor._disk(root / "a" / "b" / "c")
        assert (disk.level, disk.text) == (level, f"2 GB free in {root}")
    for available, swap_free, level in ((5, 1, "note"), (5, 7, "ok"), (60, 1, "ok"), (7, 1, "ok")):
        write_memory(root, 64 * GB, available * GB, swap=8 * GB, swap_free=swap_free * GB)
        assert [finding.level for finding in doctor._memory(root)] == ["ok", level]


@pytest.mark.parametrize("name", ["wsl", "laptop-780m-egpu", "ryzen-7000-geforce"])
def test_other_machines(name: str, root: Path, snapshot: SnapshotAssertion) -> None:
    on_processor = look(root, CPU)
    xtx(root / "usual")
    usual = look(root / "usual", ROCM)
    write_machine(root, name)
    lines = look(root, {**CPU, "total_bytes": 12 * GB})
    assert min(changed(lines, on_processor), changed(lines, usual), key=len) == snapshot


def test_the_kernel_that_ran_is_kept_for_plans(root: Path, tmp_path: Path) -> None:
    write_card(root, 100300, 24 * GB)
    local = Local(folder=tmp_path / "cache")
    facts = {**ROCM, "torch": metadata.version("torch"), "arch": "gfx1030"}
    look(root, {**facts, "devices": 0}, local=local)
    assert not local.kernels.file or not local.kernels.file.exists()  # the CPU's attention kernel ran
    for kernel in (ROCM["kernel"], MATH):
        look(root, {**facts, "kernel": kernel}, local=local)
        assert stored_kernel(local.kernels, "gfx1030") == kernel


def test_smaller_plans_are_forgotten_on_demand(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    learned = this_local({}).smaller_plans
    learned.write("card, model, size", {"weights": 1, "tile": 0})
    assert "Forgot 1 smaller plan" in longtake(*FORGET.split()[1:])
    assert learned.read("card, model, size") == {}
    assert "Forgot 0 smaller plans" in longtake(*FORGET.split()[1:])


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
    assert said.endswith("while MIOpen chooses and compiles its kernels.\n")
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
    report = "\n".join(look(root, ROCM, "framepack-i2v", local=local))
    reported = re.findall(r"Predicted peak ([0-9.]+) GB", longtake("plan", "--model", "framepack-i2v"))
    assert f"peaks at {reported[0]} of " in report
    local.calibration.forget()
    assert f"Predicted peak {reported[0]} GB" not in longtake("plan", "--model", "framepack-i2v")

"""Tests of which card is found in the kernel's files, of its profile, and of whose environment wins."""

import json
import os
import sys
from pathlib import Path

import pytest

from app.jobs.making.engine_client import EngineProcess
from diffusers_helper.errors import InputError
from diffusers_helper.machine.sysfs import amd_gpus, gfx_name, rocm_version
from diffusers_helper.planning.profiles import FAMILIES, Machine, Profile, detect, gfx_family, profile_for
from diffusers_helper.planning.variables import YOU, engine_environment, environment_report
from diffusers_helper.units import gb_bytes
from tests.support.jobs import ROOT, wait_until
from tests.support.machines import GB, write, write_card, write_memory


def profile(arch: str, total: float, environ: dict[str, str] | None = None) -> Profile:
    return profile_for(Machine("rocm", arch, arch, gb_bytes(total), arch == "gfx1151"), environ or {})


@pytest.mark.parametrize(
    ("target", "name", "family"),
    [
        (110000, "gfx1100", "gfx1100"), (110002, "gfx1102", "gfx1100"), (110501, "gfx1151", "gfx1151"),
        (120000, "gfx1200", "gfx1200"), (120001, "gfx1201", "gfx1200"), (100300, "gfx1030", "gfx103x"),
        (90010, "gfx90a", "cdna"), (90402, "gfx942", "cdna"), (90500, "gfx950", "cdna"),
        (80003, "gfx803", "radeon"),
    ],
)  # fmt: skip
def test_the_kernels_number_gives_the_cards_name_and_family(target: int, name: str, family: str) -> None:
    assert gfx_name(target) == name
    assert gfx_family(Machine("rocm", name, name, GB)) == family in FAMILIES


def test_a_radeon_is_found_with_its_memory(tmp_path: Path) -> None:
    write_card(tmp_path, 110000, 24 * GB, used=GB, gtt=32 * GB, name="Radeon RX 7900 XTX")
    write_memory(tmp_path, 64 * GB, 50 * GB)
    (gpu,) = amd_gpus(tmp_path)
    assert (gpu.arch, gpu.name, gpu.vram_used, gpu.is_apu) == ("gfx1100", "Radeon RX 7900 XTX", GB, False)
    machine = detect({}, tmp_path)
    assert (machine.kind, machine.arch, machine.total_bytes) == ("rocm", "gfx1100", 24 * GB)


def test_without_render_nodes_the_memory_banks_tell_the_size(tmp_path: Path) -> None:
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    write(node / "properties", "cpu_cores_count 0\ngfx_target_version 110000\ndrm_render_minor 128\n")
    write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {20 * GB}\n")
    assert detect({}, tmp_path).total_bytes == 20 * GB


def test_an_apu_may_use_main_memory_as_far_as_there_is_any(tmp_path: Path) -> None:
    write_card(tmp_path, 110501, GB, gtt=60 * GB, cores=16)
    write_memory(tmp_path, 64 * GB, 40 * GB)
    machine = detect({}, tmp_path)
    assert (machine.total_bytes, machine.memory) == (40 * GB, "main memory, lent as GTT")
    write_memory(tmp_path, 128 * GB, 100 * GB)
    assert detect({}, tmp_path).total_bytes == 60 * GB


def test_hidden_cards_and_overridden_names(tmp_path: Path) -> None:
    write_card(tmp_path, 110501, GB, cores=16, number=1)
    write_card(tmp_path, 110001, 16 * GB, number=2)
    write_memory(tmp_path, 32 * GB, 30 * GB)
    assert detect({}, tmp_path).arch == "gfx1101"
    assert detect({"HIP_VISIBLE_DEVICES": "0"}, tmp_path).arch == "gfx1151"
    assert detect({"HIP_VISIBLE_DEVICES": "1"}, tmp_path).arch == "gfx1101"
    assert (
        detect({"HIP_VISIBLE_DEVICES": "1", "HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, tmp_path).arch == "gfx1100"
    )
    for nothing in ("", "-1", "7"):
        assert detect({"ROCR_VISIBLE_DEVICES": nothing}, tmp_path).kind == "cpu"


def test_other_machines(tmp_path: Path) -> None:
    write_memory(tmp_path, 32 * GB, 20 * GB, swap=8 * GB, swap_free=GB)
    machine = detect({}, tmp_path)
    assert (machine.kind, machine.total_bytes) == ("cpu", 32 * GB)
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    assert detect({}, tmp_path).kind == "cuda"
    assert rocm_version(tmp_path) == ""
    write(tmp_path / "opt/rocm/.info/version", "7.2.0\n")
    assert rocm_version(tmp_path) == "7.2.0"


# Cap and preserved memory in GB, as the page first shows them.
@pytest.mark.parametrize(
    ("arch", "total", "cap", "preserved"),
    [
        ("gfx1100", 24, 20, 18), ("gfx1100", 20, 16.5, 14.5), ("gfx1201", 16, 12.5, 10.5),
        ("gfx1032", 8, 4.5, 2.5), ("gfx1100", 48, 44.5, 6), ("gfx942", 192, 188.5, 6),
        ("gfx1151", 96, 92.5, 6), ("gfx906", 16, 12.5, 10.5), ("gfx1030", 4, 2, 0),
    ],
)  # fmt: skip
def test_caps_and_preserved_memory_by_card(arch: str, total: float, cap: float, preserved: float) -> None:
    budget = profile(arch, total).budget()
    assert (budget.cap_bytes, budget.preserved_bytes) == (gb_bytes(cap), gb_bytes(preserved))
    assert budget.reserve_bytes == GB
    cpu = profile_for(Machine("cpu", "", "CPU", 32 * GB), {}).budget()
    assert (cpu.cap_bytes, cpu.preserved_bytes, cpu.reserve_bytes) == (28 * GB, 0, 0)


def test_each_value_has_a_reason_and_a_source() -> None:
    for family in FAMILIES:
        preset = profile("gfx1100", 24, {"LONGTAKE_PROFILE": family})
        assert preset.family == family
        settings = (
            preset.cap_bytes, preset.preserved_bytes, preset.reserve_bytes, preset.vae_dtype, preset.vae_tile,
            preset.kernel, preset.attention, *preset.environment.values(),
        )  # fmt: skip
        assert all(setting.reason and setting.source for setting in settings)


def test_what_the_estimates_take_from_a_profile() -> None:
    assert profile("gfx1100", 24).backend.conv_decode == 2
    assert profile("gfx1030", 16).backend.attention == "math"
    assert [profile(arch, 32).vae_dtype.value for arch in ("gfx1151", "gfx1100")] == ["bf16", "fp16"]
    assert profile("gfx1151", 64, {"LONGTAKE_VAE_DTYPE": "fp32"}).vae_bytes == 4
    assert [profile(arch, 16).has_bf16 for arch in ("gfx1030", "gfx1100", "gfx1201")] == [False, True, True]
    assert profile_for(Machine("cpu", "", "", GB), {}).backend.conv_encode == 1


def test_a_user_overrides_by_variable_and_by_argument() -> None:
    environ = {
        "LONGTAKE_VRAM_CAP_GB": "10.5", "LONGTAKE_PRESERVED_GB": "0", "LONGTAKE_VAE_TILE": "128",
        "LONGTAKE_VAE_DTYPE": "bf16", "LONGTAKE_ATTENTION": "math",
    }  # fmt: skip
    user_profile = profile("gfx1100", 24, environ)
    settings = user_profile.vae_tile, user_profile.vae_dtype, user_profile.attention
    assert [setting.value for setting in settings] == [128, "bf16", "math"]
    assert user_profile.cap_bytes.source == "you"
    budget = user_profile.budget()
    assert (budget.cap_bytes, budget.preserved_bytes) == (gb_bytes(10.5), 0)
    assert user_profile.budget(8, 2.5).cap_bytes == 8 * GB
    assert user_profile.budget(8, 2.5).preserved_bytes == gb_bytes(2.5)
    assert user_profile.budget(500).cap_bytes == 24 * GB
    assert profile("gfx1100", 24).budget(8).preserved_bytes == 6 * GB


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VRAM_CAP_GB", "much"), ("VRAM_CAP_GB", "0"), ("PRESERVED_GB", "nan"), ("PRESERVED_GB", "-1"),
        ("VAE_TILE", "100"), ("VAE_TILE", "wide"), ("VAE_DTYPE", "int8"), ("ATTENTION", "fused"),
        ("PROFILE", "gfx1"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_used_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"LONGTAKE_{name} is '{value}'; expected"):
        profile("gfx1100", 24, {f"LONGTAKE_{name}": value})


def test_the_engines_environment_leaves_a_users_own_values_alone() -> None:
    card_profile = profile("gfx1100", 24)
    ours = engine_environment(card_profile.environment, {})
    assert ours["PYTORCH_ALLOC_CONF"] == "garbage_collection_threshold:0.8"
    assert ours["MIOPEN_FIND_MODE"] == "FAST"
    assert ours["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] == "1"
    environ = {"MIOPEN_FIND_MODE": "NORMAL", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"}
    left = set(ours) - set(engine_environment(card_profile.environment, environ))
    assert left == {"MIOPEN_FIND_MODE", "PYTORCH_ALLOC_CONF"}
    report = environment_report(card_profile.environment, environ)
    mine = {name: setting for name, setting in report.items() if setting.source == YOU}
    assert set(mine) == set(environ)
    assert mine["MIOPEN_FIND_MODE"].value == "NORMAL"
    assert "replaces FAST" in mine["MIOPEN_FIND_MODE"].reason


def test_only_what_suits_the_card_is_set() -> None:
    on_cpu, on_nvidia = (profile_for(Machine(kind, "", "", GB), {}).environment for kind in ("cpu", "cuda"))
    heap = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "1073741824")
    assert engine_environment(on_cpu, {}) == {"OMP_WAIT_POLICY": "PASSIVE", **heap}
    assert engine_environment(on_nvidia, {}) == {}
    assert "PYTORCH_ALLOC_CONF" not in profile("gfx1151", 64).environment
    assert "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL" not in profile("gfx1030", 16).environment


def test_the_engine_starts_with_the_profiles_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGTAKE_PROFILE", "gfx1100")
    monkeypatch.setenv("MIOPEN_FIND_MODE", "NORMAL")
    file = tmp_path / "environment.json"
    code = (
        "import json, os, sys; open(sys.argv[1] + '~', 'w').write(json.dumps(dict(os.environ))); "
        "os.replace(sys.argv[1] + '~', sys.argv[1])"
    )
    engine = EngineProcess((sys.executable, "-c", code, str(file)))
    engine.start()
    wait_until(file.exists)
    engine.close()
    environ = json.loads(file.read_text())
    assert environ["MIOPEN_FIND_MODE"] == "NORMAL"
    assert environ["PYTORCH_ALLOC_CONF"] == "garbage_collection_threshold:0.8"
    assert "PYTORCH_ALLOC_CONF" not in os.environ


@pytest.mark.parametrize(
    ("torch", "is_expandable"),
    [
        ("2.13.0+rocm10.0.0", True), ("2.14.0+rocm10.1.0", True), ("2.13.0+rocm7.2", False),
        ("2.13.0+cu130", False), ("", False),
    ],
)  # fmt: skip
def test_segments_are_expandable_where_pytorch_tests_them_with_a_limit(
    torch: str, is_expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.machine.packages.version_of", lambda name: torch)
    setting = "expandable_segments:True" if is_expandable else "garbage_collection_threshold:0.8"
    assert profile("gfx1100", 24).environment["PYTORCH_ALLOC_CONF"].value == setting


NAIVE, MATRIX = "MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD", "MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS"


@pytest.mark.parametrize(
    ("arch", "naive", "matrix"),
    [
        ("gfx1100", "0", None), ("gfx1201", "0", None), ("gfx1032", "0", None), ("gfx1151", "0", None),
        ("gfx942", None, "1"),
    ],
)  # fmt: skip
def test_a_card_gets_the_kernels_for_its_cores(arch: str, naive: str | None, matrix: str | None) -> None:
    variables = profile(arch, 16).environment
    environ = engine_environment(variables, {})
    assert (environ.get(NAIVE), environ.get(MATRIX)) == (naive, matrix)
    assert not {NAIVE, MATRIX} & engine_environment(variables, {NAIVE: "1", MATRIX: "0"}).keys()


def test_every_variable_of_the_memory_document_is_set_or_explained() -> None:
    readme = (ROOT / "MIOPEN_FALLBACK_README.md").read_text(encoding="utf-8")
    names = [f"MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_{way}_XDLOPS" for way in ("FWD", "BWD", "WRW")]
    names += [f"MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_{way}" for way in ("FWD", "BWD", "WRW")]
    names += ["MIOPEN_FIND_MODE", "MIOPEN_LOG_LEVEL", "PYTORCH_HIP_ALLOC_CONF"]
    families = [profile(arch, 16) for arch in ("gfx1100", "gfx1151", "gfx1200", "gfx1030", "gfx942")]
    for name in {*names, *(name for family in families for name in family.environment)}:
        assert f"| `{name}`" in readme or f", `{name}`" in readme, name

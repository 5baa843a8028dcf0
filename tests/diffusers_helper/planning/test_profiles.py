"""Tests of which card is found in the kernel's files, of its profile, and of whose environment wins."""

import json
import os
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.making.engine_client import EngineProcess
from diffusers_helper.machine.sysfs import amd_gpus, gfx_name, rocm_version
from diffusers_helper.planning.profiles import FAMILIES, Machine, Profile, detect, gfx_family, profile_for
from diffusers_helper.units import gb_bytes
from tests.support.answers import text_of
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


def test_which_machine_is_found(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    radeon, banks, apu, two, plain = (tmp_path / name for name in ("radeon", "banks", "apu", "two", "plain"))
    write_card(radeon, 110000, 24 * GB, used=GB, gtt=32 * GB, name="Radeon RX 7900 XTX")
    write_memory(radeon, 64 * GB, 50 * GB)
    node = banks / "sys/class/kfd/kfd/topology/nodes/1"
    write(node / "properties", "cpu_cores_count 0\ngfx_target_version 110000\ndrm_render_minor 128\n")
    write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {20 * GB}\n")
    write_card(two, 110501, 9 * GB, gtt=GB, cores=16, number=1)
    write_card(two, 110001, 16 * GB, number=2)
    write_memory(two, 32 * GB, 30 * GB)
    lines = [text_of(amd_gpus(radeon))]

    def tell(root: Path, environ: dict[str, str] | None = None) -> None:
        environ = environ or {}
        lines.append(f"{root.name} {environ}: {text_of(detect(environ, root))}, ROCm {rocm_version(root)}")

    for root in (radeon, banks, two):
        tell(root)
    write_card(apu, 110501, GB, gtt=60 * GB, cores=16)
    for total, available in ((64, 40), (128, 100), (128, 0)):
        write_memory(apu, total * GB, available * GB)
        tell(apu)
    first, second = {"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "1"}
    for environ in (first, second, second | {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}):
        tell(two, environ)
    tell(two, {"ROCR_VISIBLE_DEVICES": ""})
    tell(two, {"ROCR_VISIBLE_DEVICES": "7"})
    write_memory(plain, 32 * GB, 20 * GB, swap=8 * GB, swap_free=GB)
    tell(plain)
    (plain / "proc/driver/nvidia/gpus").mkdir(parents=True)
    write(plain / "opt/rocm/.info/version", "7.2.0\n")
    tell(plain)
    assert "\n".join(lines) == snapshot


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


def test_every_variable_of_the_memory_document_is_set_or_explained() -> None:
    readme = (ROOT / "MIOPEN_FALLBACK_README.md").read_text(encoding="utf-8")
    names = [f"MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_{way}_XDLOPS" for way in ("FWD", "BWD", "WRW")]
    names += [f"MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_{way}" for way in ("FWD", "BWD", "WRW")]
    names += ["MIOPEN_FIND_MODE", "MIOPEN_LOG_LEVEL", "PYTORCH_HIP_ALLOC_CONF"]
    families = [profile(arch, 16) for arch in ("gfx1100", "gfx1151", "gfx1200", "gfx1030", "gfx942")]
    for name in {*names, *(name for family in families for name in family.environment)}:
        assert f"| `{name}`" in readme or f", `{name}`" in readme, name

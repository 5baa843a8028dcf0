"""Tests that a flush returns memory in three ways and reports each, with a stand-in for the HIP library."""

import ctypes
import gc
import logging
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from diffusers_helper.memory import flush
from diffusers_helper.memory.device import CudaDevice, Device
from diffusers_helper.memory.flush import FlushStage, flush_rocm_allocator

COMPILER = shutil.which("cc") or shutil.which("gcc")
LOGGER = "diffusers_helper.memory.flush"
MIB = 1024**2
NOTHING = (0, 0, 0)

# A pool of 64 MiB that records its calls and can be told to fail.
SOURCE = """
#include <stddef.h>
#include <stdint.h>
#define POOL ((void *)0x5eed)
int get_status, trim_status, calls, device = -1;
void *pool;
size_t kept, reserved = 64 << 20;
int hipDeviceGetDefaultMemPool(void **found, int number) {
    calls++; device = number; *found = POOL; return get_status;
}
int hipMemPoolTrimTo(void *given, size_t bytes) {
    calls++; pool = given; kept = bytes;
    if (!trim_status && bytes < reserved) reserved = bytes;
    return trim_status;
}
#ifdef WITH_ATTRIBUTES
int hipMemPoolGetAttribute(void *given, int attribute, void *value) {
    if (given != POOL || attribute != 5) return 1;
    *(uint64_t *)value = reserved;
    return 0;
}
#endif
"""

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler: the HIP stand-in is not built")


class Hip:
    """The stand-in, loaded into this process."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._path = path

    def __getitem__(self, name: str) -> int:
        kind = ctypes.c_size_t if name in ("kept", "reserved", "pool") else ctypes.c_int
        return kind.in_dll(self._library, name).value

    def fail(self, *, get: int = 0, trim: int = 0) -> None:
        ctypes.c_int.in_dll(self._library, "get_status").value = get
        ctypes.c_int.in_dll(self._library, "trim_status").value = trim

    def unload(self) -> None:
        """Close it as often as it was opened, so that no other test finds it."""
        close = ctypes.CDLL(None).dlclose
        for _ in range(100):
            if str(self._path) not in Path("/proc/self/maps").read_text(encoding="utf-8"):
                return
            close(ctypes.c_void_p(self._library._handle))
        raise AssertionError(f"{self._path} stays loaded")


def compiled(folder: Path, name: str, *options: str) -> Path:
    assert COMPILER
    source, library = folder / "hip.c", folder / name
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run([COMPILER, "-shared", "-fPIC", *options, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture(
    params=["libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7.2.70200", "libamdhip64-1f3.so.7"]
)
def hip(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hip]:
    """Provide it under the names that it has in ROCm and in torch's packages."""
    hip = Hip(compiled(tmp_path, request.param, "-DWITH_ATTRIBUTES"))
    yield hip
    hip.unload()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def test_the_stages_are_the_documents_nine() -> None:
    assert get_args(FlushStage) == (
        "worker-start", "post-unload/text-enc", "post-text-encoding", "post-vae-encoding", "post-clip-vision",
        "post-unload/transformer", "post-transformer-unload", "post-vae-decode", "exception-cleanup",
    )  # fmt: skip


def test_without_hip_it_does_no_harm_and_says_nothing(log: pytest.LogCaptureFixture) -> None:
    assert flush_rocm_allocator("worker-start") == NOTHING
    assert flush_rocm_allocator("post-vae-decode", 1.5, device=Device()) == NOTHING
    assert not log.messages


@needs_compiler
@pytest.mark.slow
def test_a_library_that_is_not_loaded_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """Place the library where the loader looks first."""
    compiled(tmp_path, "libamdhip64.so", "-DWITH_ATTRIBUTES")
    program = """
        from pathlib import Path
        from diffusers_helper.memory.flush import flush_rocm_allocator
        assert flush_rocm_allocator("worker-start") == (0, 0, 0)
        assert "libamdhip64" not in Path("/proc/self/maps").read_text()
    """
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    root = Path(flush.__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, cwd=root)


@needs_compiler
def test_the_default_pool_is_trimmed_to_what_it_may_keep(hip: Hip, log: pytest.LogCaptureFixture) -> None:
    assert flush_rocm_allocator("post-vae-decode", min_resident_gb=1 / 64) == (0, 0, 48 * MIB)
    assert hip["calls"] == 2
    assert hip["device"] == 0
    assert hip["pool"] == 0x5EED
    assert hip["kept"] == hip["reserved"] == 16 * MIB
    assert log.messages == ["[post-vae-decode] ROCm mempool trimmed"]
    assert flush_rocm_allocator("worker-start") == (0, 0, 16 * MIB)
    assert hip["kept"] == 0


@needs_compiler
@pytest.mark.parametrize(
    ("options", "status", "lines", "reserved"),
    [
        ("-DWITH_ATTRIBUTES", {"get": 1}, ["hipDeviceGetDefaultMemPool failed with status 1"], 64 * MIB),
        ("-DWITH_ATTRIBUTES", {"trim": 801}, ["ROCm mempool trim failed (801)"], 64 * MIB),
        ("-DWITH_ATTRIBUTES", {"get": 100}, [], 64 * MIB),  # a ROCm build without a card
        ("-DWITH_ATTRIBUTES", {"get": 35}, [], 64 * MIB),  # without a driver
        ("-DhipMemPoolTrimTo=other", {}, [], 64 * MIB),  # a library too old for pools
        ("-DOLD", {}, ["ROCm mempool trimmed"], 0),  # a pool that cannot be asked for its size
    ],
)
def test_a_library_that_fails_or_lacks_something_raises_nothing(
    options: str, status: dict[str, int], lines: list[str], reserved: int, tmp_path: Path,
    log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    hip = Hip(compiled(tmp_path, "libamdhip64.so.7", options))
    try:
        hip.fail(**status)
        assert flush_rocm_allocator("worker-start") == NOTHING
        assert log.messages == [f"[worker-start] {line}" for line in lines]
        assert hip["reserved"] == reserved
    finally:
        hip.unload()


class Knot:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.self = tensor, self


@pytest.mark.parametrize("stage", ["post-text-encoding", "exception-cleanup"])
def test_tensors_that_are_garbage_are_given_back_and_counted(stage: str) -> None:
    device = Device()
    gc.disable()
    try:
        with device:
            Knot(torch.zeros(MIB, dtype=torch.uint8))
            kept = torch.zeros(1000, dtype=torch.uint8)
        assert device.allocated_bytes() == MIB + 1000
        assert flush_rocm_allocator(stage, device=device) == (MIB, 0, 0)
        assert device.allocated_bytes() == 1000
    finally:
        gc.enable()
    del kept


@pytest.mark.slow
def test_after_an_exception_old_garbage_goes_too() -> None:
    device = Device()
    with device:
        knot = Knot(torch.zeros(MIB, dtype=torch.uint8))
    gc.collect()
    gc.collect()
    del knot
    assert flush_rocm_allocator("exception-cleanup", device=device) == (MIB, 0, 0)
    assert device.allocated_bytes() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_each_way_gives_back(log: pytest.LogCaptureFixture) -> None:
    device = CudaDevice()
    flush_rocm_allocator("worker-start", device=device)
    tensor = torch.zeros(256 * MIB, dtype=torch.uint8, device=device.torch_device)
    assert device.allocated_bytes() >= 256 * MIB
    del tensor
    _, cached, pooled = flush_rocm_allocator("post-vae-decode", device=device)
    assert (cached >= 256 * MIB, pooled) == (True, 0)
    assert log.messages[-1].endswith("mempool trimmed")

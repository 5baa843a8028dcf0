"""Tests of the names that FramePack and the memory document import from `diffusers_helper.memory`."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from diffusers_helper import memory
from diffusers_helper.memory import (
    MAX_VRAM_USAGE_GB,
    get_cuda_free_memory_gb,
    gpu,
    load_model_as_complete,
    move_model_to_device_with_memory_preservation,
    offload_model_from_device_for_memory_preservation,
    residency,
    unload_complete_models,
)
from diffusers_helper.memory.device import Device
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.units import GB

DOCUMENT = (
    "MAX_VRAM_USAGE_GB", "get_cuda_allocated_memory_gb", "check_vram_limit", "log_memory_status",
    "move_model_to_device_with_memory_preservation", "load_model_as_complete", "unload_complete_models",
    "offload_model_from_device_for_memory_preservation", "flush_rocm_allocator",
    "get_cuda_free_memory_gb", "cpu", "gpu",
)  # fmt: skip


class Tower(nn.Module):
    """Four equal blocks and one more weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.scale * x


BLOCK = 256 * 256 * 4


@pytest.fixture
def tower() -> Tower:
    return Tower().eval().requires_grad_(False)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the free bytes of the device, which a test may change."""
    free = [10 * BLOCK]
    monkeypatch.setattr(Device, "free_bytes", lambda self: free[0])
    residency._residents.clear()
    return free


def streamed(model: nn.Module) -> bool:
    return bool(residency._residents[model].streamed)


@pytest.mark.parametrize("name", DOCUMENT)
def test_every_name_can_be_imported_and_says_what_it_does(name: str) -> None:
    assert name in memory.MODULE_OF_NAME
    member = getattr(memory, name)
    assert not inspect.isfunction(member) or (member.__doc__ or "").splitlines()[0].endswith(".")


def test_a_name_that_nobody_uses_is_unknown() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'DynamicSwap'"):
        memory.DynamicSwap  # noqa: B018


def test_looking_at_the_package_imports_no_torch() -> None:
    code = "import sys, diffusers_helper.memory as m; m.MAX_VRAM_USAGE_GB; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_there_is_one_place_for_the_twenty() -> None:
    assert memory.MAX_VRAM_USAGE_GB is MAX_VRAM_USAGE_GB
    card = Machine("rocm", "gfx1100", "card", 24 * GB)
    assert profile_for(card, {}).cap_bytes.value == MAX_VRAM_USAGE_GB * GB


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_names_mean_the_cpu() -> None:
    assert gpu == memory.cpu == torch.device("cpu")
    assert get_cuda_free_memory_gb(gpu) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_models_come_stream_and_go_with_the_same_numbers(tower: Tower, free: list[int]) -> None:
    x = torch.randn(2, 256)
    expected, host = tower(x), tower.scale.data_ptr()
    load_model_as_complete(tower, gpu)
    assert tower.scale.data_ptr() != host
    assert tower(x).equal(expected)
    free[0] = 2 * BLOCK
    offload_model_from_device_for_memory_preservation(tower, gpu, preserved_memory_gb=1.5 * BLOCK / GB)
    assert not streamed(tower)  # enough is free as it is
    free[0] = 6 * BLOCK
    offload_model_from_device_for_memory_preservation(tower, gpu, preserved_memory_gb=7 * BLOCK / GB)
    assert streamed(tower)
    assert tower(x).equal(expected)
    unload_complete_models()
    assert tower.scale.data_ptr() == host
    free[0] = 4 * BLOCK
    move_model_to_device_with_memory_preservation(tower, gpu, preserved_memory_gb=BLOCK / GB)
    assert streamed(tower)
    assert tower(x).equal(expected)
    other = Tower()
    load_model_as_complete(other, gpu)  # the first one leaves
    assert tower.scale.data_ptr() == host
    move_model_to_device_with_memory_preservation(tower, gpu, preserved_memory_gb=4 * BLOCK / GB)
    assert streamed(tower)  # everything that can be
    assert tower(x).equal(expected)
    free[0] = BLOCK
    with pytest.raises(DoesNotFit):
        move_model_to_device_with_memory_preservation(tower, gpu, preserved_memory_gb=0)
    assert tower(x).equal(expected)
    unload_complete_models(tower, other)

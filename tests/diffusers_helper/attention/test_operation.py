"""Tests of the name of the kernel that PyTorch chooses, and of the beginning and the end of a trial."""

import json
from pathlib import Path

import pytest
import torch

from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.operation import operation_of
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from tests.support.attention_kernels import HANGS, tried_in_processes, write_kernel

SHAPE = (2, 96, 16, "bfloat16", 2**20)


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [
        ("native", "_scaled_dot_product_flash_attention_for_cpu"),
        ("math", "_scaled_dot_product_attention_math"),
        ("sliced", ""),
    ],
)
def test_a_kernel_is_named_without_the_profiler(
    backend: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("torch.autograd.profiler._prepare_profiler", hangs)
    inputs = [torch.randn(1, 64, 2, 16) for _ in range(3)]
    assert operation_of(lambda: attention_function(backend, 2**20)(*inputs)) == kernel


@pytest.mark.slow
def test_a_slow_start_is_no_fault_of_the_first_way(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(4)\n")  # as from a cold disk
    route, _ = tried_in_processes(tmp_path, ("native",), SHAPE, seconds=3.5)
    assert [*route.measured] == ["native"]


def test_a_trial_ends_with_its_job_and_leaves_no_mark(tmp_path: Path) -> None:
    class CancelAtAMark(CancelToken):
        def check(self) -> None:
            if any((tmp_path / "routes").glob("*.json")):
                self.cancel()
            super().check()

    write_kernel(tmp_path, "flash_attn", HANGS)
    with pytest.raises(GenerationCancelled):
        tried_in_processes(tmp_path, ("triton",), SHAPE, cancel=CancelAtAMark())
    (file,) = (tmp_path / "routes").glob("*.json")
    assert json.loads(file.read_text())["routes"] == {}

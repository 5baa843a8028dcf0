"""Tests of the name of the kernel that PyTorch chooses."""

import pytest
import torch

from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.operation import operation_of


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

"""Tests of what a header tells about a file with weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from diffusers_helper.models.inspect import inspect_checkpoint, read_header


def save(file: Path, **tensors: torch.Tensor) -> Path:
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, file)
    return file


def test_types_are_told_by_their_share_of_the_bytes(tmp_path: Path) -> None:
    file = save(
        tmp_path / "model.safetensors",
        double_blocks__0__img_attn__norm__key_norm__scale=torch.zeros(8),
        weight=torch.zeros(4, 24, dtype=torch.bfloat16),
    )
    facts = inspect_checkpoint(file)
    assert (facts.format, facts.tensors, facts.tensor_bytes) == ("safetensors", 2, 32 + 192)
    assert facts.shares == {"BF16": 192 / 224, "F32": 32 / 224}
    assert (facts.model, facts.keys, facts.quantised, facts.problems) == ("Flux", "original", "", ())
    assert json.loads(facts.to_json())["tensor_bytes"] == 224


@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        ({"a": torch.zeros(2, 2, dtype=torch.float8_e4m3fn)}, "fp8"),
        ({"a": torch.zeros(2, 2, dtype=torch.float8_e5m2), "scaled_fp8": torch.zeros(1)}, "scaled fp8"),
        ({"a": torch.zeros(2, 2, dtype=torch.int8), "a.weight_scale": torch.zeros(1)}, "scaled int8"),
        (
            {"a": torch.zeros(2, 2, dtype=torch.uint8), "a.quant_state.bitsandbytes__nf4": torch.zeros(1)},
            "bitsandbytes",
        ),
        ({"a": torch.zeros(2, 2), "position_ids": torch.zeros(3, dtype=torch.int8)}, ""),
    ],
)
def test_quantised_weights_are_known_by_types_and_names(
    tmp_path: Path, tensors: dict[str, torch.Tensor], kind: str
) -> None:
    file = tmp_path / "paint4k-int4-like.safetensors"
    save_file(tensors, file)
    facts = inspect_checkpoint(file)
    assert facts.quantised == kind
    assert facts.hints == ("The name of the file says int4.",)


def test_a_word_inside_another_one_is_no_hint(tmp_path: Path) -> None:
    assert inspect_checkpoint(save(tmp_path / "paint4k.safetensors", a=torch.zeros(1))).hints == ()


def test_the_parts_of_a_checkpoint_are_named(tmp_path: Path) -> None:
    file = save(
        tmp_path / "all.safetensors",
        model__diffusion_model__joint_blocks__0__context_block__attn__qkv__weight=torch.zeros(1),
        first_stage_model__decoder__conv_in__weight=torch.zeros(1),
    )
    facts = inspect_checkpoint(file)
    assert (facts.model, facts.keys) == ("SD3 + VAE", "checkpoint")


def test_a_file_that_was_cut_off_is_told(tmp_path: Path) -> None:
    file = save(tmp_path / "model.safetensors", a=torch.zeros(64))
    data = file.read_bytes()
    file.write_bytes(data[:-8])
    assert inspect_checkpoint(file).problems == (
        f"The file has {len(data) - 8} bytes of {len(data)}; it is incomplete.",
    )
    file.write_bytes(data[:20])
    (problem,) = inspect_checkpoint(file).problems
    assert problem.startswith("The header cannot be read")


def test_a_tensor_of_another_size_than_its_shape_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert inspect_checkpoint(file).problems == ("Tensor a has 8 bytes of 12.",)


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [("a.gguf", b"GGUF\x03\0\0\0\0\0\0\0", "gguf"), ("a.ckpt", b"PK\x03\x04" + bytes(8), "pickle"),
     ("a.bin", b"hello world!", "unknown")],
)  # fmt: skip
def test_other_formats_are_named(tmp_path: Path, name: str, start: bytes, kind: str) -> None:
    file = tmp_path / name
    file.write_bytes(start)
    facts = inspect_checkpoint(file)
    assert facts.format == kind
    assert bool(facts.problems) == (kind == "unknown")


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for data in (b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"{", (2).to_bytes(8, "little") + b"[]"):
        file.write_bytes(data)
        with pytest.raises((ValueError, OSError, struct.error)):
            read_header(file)

"""Tests of the sizes of networks whose files are of unknown origin."""

import json
import shutil
from pathlib import Path

import pytest

from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import count_values

DEMO = find_model("demo")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("transformer", "num_attention_heads", "many"), ("transformer", "attention_head_dim", 2**80),
        ("transformer", "num_layers", None), ("text_encoder", "hidden_size", 0),
        ("image_encoder", "patch_size", 0), ("image_encoder", "image_size", [384]),
        ("vae", "block_out_channels", 5), ("vae", "block_out_channels", []),
        ("vae", "block_out_channels", ["x"]), ("vae", "layers_per_block", True),
    ],
)  # fmt: skip
def test_a_configuration_without_usable_sizes_is_told(
    part: str, key: str, value: object, tmp_path: Path
) -> None:
    folder = tmp_path / part
    shutil.copytree(DEMO.components[part].location, folder)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    assert count_values(part, folder, None).config == config
    file.write_text(json.dumps(config | {key: value}), encoding="utf-8")
    with pytest.raises(LongtakeError, match=rf"for {key}; expected a whole number from 1 to") as reported:
        count_values(part, folder, None)
    assert reported.value.remedy


@pytest.mark.parametrize("content", [b"[1]", b"[" * 100_000, b"\xff", b'{"x": "' + b"y" * 5_000_000])
def test_a_configuration_that_is_none_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(LongtakeError, match=r"vae in .* cannot be read") as reported:
        count_values("vae", tmp_path, None)
    assert len(reported.value.message) < 600

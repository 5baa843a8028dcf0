"""Files and folders with weights, whole and broken, as all that is told of each before anything is loaded."""

import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from app.cli import main
from diffusers_helper.errors import InputError
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint
from diffusers_helper.weights.lora_files import read_lora
from tests.support.answers import text_of, without
from tests.support.checkpoints import comfyui_names, original_names, with_prefix
from tests.support.hostile import archive, gguf, text
from tests.support.weights import PAGE, POINTER, write_gguf

Write = Callable[[Path], object]
E4M3, E5M2, INT8, UINT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8
SQUARE = torch.zeros(2, 2)
DOWN, UP = (f"transformer_blocks.0.attn.to_q.lora_{side}.weight" for side in "AB")
PAIR = {DOWN: torch.zeros(2, 32), UP: torch.zeros(32, 2)}


def saved(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> Write:
    return lambda file: save_file({**tensors}, file, metadata)


def content(data: bytes) -> Write:
    return lambda file: file.write_bytes(data)


def header(entry: Any, size: int = 8) -> Write:
    data = entry if isinstance(entry, bytes) else json.dumps({"a": entry}).encode()
    return content(len(data).to_bytes(8, "little") + data + bytes(size))


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def broken(write: Write, change: Callable[[bytes], bytes]) -> Write:
    return lambda file: (write(file), file.write_bytes(change(file.read_bytes())))


def packed(data: bytes, cut: int | None = None, kind: int = zipfile.ZIP_STORED) -> bytes:
    """Pack an archive anew, with no more bytes than this of its first record."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name)[: cut if name.endswith("data/0") else None])
    return result.getvalue()


def torch_file(file: Path) -> None:
    torch.save({"a": torch.zeros(4, 6)}, file)


def notes(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as new:
        new.writestr("notes.txt", "no weights")


HUNYUAN = {
    "double_blocks.0.img_mod.lin.weight": (12, (4, 256), bytes(576)),
    "txt_in.individual_token_refiner.blocks.0.norm1.weight": (0, (8,), bytes(32)),
    "img_in.proj.weight": (1, (8, 16, 1, 2, 2), bytes(1024)),
    "final_layer.linear.weight": (14, (1, 256), bytes(210)),
}
LORA = {"diffusion_model.clean_x_embedder.proj.lora_A.weight": SQUARE}
SCALED = {"a.weight": SQUARE.to(E4M3), "a.scale_weight": torch.zeros(1)}
PACKED = {"a": SQUARE.to(UINT8), "a.quant_state.bitsandbytes__nf4": torch.zeros(1)}
FILES: dict[str, Write] = {
    "empty.safetensors": content(b""), "pointer": content(POINTER.encode()), "page": content(PAGE.encode()),
    "page without a title": content(b"\n <html>" + bytes(50)), "zeros": content(bytes(4096)),
    "page after comments": content(b"<!-- a --> <!---->\n<html>" + bytes(50)), "short": content(b"abc"),
    "long comments": content(b"<!---->" * 280 + b"x"), "json": content(b'{"error": "Repository not found"}'),
    "pointer without a size": content(POINTER.partition("size")[0].encode() + b"size " + b"9" * 1500),
    "words": content(b"hello world, this is no file of weights"), "braces": header(b"{ab}", 64),
    "header cut off": content((40).to_bytes(8, "little") + b'{"a":'), "odd braces": header(b"{]", 0),
    "huge header": content((2**39).to_bytes(8, "little") + b"{]"), "impossible": content(b"\xff" * 8),
    "no tensor.safetensors": header(b"{}", 0), "a list": header(b"[]"), "a number": header(b'{"a": 1}'),
    "deep": header(b'{"a": ' + b"[" * 100_000), "few bytes": header(tensor(shape=[3])),
    "odd type": header(tensor(dtype="F3", shape=[3])), "odd side": header(tensor(shape=["x"])),
    "endless side": header(b'{"a": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 8]}}'),
    "half a side": header(tensor(shape=[0.5])), "list of types": header(tensor(dtype=["F32"])),
    "good.safetensors": header(tensor()), "shard-00002-of-00003.safetensors": header(tensor()),
    "paint4k-int4-FP8.safetensors": saved({"a": SQUARE.to(E4M3)}), "paint4k.safetensors": header(tensor()),
    "scaled": saved({"a": SQUARE.to(E5M2), "scaled_fp8": torch.zeros(1)}), "scales": saved(SCALED),
    "scaled int8": saved({"a": SQUARE.to(INT8), "a.weight_scale": torch.zeros(1)}), "nf4": saved(PACKED),
    "bitsandbytes": saved({"a": SQUARE.to(INT8), "a.SCB": torch.zeros(2)}), "lora": saved(LORA),
    "plain": saved({"a": SQUARE, "position_ids": torch.zeros(3, dtype=INT8)}),
    "flux": saved({"double_blocks.0.img_attn.norm.key_norm.scale": torch.zeros(8), "b": SQUARE.bfloat16()}),
    "flux dev": saved({"double_blocks.0.img_attn.norm.key_norm.scale": SQUARE, "guidance_in.x": SQUARE + 0}),
    "sd3 and vae": saved({
        "model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight": torch.zeros(1),
        "first_stage_model.decoder.conv_in.weight": torch.zeros(1),
    }),
    "hunyuan.gguf": partial(write_gguf, tensors=HUNYUAN),
    "unknown kinds.gguf": partial(write_gguf, tensors={"a.weight": (99, (2, 32), bytes(68))}),
    "old.gguf": content(b"GGUF\x01\0\0\0" + bytes(16)),
    "odd.gguf": content(gguf(text(b"a") + b"\x63\0\0\0", 1)),
    "garbage.pt": content(archive(b"\x80\x02" + b"garbage" * 20)),
    "old.pt": lambda file: torch.save({"a": SQUARE}, file, _use_new_zipfile_serialization=False),
    "code.pt": content(archive(b"cos\nmkdir\n(Va\ntR.")),
    "wrapped.ckpt": lambda file: torch.save({"state_dict": {"a": SQUARE}, "epoch": 3}, file),
    "long": broken(header(tensor()), lambda data: data + b"more"),
    "cut": broken(header(tensor()), lambda data: data[:-3]),
    **{f"cut at {end}.gguf": broken(partial(write_gguf, tensors=HUNYUAN), lambda data, end=end: data[:end])
       for end in (6, 40, 100, -64)},
    "cut.pt": broken(torch_file, lambda data: data[: len(data) // 2]), "notes.pt": notes,
    "short record.pt": broken(torch_file, partial(packed, cut=3)),
    "torn.pt": broken(torch_file, lambda data: b"PK" + data[2:200]),
    "compressed.pt": broken(torch_file, partial(packed, kind=zipfile.ZIP_DEFLATED)),
}  # fmt: skip


def told(facts: Inspection) -> str:
    facts = replace(facts, path="", file_bytes=0, parts={})
    return text_of(facts)


def test_what_is_told_of_files(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for name, write in FILES.items():
        file = tmp_path / (name if "." in name else f"{name}.safetensors")
        write(file)
        lines.append(f"{name}: {told(inspect_checkpoint(file))}")
        if name in ("good.safetensors", "lora", "sd3 and vae", "shard-00002-of-00003.safetensors"):
            lines.append(f"  as a transformer: {text_of(inspect_checkpoint(file, 'transformer').problems)}")
    assert "\n".join(lines) == snapshot


def test_what_is_told_of_folders_and_parts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    lines = list[str]()

    def tell(title: str, path: Path, part: str = "") -> None:
        facts = inspect_checkpoint(path, part)
        lines.append(f"{title}: {told(facts)}")
        lines.extend(f"  {name}: {told(inspected)}" for name, inspected in facts.parts.items())

    tell("a model", folder)
    for part, place in (
        ("vae", "transformer"), ("image_encoder", "text_encoder_2"), ("text_encoder", "tokenizer"),
        ("tokenizer", "transformer"), ("tokenizer", "tokenizer"),
    ):  # fmt: skip
        tell(f"{part} as {place}", folder / part, place)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    gone = "single_transformer_blocks.0.proj_mlp.bias"
    for title, changed in {
        "one is missing": {name: value for name, value in tensors.items() if name != gone},
        "one is foreign": tensors | {"extra.weight": torch.zeros(1)},
        "scaled": {**{name: value.to(E4M3) for name, value in tensors.items()}, "x.scale_weight": SQUARE},
        "prefixed": with_prefix("diffusion_model.")(tensors), "comfyui": comfyui_names(tensors),
        "original": original_names(tensors),
        "checkpoint": with_prefix("model.diffusion_model.")(original_names(tensors)),
        "comfyui checkpoint": with_prefix("model.diffusion_model.")(comfyui_names(tensors)),
    }.items():  # fmt: skip
        save_file({name: value.contiguous() for name, value in changed.items()}, file)
        tell(title, file, "transformer")
    shutil.rmtree(folder / "vae")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("nothing")
    tell("no weights", mine)
    tell("no tokenizer", mine, "tokenizer")
    for name in ("a", "b"):
        FILES["good.safetensors"](mine / f"{name}.safetensors")
        tell(f"with {name}", mine)
    index = mine / "model.safetensors.index.json"
    both = {"a": "a.safetensors", "b": "a.safetensors"}
    for shards in (both, {}, {"a": "none"}, {"a": "../x"}, {"a": ["x"]}):
        index.write_text(json.dumps({"weight_map": shards}))
        tell(f"index {shards}", mine)
    index.unlink()
    (mine / "a.safetensors").rename(mine / "a-00001-of-00002.safetensors")
    tell("no index", mine)
    inspected = [mine / "b.safetensors"], [file, "--as", "vae"], [mine / "none"], [folder]
    for path, *part in inspected:
        output = main(["inspect", str(path), *map(str, part)]), *capsys.readouterr()
        lines.append(f"inspect {Path(path).name}: {output[0]}\n{output[1]}{output[2]}".rstrip())
    assert without("\n".join(lines), folder=tmp_path) == snapshot


LORAS: dict[str, Write] = {
    "empty": content(b""), "pickle": lambda file: torch.save(PAIR, file), "no tensor": saved({}),
    "whole model": saved({"transformer_blocks.0.attn.to_q.weight": SQUARE}), "fits": saved(PAIR),
    "another": saved({f"layers.0.attention.q.lora_{side}.weight": SQUARE + 0 for side in "AB"}),
    "text encoder": saved({"lora_te_layers_0_q.lora_down.weight": SQUARE}),
    "unpaired": saved({DOWN: PAIR[DOWN]}),
    "flux": saved(PAIR, {"modelspec.architecture": "flux-1-dev/lora"}),
    "lokr": saved({"lora_unet_x.lokr_w1": SQUARE}),
    "dora": saved({**PAIR, "transformer_blocks.0.attn.to_q.dora_scale": SQUARE}),
    "ranks": saved({**PAIR, DOWN: torch.zeros(3, 32)}), "cut": lambda file: (saved(PAIR)(file), cut(file)),
    **{f"metadata {number}": saved(PAIR, facts) for number, facts in enumerate((
        {"modelspec.trigger_phrase": "  a  red\nballoon "}, {"ss_tag_frequency": "[1, 2"},
        {"ss_tag_frequency": '{"10_x": {"sks dog": 40, "grass": 30, "a": 3}}'},
        {"ss_tag_frequency": '{"x": 3}'},
        {"trigger_words": "x" * 999}, {"lora_adapter_metadata": "[3]"},
        *({"lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in facts})}
          for facts in (
            [("r", 2), ("lora_alpha", 8)], [("lora_alpha", 8), ("use_rslora", True)],
            [("lora_alpha", "many")],
            [("lora_alpha", 8), ("alpha_pattern", {"attn.to_q": 1})],
        )),
    ))},
}  # fmt: skip


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def test_what_is_told_of_loras(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines, file = list[str](), tmp_path / "style.safetensors"
    for name, write in LORAS.items():
        write(file)
        try:
            lora = read_lora(file)
            facts = text_of((lora.keys, [words[:60] for words in lora.triggers], lora.pairs))
            same = [line.partition(":")[0] for line in lines if line.endswith(f": {facts}")]
            lines.append(f"{name}: {f'like {same[0]}' if same else facts}")
        except InputError as error:
            lines.append(f"{name}: {error.setting} {error.message} {error.remedy}")
        file.unlink()
    assert re.sub(r"\d+ bytes", "n bytes", "\n".join(lines)) == snapshot

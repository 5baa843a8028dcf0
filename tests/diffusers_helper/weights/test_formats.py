"""Tests that each format of weights is read by its header, and that each kind of broken file is told."""

import collections
import copyreg
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.tensors import NotWeights, TensorInfo
from tests.support.hostile import HOSTILE, archive, gguf, safetensors, sparse, tensor, text
from tests.support.weights import write_gguf

STATE = {
    "layer.weight": torch.zeros(4, 6, dtype=torch.bfloat16),
    "layer.bias": torch.nn.Parameter(torch.zeros(4)),
    "count": torch.zeros((), dtype=torch.int64),
}


def test_gguf_is_read_in_the_order_of_torch(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "a.gguf",
        {"a.weight": (12, (2, 256), bytes(288)), "a.bias": (0, (3,), bytes(12))},
        {"general.name": "FramePack F1"},
    )
    contents, size = read_contents(file), file.stat().st_size
    assert contents.format == "gguf"
    assert contents.tensors == {
        "a.weight": TensorInfo("Q4_K", (2, 256), 288, size - 320),
        "a.bias": TensorInfo("float32", (3,), 12, size - 32),
    }
    assert contents.metadata["general.name"] == "FramePack F1"
    assert contents.metadata["numbers"] == "3 values"
    assert contents.problems == ()


@pytest.mark.parametrize("wrap", [dict, collections.OrderedDict])
def test_a_checkpoint_of_torch_is_listed(tmp_path: Path, wrap: type[dict[str, Any]]) -> None:
    file = tmp_path / "model.ckpt"
    turned = torch.arange(6.0).reshape(2, 3).T[1:]
    small = torch.ones(3).to(torch.float8_e4m3fn)
    content = {**STATE, "turned": turned, "small": small}
    torch.save({"state_dict": wrap(content), "epoch": 3}, file)  # what training writes
    contents = read_contents(file)
    assert (contents.format, contents.problems) == ("pickle", ())
    assert {name: one._replace(offset=0) for name, one in contents.tensors.items()} == {
        "layer.weight": TensorInfo("bfloat16", (4, 6), 48),
        "layer.bias": TensorInfo("float32", (4,), 16),
        "count": TensorInfo("int64", (), 8),
        "turned": TensorInfo("float32", (2, 2), 16, strides=(1, 3)),
        "small": TensorInfo("float8_e4m3fn", (3,), 3),
    }
    data, begin = file.read_bytes(), contents.tensors["turned"].offset
    assert data[begin : begin + 4] == turned[0, 0].numpy().tobytes()
    torch.save(STATE, file, _use_new_zipfile_serialization=False)
    with pytest.raises(NotWeights, match=r"is in the format of torch before version 1\.6, "):
        read_contents(file)


def test_a_pickle_that_would_run_code_is_told(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Bad:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(mark),)

    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(2), "b": Bad()}, file)
    contents = read_contents(file)
    assert contents.tensors["a"][:3] == ("float32", (2,), 8)
    assert contents.problems[0].startswith(
        f"contains more than weights: it names {os.mkdir.__module__}.mkdir"
    )
    assert not mark.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cos\nmkdir\n(V{mark}\ntR.",  # a call
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93V{mark}\n\x85R.",
        b"(V{mark}\nios\nmkdir\n.",  # as old classes were made
        b"(cos\nmkdir\nV{mark}\no.",
        b"\x80\x02cos\nmkdir\nV{mark}\n\x85\x81.",  # as new ones are
        b"\x80\x02cos\nX\n)R}V__setstate__\ncos\nmkdir\nsbV{mark}\nb.",  # by the state of an object
        b"\x80\x02cbuiltins\ngetattr\ncos\nX\nV__class__\n\x86RV{mark}\n\x85R.",
        b"\x82\x01V{mark}\n\x85R.",  # by a number of the registry
    ],
)
def test_no_opcode_of_a_pickle_calls_what_the_pickle_names(opcodes: bytes, tmp_path: Path) -> None:
    mark, file = tmp_path / "ran", tmp_path / "model.pt"
    file.write_bytes(archive(opcodes.replace(b"{mark}", str(mark).encode())))
    copyreg.add_extension("os", "mkdir", 1)
    try:
        found = read_contents(file).problems[0]
    except NotWeights as error:
        found = str(error)
    finally:
        copyreg.remove_extension("os", "mkdir", 1)
    assert found.startswith(("contains more than weights: it names ", "is damaged, or contains no weights"))
    assert not mark.exists()


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "a.ckpt")
    assert read_contents(tmp_path / "a.ckpt").format == "safetensors"
    torch.save(STATE, tmp_path / "b.safetensors")
    assert read_contents(tmp_path / "b.safetensors").format == "pickle"


@pytest.mark.parametrize(
    "name",
    [
        "hash of a nested tuple as a key.pt",
        "hash in a dict of marks.pt",
        "dicts with 2**60 paths.pt",
        "long names of functions.pt",
    ],
)
def test_a_small_pickle_that_would_take_forever(tmp_path: Path, name: str) -> None:
    HOSTILE["pickle"]()[name](tmp_path / "a.pt")
    with pytest.raises(NotWeights, match="is damaged, or contains no weights"):
        read_contents(tmp_path / "a.pt")


def test_a_tuple_shared_by_many_calls_is_not_copied(tmp_path: Path) -> None:
    shared = b"(" + b"K\x01" * 100_000 + b"tq\x00ctorch\nSize\nq\x01"
    file = tmp_path / "a.pt"
    file.write_bytes(archive(b"\x80\x02" + shared + b"h\x01h\x00R" * 100_000 + b"."))
    assert read_contents(file).tensors == {}


def holes() -> dict[str, Callable[[Path], object]]:
    """Return files of 1 TB, nearly all of it a hole, whose sizes and counts are possible in such a file."""
    most = 2**39
    starts = {
        "a header.safetensors": struct.pack("<Q", most) + b"{",
        "a text.gguf": gguf(struct.pack("<Q", most), 1),
        "a list of texts.gguf": gguf(text(b"a") + struct.pack("<IIQ", 9, 8, most // 8), 1),
        "lists in a list.gguf": gguf(text(b"a") + struct.pack("<IIQ", 9, 9, most // 16), 1),
        "a skipped list.gguf": gguf(text(b"a") + struct.pack("<IIQ", 9, 0, most), 2),
        "values.gguf": gguf(count=most // 16),
        "tensors.gguf": gguf(tensor_count=most // 32),
        "sides.gguf": gguf(tensors=text(b"a") + struct.pack("<I", 2**32 - 1), tensor_count=1),
    }

    def writer(start: bytes, end: bytes = b"") -> Callable[[Path], object]:
        def write(file: Path) -> None:
            sparse(file, start, 2**40)
            with file.open("ab") as stream:
                stream.write(end)

        return write

    directory = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, most, 2**40 - most)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 2**40, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return {name: writer(start) for name, start in starts.items()} | {
        "a directory.pt": writer(b"PK\x03\x04", directory + locator + end)
    }


@pytest.mark.parametrize("name", holes())
def test_a_size_that_no_header_has_is_refused_at_once(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    holes()[name](file)
    with pytest.raises(NotWeights, match=r"is damaged, or contains|has a damaged (GGUF )?header"):
        read_contents(file)


def test_names_of_types_are_few_and_short(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    kinds = b"".join(text(b"%d" % n) + struct.pack("<IQIQ", 1, 32, 1000 + n, 0) for n in range(9))
    file.write_bytes(gguf(tensors=kinds, tensor_count=9))
    with pytest.raises(NotWeights, match="has 9 GGUF types that are not known"):
        read_contents(file)
    file.write_bytes(safetensors({"a": tensor(dtype="x" * 1000)}))
    assert len(read_contents(file).tensors["a"].dtype) == 99

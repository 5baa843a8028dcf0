"""Files of hostile strangers, each made to cost its reader memory, time or the process."""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.support.heic import box

MB = 2**20
_GLOBAL = b"ctorch._utils\n_rebuild_tensor_v2\n"


def safetensors(header: bytes | dict[str, Any], rest: int = 8, length: int | None = None) -> bytes:
    """Return a safetensors file with this header, and so many bytes behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(rest)


def tensor(shape: object = (2,), dtype: object = "F32", offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def gguf(values: bytes = b"", count: int = 0, tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, count) + values + tensors


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def archive(pickle: bytes, byteorder: bytes = b"little", method: int = zipfile.ZIP_STORED) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        made.writestr("archive/data.pkl", pickle)
        made.writestr("archive/byteorder", byteorder)
        made.writestr("archive/data/0", bytes(16))
    return out.getvalue()


def sparse(file: Path, data: bytes, size: int) -> None:
    """Write a file that takes little room on the disk, whatever its size."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.truncate(size)


def doubled(times: int) -> bytes:
    """Return opcodes of a nested tuple whose parts are shared, which has 2**times leaves."""
    return b")" + b"2\x86" * times


def shared_dicts(depth: int) -> bytes:
    """Return opcodes of dicts with the same dict under two keys, which has 2**depth paths."""
    inner = b"}q\x00"
    for place in range(depth):
        inner += (
            b"}q" + bytes([place + 1]) + b"(U\x01ah" + bytes([place]) + b"U\x01bh" + bytes([place]) + b"u"
        )
    return inner


def _rebuilt(sides: bytes, key: bytes = b"U\x011", values: bytes = b"K\x04") -> bytes:
    storage = b"(U\x07storagectorch\nFloatStorage\n" + key + b"U\x03cpu" + values + b"tQ"
    return _GLOBAL + b"(" + storage + b"K\x00" + sides + b")\x89}tR"


def _pickles() -> Iterator[tuple[str, bytes]]:
    head = b"\x80\x02"
    bomb = doubled(60)
    yield "hash of a nested tuple as a key", head + b"}" + bomb + b"K\x01s."
    yield "hash in a dict of marks", head + b"(" + bomb + b"K\x01d."
    yield "hash of a call as a key", head + b"}ctorch\nSize\n" + bomb + b"RK\x01s."
    yield "text of a nested tuple as a name", b"\x80\x04" + bomb + b"\x8c\x01x\x93."
    yield "text of a nested tuple as an attribute", b"\x80\x04\x8c\x01x" + bomb + b"\x93."
    for what, tensor in {
        "text of a nested tuple as a record": _rebuilt(b"K\x02\x85", key=bomb),
        "size of a storage that is no number": _rebuilt(b"K\x02\x85", values=bomb),
        "shape of texts": _rebuilt(b"U\x01x\x85"),
        "shape of 200,000 sides": _rebuilt(b"(" + b"K\x02" * 200_000 + b"t"),
        "shape of a negative side": _rebuilt(b"J\xff\xff\xff\xff\x85"),
    }.items():
        yield what, head + b"}U\x01a" + tensor + b"s."
    yield "dicts with 2**60 paths", head + shared_dicts(60) + b"."
    yield "a dict that holds itself", head + b"}q\0(U\x01ah\0U\x01bh\0u."
    yield "a million dicts", head + b"]" + b"(" + b"}" * 2_000_000 + b"e."
    copies = b"(" + b"K\x01" * 100_000 + b"l" + b"q\0" + b"0" + b"ctorch\nSize\nq\x010"
    yield "a list as arguments of many calls", head + copies + b"h\x01h\0R" * 100_000 + b"."
    yield "a text as arguments", head + b"ctorch\nSize\nX" + struct.pack("<I", 8 * MB) + b"x" * 8 * MB + b"R."
    yield "a text of 2 GB that is not there", head + b"X" + struct.pack("<I", 2**31) + b"x."
    yield "a number of 2 GB that is not there", head + b"\x8b" + struct.pack("<I", 2**31 - 1) + b"1."
    yield "a number of a million digits", head + b"I" + b"9" * 1_000_000 + b"\n."
    number = b"\x8b" + struct.pack("<I", MB) + b"\x7f" * MB
    yield "a long number as a key", head + b"}" + number + _rebuilt(b"K\x02\x85") + b"s."
    name = b"X" + struct.pack("<I", 4 * MB) + b"m" * 4 * MB
    yield "long names of functions", b"\x80\x04" + name + b"\x94" + b"\x8c\x01x\x93h\0" * 50_000 + b"."
    yield "an unknown opcode", head + b"\xff."
    yield "marks without an end", head + b"(" * 500_000
    yield "a stack that is empty", head + b"0."
    yield "deep lists", head + b"]" * 300_000 + b"a" * 299_999 + b"."
    names = b"".join(b"X\x04\x01\0\0" + f"{n:0260}".encode() + b"h\0" for n in range(40_000))
    yield "many tensors with long names", head + _rebuilt(b"K\x02\x85") + b"q\x000}(" + names + b"u."
    yield "many kinds of storages", head + b"}(" + b"".join(
        b"U\x06t%05d" % n + _rebuilt(b"K\x02\x85").replace(b"FloatStorage", b"Kind%05dStorage" % n)
        for n in range(5_000)
    ) + b"u."  # fmt: skip


def _archives() -> Iterator[tuple[str, Callable[[Path], object]]]:
    good = b"\x80\x02}U\x01a" + _rebuilt(b"K\x02\x85", key=b"U\x010") + b"s."

    def byteorder(file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("archive/data.pkl", good)
            with made.open("archive/byteorder", "w", force_zip64=True) as stream:
                for _ in range(400):
                    stream.write(bytes(MB))

    def liar(method: int) -> Callable[[Path], object]:
        def write(file: Path) -> None:
            data = archive(bytes(100 * MB), method=method)
            # The central directory says that the list of tensors is short.
            place = data.index(b"PK\x01\x02")
            file.write_bytes(data[: place + 24] + struct.pack("<I", 100) + data[place + 28 :])

        return write

    def many(file: Path) -> None:
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("archive/data.pkl", good)
        data = file.read_bytes()
        place = data.index(b"PK\x01\x02")
        central = data[place : data.index(b"PK\x05\x06")]
        number = 400_000
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(central) * number, place, 0)
        file.write_bytes(data[:place] + central * number + end)

    def zip64(size: int, offset: int, count: int) -> bytes:
        record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
        locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 4, 1)
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        return b"PK\x03\x04" + record + locator + end

    yield "byteorder of 400 MB.pt", byteorder
    yield "a packed list of 100 MB that says 100 bytes.pt", liar(zipfile.ZIP_DEFLATED)
    yield "the same in bzip2.pt", liar(zipfile.ZIP_BZIP2)
    yield "400,000 records.pt", many
    yield "zip64 with a directory of 8 EB.pt", lambda f: f.write_bytes(zip64(2**63 - 1, 0, 2**62))
    yield "zip64 with a negative place.pt", lambda f: f.write_bytes(zip64(46, 2**63, 1))
    yield "zip64 with 2**62 records.pt", lambda f: f.write_bytes(zip64(0, 4, 2**62))
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0)
    yield "only an end.pt", lambda f: f.write_bytes(end)
    yield "a list of 4 GB in a hole.pt", lambda f: sparse(f, archive(good)[:200], 4 * 2**30)


def _headers() -> Iterator[tuple[str, bytes]]:
    yield "a shape of a text and 3000000000", safetensors({"a": tensor(["a", 3_000_000_000])})
    yield "200,000 sides", safetensors({"a": tensor([2] * 200_000)})
    sides = b",".join([b"9" * 4000] * 200)
    long = b'{"a":{"dtype":"F32","shape":[' + sides + b'],"data_offsets":[0,8]}}'
    yield "sides of 4000 digits", safetensors(long)
    yield "a side of true", safetensors({"a": tensor([True, 2])})
    yield "a shape of lists", safetensors({"a": tensor([[3_000_000_000]])})
    yield "a shape that is a text", safetensors({"a": tensor("ab")})
    yield "negative offsets", safetensors({"a": tensor(offsets=(-(2**80), 8))})
    yield "offsets of texts", safetensors({"a": tensor(offsets=("x", "y"))})
    yield "a type that is a list", safetensors({"a": tensor(dtype=["F32"])})
    yield "a type of 8 MB", safetensors({"a": tensor(dtype="x" * 8 * MB)})
    yield "100,000 types", safetensors({f"a{n}": tensor(dtype=f"T{n}") for n in range(100_000)})
    yield "a name of 8 MB", safetensors({"x" * 8 * MB: tensor()})
    yield "millions of lists", safetensors(b'{"__metadata__":[' + b"[]," * 30_000_000 + b"[]]}")
    yield "millions of numbers", safetensors(b'{"a":[' + b"1," * 20_000_000 + b"1]}")
    yield "deep lists", safetensors(b'{"a":' + b"[" * 5_000_000 + b"}")
    clean = {"clean_x_embedder.proj.weight": tensor()}
    for what, number in (("number 10**9", "999999999"), ("no number", "x"), ("6000 digits", "9" * 6000)):
        block = {f"transformer_blocks.{number}.attn.to_q.weight": tensor()}
        yield f"a block of {what}", safetensors(clean | block)
    numbers = {"general.name": 7, "title": [1]}
    yield "metadata of numbers", safetensors({"__metadata__": numbers, "a": tensor()})


def _ggufs() -> Iterator[tuple[str, bytes]]:
    lists = b"".join(struct.pack("<IQ", 9, 1) for _ in range(5000)) + struct.pack("<IQB", 0, 1, 1)
    yield "lists in lists in lists", gguf(text(b"a") + struct.pack("<I", 9) + lists, 1)
    name = text(b"general.alignment")
    yield "an alignment of words", gguf(name + struct.pack("<I", 8) + text(b"wide"), 1)
    yield "an alignment of -5", gguf(name + struct.pack("<Ii", 5, -5), 1)
    yield "an alignment of infinity", gguf(name + struct.pack("<If", 6, float("inf")), 1)
    yield "an alignment of 2**63", gguf(name + struct.pack("<IQ", 10, 2**63), 1)
    yield "a list of 2**60 numbers", gguf(text(b"a") + struct.pack("<IIQ", 9, 12, 2**60), 1)
    texts = struct.pack("<IIQ", 9, 8, 60_000_000)
    yield "a list of 60,000,000 texts", gguf(text(b"a") + texts + bytes(40 * MB), 1)
    lists = struct.pack("<IIQ", 9, 9, 3_000_000) + struct.pack("<IQ", 0, 0) * 3_000_000
    yield "3,000,000 empty lists", gguf(text(b"a") + lists, 1)
    one = text(b"a") + struct.pack("<IB", 0, 1)
    yield "900,000 values", gguf(b"".join(text(b"%07d" % n) + one[9:] for n in range(900_000)), 900_000)
    yield "2**64-1 tensors", gguf(tensor_count=2**64 - 1)
    side = struct.pack("<IQIQ", 1, 2**63, 0, 2**63)
    yield "tensors of 2**63 values", gguf(tensors=text(b"a") + side, tensor_count=1)
    kinds = b"".join(text(b"%07d" % n) + struct.pack("<IQIQ", 1, 32, 1000 + n, 0) for n in range(500_000))
    yield "500,000 types", gguf(tensors=kinds, tensor_count=500_000)
    yield "a text of 2**63 bytes", gguf(struct.pack("<Q", 2**63), 1)


def _others() -> Iterator[tuple[str, bytes]]:
    yield "comments.safetensors", b"<!---->" * 290 + b"x"
    yield "pointer.safetensors", b"version https://git-lfs.github.com/spec/v1\nsize " + b"9" * 1500 + b"\n"
    deep = b'{"weight_map":' + b"[" * 1_000_000
    yield "deep/model.safetensors.index.json", deep
    yield "list/model.safetensors.index.json", b'{"weight_map":[' + b"[]," * 4_000_000 + b"[]]}"
    many = {f"a{n}": f"model-{n:05}-of-90000.safetensors" for n in range(90_000)}
    yield "many/model.safetensors.index.json", json.dumps({"weight_map": many}).encode()
    outside = {"a": "../../../../etc/passwd", "b": "/etc/passwd"}
    yield "outside/model.safetensors.index.json", json.dumps({"weight_map": outside}).encode()
    yield "bytes/model.safetensors.index.json", b"\xff\xfe\x00"
    yield "long/model.safetensors.index.json", json.dumps({"weight_map": {"x" * MB: "y" * MB}}).encode()


Files = dict[str, Callable[[Path], object]]


def _written(files: Iterable[tuple[str, bytes]], ending: str = "") -> Files:
    def writer(content: bytes) -> Callable[[Path], object]:
        return lambda file: file.write_bytes(content)

    return {f"{name}{ending}": writer(content) for name, content in files}


def hostile_headers() -> Files:
    hole = struct.pack("<Q", 90 * MB) + b"{"
    found = _written(_headers(), ".safetensors")
    found["a header of 90 MB in a hole.safetensors"] = lambda file: sparse(file, hole, 200 * MB)
    return found


HOSTILE: dict[str, Callable[[], Files]] = {
    "safetensors": hostile_headers,
    "GGUF": lambda: _written(_ggufs(), ".gguf"),
    "pickle": lambda: _written(((name, archive(data)) for name, data in _pickles()), ".pt"),
    "archive": lambda: dict(_archives()),
    "other": lambda: _written(_others()),
}
"""Hostile weights of each kind."""


def write_all(files: Files, folder: Path) -> list[Path]:
    """Write such files into a folder, and return their paths."""
    for name, write in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    return [folder / name for name in files]


def hostile_loras() -> Files:
    return _written(_loras())


def _loras() -> Iterator[tuple[str, bytes]]:
    def pair(number: object) -> dict[str, Any]:
        layer = f"transformer_blocks.{number}.attn.to_q"
        return {f"{layer}.lora_A.weight": tensor([1, 2]), f"{layer}.lora_B.weight": tensor([2, 1])}

    def many(count: int) -> dict[str, Any]:
        return {name: entry for number in range(count) for name, entry in pair(number).items()}

    yield "digits.safetensors", safetensors(pair("9" * 6000))
    pattern = {f"transformer_blocks.{n}.x": 1.0 for n in range(60_000)}
    noted = {"lora_adapter_metadata": json.dumps({"alpha_pattern": pattern})}
    yield "patterns.safetensors", safetensors({"__metadata__": noted, **many(20_000)})
    tags = '{"a":{' + ",".join(f'"{n}":1' for n in range(900_000)) + "}}"
    for what, notes in {
        "adapter": {"lora_adapter_metadata": 7}, "deep notes": {"ss_tag_frequency": "[" * 9_000_000},
        "tags": {"ss_tag_frequency": tags}, "words": {"trigger_words": "a " * 6_000_000},
    }.items():  # fmt: skip
        yield f"{what}.safetensors", safetensors({"__metadata__": notes, **many(2)})
    yield "many.safetensors", safetensors(many(100_000))


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    made = (
        struct.pack(">I4s", len(data), kind) + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def hostile_recipes() -> Files:
    """Return what writes each hostile file in place of one with a recipe, by the file's name."""
    return _written(_recipes())


def _recipes() -> Iterator[tuple[str, bytes]]:
    packed = b"Longtake recipe\0\1\0\0\0" + zlib.compress(b" " * 4 * MB, 9)
    yield "2000 packed texts.png", png(*[(b"iTXt", packed)] * 2000)
    plain = b"Longtake recipe\0\0\0\0\0" + b" " * (3 * MB)
    yield "texts of 3 MB.png", png(*[(b"iTXt", plain)] * 30)
    yield "a packed text of 256 MB.png", png((b"iTXt", b"Longtake recipe\0\1\0\0\0" + _large()))
    yield "100,000 chunks.png", png(*[(b"teXt", b"")] * 120_000)
    yield "pictures.png", png(*[(b"ltPc", bytes(50 * MB))] * 2)
    yield "a chunk of 4 GB.png", b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 2**32 - 1, b"iTXt") + bytes(99)
    mp4 = box(b"ftyp", bytes(16))
    yield "1000 boxes.mp4", mp4 + box(b"free", b"") * 2000
    picture = bytes.fromhex("6c6f6e6774616b658070696374757265")
    yield "pictures.mp4", mp4 + box(b"uuid", picture + bytes(40 * MB)) * 3
    yield "a box of 2**63 bytes.mp4", mp4 + struct.pack(">I4sQ", 1, b"moov", 2**63)
    comment = box(b"\xa9cmt", box(b"data", bytes(8) + b" " * (4 * MB - 100)))
    nested = box(b"moov", box(b"udta", box(b"meta", bytes(4) + box(b"ilst", comment))))
    yield "a comment of 4 MB.mp4", mp4 + nested
    steps = {"steps": 5}
    use = {"section": 0, "tile": 64, "precision": "fp32", "chunk": 4}
    for what, more in {
        "50,000 settings": {"settings": {f"setting {n}": "x" * 40 for n in range(50_000)}},
        "50,000 keys": {f"key {n}": 1 for n in range(50_000)},
        "80,000 spans": {"earlier": [{"sections": n + 1, "settings": {}} for n in range(80_000)]},
        "50,000 uses": {"vae": [use | {"section": n} for n in range(50_000)]},
        "a precision of 3 MB": {"vae": [use | {"precision": "x" * 3 * MB}]},
        "60,000 packages": {"made_with": {f"package {n}": "1" * 30 for n in range(60_000)}},
    }.items():
        yield f"{what}.json", json.dumps({"recipe": 1, "settings": steps} | more).encode()
    yield "lists.json", b'{"recipe":1,"settings":[' + b"[]," * 1_300_000 + b"[]]}"
    yield "deep.json", b'{"recipe":1,"settings":' + b"[" * 4_000_000
    yield "long numbers.json", b'{"recipe":1,"settings":{"seed":' + b"9" * 4_000_000 + b"}}"
    webp = b"RIFF" + struct.pack("<I", 2**32 - 1) + b"WEBPVP8X" + struct.pack("<I", 2**31) + bytes(99)
    yield "a chunk of 2 GB.webp", webp


def _large() -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(8 * MB)) for _ in range(32)) + packer.flush()

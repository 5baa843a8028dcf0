"""Tests that pictures are decoded in processes with limits, so that hostile ones do not hold up others."""

import asyncio
import io
import os
import re
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.jobs.service import JobService
from app.reading.pictures import PlainPicture, Size, read_picture
from app.reading.process import Limits, ReadingProcess
from app.ui import pictures as pictures_module
from app.ui.catalogue import Catalogue
from app.ui.pictures import Pictures, Upload, add_upload
from diffusers_helper.errors import InputError
from tests.support.pages import write_photo

MANY = 2000


def segments(jpeg: bytes) -> list[bytes]:
    """Return the parts of a JPEG after its first marker, each scan with its data."""
    found, at = [], 2
    while jpeg[at + 1] != 0xD9:
        end = at + 2 + struct.unpack(">H", jpeg[at + 2 : at + 4])[0]
        if jpeg[at + 1] == 0xDA:
            while jpeg[end] != 0xFF or jpeg[end + 1] == 0:
                end += 1
        found.append(jpeg[at:end])
        at = end
    return found


def many_scans(side: int) -> bytes:
    """Return a progressive JPEG that goes over the whole picture again and again."""
    content = io.BytesIO()
    Image.new("RGB", (side, side), (200, 40, 90)).save(content, "JPEG", progressive=True)
    parts = segments(content.getvalue())
    scans = [number for number, part in enumerate(parts) if part[1] == 0xDA]
    second = scans[1]
    return b"\xff\xd8" + b"".join(parts[: second + 1]) + parts[second] * MANY + b"\xff\xd9"


def wide_png(side: int) -> bytes:
    """Return a PNG of 16 bits a grey pixel, far smaller than its pixels."""
    packed = zlib.compressobj(1)
    row = bytes(1 + side * 2)
    body = b"".join(packed.compress(row) for _ in range(side)) + packed.flush()

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def peak_bytes(pid: int) -> int:
    """Return the peak of a process's memory, or 0 if it has ended itself since, because nobody asked it."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


@pytest.fixture
def process() -> Any:
    made = ReadingProcess(Limits(memory=2**30, seconds=20, wall_seconds=60.0))
    yield made
    made.close()


def test_it_returns_size_and_pixels(process: ReadingProcess, tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "photo.png")
    found = process.read(read_picture, photo)
    assert isinstance(found, PlainPicture)
    assert found.size == Size(320, 240, 320, 240)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.png))), np.asarray(Image.open(photo)))
    turned, exif = Image.new("RGB", (40, 20)), Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    found = process.read(read_picture, tmp_path / "turned.jpg")
    assert isinstance(found, PlainPicture)
    assert found.size == Size(20, 40, 20, 40)


def test_it_refuses_with_the_same_words(process: ReadingProcess, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("text.jpg", "is not a picture"),
        ("missing", "cannot be read"),
        ("pipe", "cannot be read"),
    ):
        with pytest.raises(InputError, match=f"{name} {words}|{name} is {words}"):
            process.read(read_picture, tmp_path / name)


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(
    process: ReadingProcess, tmp_path: Path
) -> None:
    path = tmp_path / "scans.jpg"
    path.write_bytes(many_scans(900))
    with pytest.raises(InputError, match=f"is a JPEG of {MANY + 2} scans; expected at most 64"):
        process.read(read_picture, path)


def test_closing_ends_the_picture_at_hand(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.readline(); print('begun', file=sys.stderr, flush=True); sys.stdin.read()"
    process = ReadingProcess(Limits(2**30, 20, 60.0), (sys.executable, "-c", code))

    async def closed() -> None:
        call = asyncio.create_task(
            asyncio.to_thread(process.read, read_picture, write_photo(tmp_path / "photo.png"))
        )
        while process._process is None:
            await asyncio.sleep(0.01)
        process.close()
        with pytest.raises(InputError):
            await call

    asyncio.run(closed())


@pytest.mark.slow
def test_large_pictures_at_once_take_the_memory_of_a_single_one(tmp_path: Path) -> None:
    """Six once took 7 GB."""
    pictures = Pictures()
    files = [tmp_path / name for name in ("wide0.png", "wide1.png", "scans.jpg")]
    for file in files:
        file.write_bytes(many_scans(3000) if file.suffix == ".jpg" else wide_png(8000))
    try:
        with ThreadPoolExecutor() as pool:
            judged = list(pool.map(pictures.judge, map(str, files)))
        assert [isinstance(size, Size) for size in judged] == [True, True, False]
        worker = pictures._process._process
        assert worker is not None
        assert peak_bytes(worker.pid) < 700e6
    finally:
        pictures.close()


def test_a_picture_is_decoded_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, photo = Pictures(), str(write_photo(tmp_path / "photo.png"))
    asked: list[Path] = []
    read = ReadingProcess.read

    def counted(process: ReadingProcess, reader: Any, path: Path) -> Any:
        asked.append(path)
        return read(process, reader, path)

    monkeypatch.setattr(ReadingProcess, "read", counted)

    try:
        with ThreadPoolExecutor() as pool:
            assert set(pool.map(pictures.judge, [photo] * 20)) == {Size(320, 240, 320, 240)}
        assert pictures.plain(photo).startswith(b"\x89PNG")
        assert len(asked) == 1
        for number in range(pictures_module._MOST_KEPT):
            assert isinstance(pictures.judge(str(write_photo(tmp_path / f"{number}.png"))), Size)
        asked.clear()
        assert isinstance(pictures.judge(photo), Size)
        assert not asked
        assert pictures.plain(photo).startswith(b"\x89PNG")  # decoded again: it was not kept
        assert len(asked) == 1
    finally:
        pictures.close()


def test_the_page_never_decodes_a_picture_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded in the web process")

    catalogue = Catalogue()
    photo = str(write_photo(tmp_path / "photo.png"))
    monkeypatch.setattr(Image, "open", refuse)
    service = JobService(tmp_path / "outputs")
    job = catalogue.submit(service, {"image": photo, "prompt": "a ball"})
    monkeypatch.undo()
    assert Image.open(job.folder / "input.png").size == (320, 240)
    catalogue.planner.pictures.close()


ADDED = [  # an upload, the name to add it by, and the name that it gets, or what is refused
    ("a", "x.gguf", "x.gguf"), ("a", "x.gguf", "x.gguf"), ("b", "x.gguf", "has another file named x.gguf"),
    ("a", "../../y.SAFETENSORS", "y.SAFETENSORS"), ("a", ".x.gguf", "cannot be added"),
    ("a", "x.png", "with the ending .gguf or .safetensors"), ("none/../../a", "z.gguf", "is not an upload"),
]  # fmt: skip


def test_an_upload_is_added_by_its_name_and_replaces_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    for name in "ab":
        (tmp_path / "uploads" / name).write_text(name)
    results = list[str]()
    for upload, name, _ in ADDED:
        try:
            file = Upload(path=f"uploads/{upload}")
            results.append(add_upload(file, name, tmp_path / "own", (".gguf", ".safetensors")))
        except InputError as error:
            results.append(str(error))
    for result, (_, _, expected) in zip(results, ADDED, strict=True):
        assert expected in result
    kept = {file.name: file.read_text() for file in (tmp_path / "own").iterdir()}
    assert kept == {"x.gguf": "a", "y.SAFETENSORS": "a"}

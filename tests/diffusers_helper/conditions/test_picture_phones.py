"""Tests of pictures as phones and cameras write them: HEIC, motion photos, gain maps, and raw files."""

import io
import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from diffusers_helper.conditions.picture_file import load_picture, size_of
from diffusers_helper.errors import PictureError
from tests.support.heic import box, heic

SIZE = (64, 48)
RED, WHITE, BLUE = (200, 60, 30), (255, 255, 255), (30, 30, 200)
EXIF_ORIENTATION = 0x0112


def marked(size: tuple[int, int] = SIZE) -> Image.Image:
    """Draw a red picture whose upper left quarter is white and whose upper right one is blue."""
    image = Image.new("RGB", size, RED)
    image.paste(WHITE, (0, 0, size[0] // 2, size[1] // 2))
    image.paste(BLUE, (size[0] // 2, 0, size[0], size[1] // 2))
    return image


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **{"quality": 95} | options)
    return content.getvalue()


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


def assert_same(content: bytes, expected: Image.Image, tolerance: float = 3) -> None:
    picture = load_picture(content)
    assert picture.size == expected.size
    difference = np.asarray(picture).astype(int) - np.asarray(expected).astype(int)
    assert np.abs(difference).mean() <= tolerance


def refusal(source: Path | bytes) -> PictureError:
    with pytest.raises(PictureError) as caught:
        load_picture(source)
    return caught.value


@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1"])
def test_a_heic_is_read(brand: bytes, bits: int, tmp_path: Path) -> None:
    content = heic([marked()], brand=brand, bits=bits)
    assert_same(content, marked())
    (tmp_path / "IMG_0001.JPG").write_bytes(content)  # the content counts, not the name
    assert size_of(tmp_path / "IMG_0001.JPG") == SIZE


TURNS = Image.Transpose
PROPERTIES: dict[str, tuple[list[bytes], list[Image.Transpose]]] = {
    "quarter": ([box(b"irot", b"\1")], [TURNS.ROTATE_90]),
    "half": ([box(b"irot", b"\2")], [TURNS.ROTATE_180]),
    "three quarters": ([box(b"irot", b"\3")], [TURNS.ROTATE_270]),
    "upside down": ([box(b"imir", b"\0")], [TURNS.FLIP_TOP_BOTTOM]),
    "mirrored": ([box(b"imir", b"\1")], [TURNS.FLIP_LEFT_RIGHT]),
    "both": ([box(b"irot", b"\3"), box(b"imir", b"\1")], [TURNS.ROTATE_270, TURNS.FLIP_LEFT_RIGHT]),
}


@pytest.mark.parametrize("orientation", [0, 3, 6])
@pytest.mark.parametrize("case", PROPERTIES)
def test_a_heic_is_turned_once_whatever_its_exif_says(case: str, orientation: int) -> None:
    properties, turns = PROPERTIES[case]
    expected = marked()
    for turn in turns:
        expected = expected.transpose(turn)
    exif = exif_of(orientation) if orientation else b""
    assert_same(heic([marked()], properties=properties, exif=exif), expected)


def test_a_heic_without_a_turn_of_its_own_is_not_turned() -> None:
    assert_same(heic([marked()], exif=exif_of(6)), marked())


@pytest.mark.parametrize("primary", [1, 2, 3])
def test_of_a_burst_the_primary_picture_is_taken(primary: int) -> None:
    images = [marked(), Image.new("RGB", (80, 64), BLUE), Image.new("RGB", (32, 32), WHITE)]
    assert_same(heic(images, primary=primary), images[primary - 1])


def test_a_heic_that_was_cut_off_is_refused() -> None:
    content = heic([marked()])
    for share in (0.05, 0.4, 0.8, 0.95):
        error = refusal(content[: int(share * len(content))])
        assert error.message.endswith(".")
        assert "\n" not in error.message


def test_a_damaged_heic_is_refused_or_harmless() -> None:
    content, rng = heic([marked()]), random.Random(5)
    num_refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            assert load_picture(bytes(damaged)).mode == "RGB"
        except PictureError:
            num_refused += 1
    assert 0 < num_refused < 60


def test_a_heic_of_too_many_pixels_is_refused_by_its_header() -> None:
    content = heic([marked()])
    at = content.index(b"ispe") + 8
    large = content[:at] + struct.pack(">II", 9_000, 9_000) + content[at + 8 :]
    assert "9000x9000 pixels; expected at most 64 million" in refusal(large).message


def test_without_the_decoder_of_heic_only_a_heic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert_same(encoded(marked(), "AVIF"), marked())
    error = refusal(heic([marked()]))
    assert error.message == "The picture is a HEIC; the package pi-heif, which reads it, is not installed."
    assert error.remedy == "Install pi-heif, or export the picture as JPEG or PNG."


def scans_behind(count: int) -> bytes:
    """Return bytes of a video in which the marker of a scan occurs by chance."""
    return box(b"ftyp", b"mp42\0\0\0\0mp42isom") + box(b"mdat", b"\xff\xda\0\x0c" * count)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_motion_photo_is_its_picture(progressive: bool) -> None:
    photo = marked((256, 192))
    assert_same(encoded(photo, progressive=progressive) + scans_behind(500), photo)
    assert_same(heic([photo]) + box(b"mpvd", scans_behind(9)), photo)


def test_a_photo_with_a_gain_map_or_further_views_is_its_first_picture() -> None:
    further = [Image.new("RGB", SIZE, BLUE)] * 30
    assert_same(encoded(marked(), "MPO", save_all=True, append_images=further), marked())
    photo = encoded(marked(), progressive=True)
    assert_same(photo + photo * 20, marked())


def test_the_scans_of_a_small_copy_in_the_metadata_do_not_count() -> None:
    exif = b"Exif\0\0" + exif_of(3) + b"\xff\xda\0\x0c" * 500
    assert_same(encoded(marked(), exif=exif), marked().transpose(TURNS.ROTATE_180))


def dng(size: tuple[int, int]) -> bytes:
    tags = ImageFileDirectory_v2()
    tags[50706] = b"\1\4\0\0"  # the version of DNG
    tags.tagtype[50706] = 1
    return encoded(Image.new("RGB", size), "TIFF", tiffinfo=tags)


def test_a_picture_that_can_be_read_is_read_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a.dng", "b.jxl", "c.svg", ".photo", "photo", "d.jfif", "e.jpe", "F.HEIC"):
        (tmp_path / name).write_bytes(encoded(marked()))
        assert load_picture(tmp_path / name).size == SIZE

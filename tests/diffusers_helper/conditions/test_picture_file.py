"""Tests that every kind of picture file becomes plain RGB or is refused with a sentence; none crashes."""

import io
import random
import struct
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from diffusers_helper.conditions.picture_file import (
    MAX_BYTES,
    STORED_PIXELS,
    fit_picture,
    load_picture,
)
from diffusers_helper.errors import InputError

WIDTH, HEIGHT = 48, 32


def scene(mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Draw a picture in which red rises to the right and green downwards."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    pixels = np.stack([255 * x // (size[0] - 1), 255 * y // (size[1] - 1), np.full_like(x, 60)], -1)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def assert_near(found: Image.Image, expected: Image.Image, tolerance: float) -> None:
    assert found.mode == "RGB"
    assert found.size == expected.size
    difference = np.asarray(found).astype(int) - np.asarray(expected.convert("RGB")).astype(int)
    assert np.abs(difference).mean() <= tolerance


def refusal(source: Path | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        load_picture(source)
    assert caught.value.message.endswith(".")
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95}, 3),
        ("JPEG", {"quality": 95, "progressive": True}, 3),
        ("AVIF", {"quality": 95}, 3),
        ("GIF", {}, 12),
    ],
    ids=str,
)
def test_formats(kind: str, options: dict[str, Any], tolerance: float, tmp_path: Path) -> None:
    path = tmp_path / "picture.of.some.name"  # the content counts, not the name
    path.write_bytes(encoded(scene(), kind, **options))
    assert_near(load_picture(path), scene(), tolerance)
    assert_near(load_picture(path.read_bytes()), scene(), tolerance)


@pytest.mark.parametrize(
    ("mode", "kind", "tolerance"),
    [
        ("L", "PNG", 0),
        ("1", "PNG", 0),
        ("P", "PNG", 0),
        ("P", "GIF", 0),
        ("CMYK", "JPEG", 4),
        ("CMYK", "TIFF", 0),
        ("YCbCr", "JPEG", 4),
        ("L", "JPEG", 4),
        ("1", "TIFF", 0),
    ],
)
def test_colour_modes(mode: str, kind: str, tolerance: float) -> None:
    image = scene(mode)
    assert_near(load_picture(encoded(image, kind)), image, tolerance)


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
    expected = Image.fromarray(np.round(values / 257).astype(np.uint8))
    for kind in ("PNG", "TIFF"):
        assert_near(load_picture(encoded(Image.fromarray(values), kind)), expected, 0)


def test_wide_grey_takes_no_more_room_than_its_pixels_need() -> None:
    """Convert row by row: in one piece, the numbers in between took eight times the memory of the picture."""
    values = np.full((1500, 4000), 40_000, np.uint16)
    content = encoded(Image.fromarray(values), compress_level=1)
    tracemalloc.start()
    try:
        image = load_picture(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert image.getpixel((7, 7)) == (156, 156, 156)
    assert peak < 3 * values.nbytes


def test_16_bit_colour() -> None:
    pixels = np.asarray(scene()).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    assert_near(load_picture(png(header, rows)), scene(), 0)


def png(header: bytes, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_becomes_white(mode: str) -> None:
    image = Image.new(mode, (WIDTH, HEIGHT), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    image.paste((0, 0, 0, 255) if mode == "RGBA" else (0, 255), (0, 0, 24, 32))
    image.paste((0, 0, 0, 128) if mode == "RGBA" else (0, 128), (24, 0, 36, 32))
    pixels = np.asarray(load_picture(encoded(image)))
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[0, 30].tolist() == [127, 127, 127]
    assert pixels[0, 40].tolist() == [255, 255, 255]


def test_transparent_colours_of_palette_and_plain_pictures() -> None:
    palette = Image.new("P", (WIDTH, HEIGHT), 0)
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.paste(1, (24, 0, 48, 32))
    plain = palette.convert("RGB")
    for content in (
        encoded(palette, transparency=0),
        encoded(palette, "GIF", transparency=0),
        encoded(plain, transparency=(10, 20, 30)),
    ):
        pixels = np.asarray(load_picture(content))
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert pixels[0, 40].tolist() == [200, 100, 50]


def test_of_an_animation_the_first_picture_is_taken() -> None:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        pixels = np.asarray(load_picture(content)).astype(int)
        assert np.abs(pixels - [255, 0, 0]).max() <= 6, kind


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_is_held_upright(orientation: int) -> None:
    turns = Image.Transpose
    # The sensor's view of a scene, by EXIF's definition of each orientation
    seen = {
        1: None, 2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE,
        6: turns.ROTATE_90, 7: turns.TRANSVERSE, 8: turns.ROTATE_270,
    }[orientation]  # fmt: skip
    stored = scene() if seen is None else scene().transpose(seen)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind, tolerance in (("JPEG", 3), ("PNG", 0), ("WEBP", 8), ("TIFF", 0), ("AVIF", 8)):
        assert_near(load_picture(encoded(stored, kind, exif=exif)), scene(), tolerance)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*" + b"\1" * 40]
)
def test_unreadable_camera_data_is_passed_over(exif: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_near(load_picture(encoded(scene(), "JPEG", quality=95, exif=exif)), scene(), 3)


def test_a_colour_profile_is_applied() -> None:
    assert_near(load_picture(encoded(scene(), icc_profile=b"no profile")), scene(), 0)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert_near(load_picture(encoded(scene(), icc_profile=profile)), scene(), 1)
    # The profile swaps red and green.
    swapped = profile.replace(b"rXYZ", b"????").replace(b"gXYZ", b"rXYZ").replace(b"????", b"gXYZ")
    red, green, blue = scene().split()
    expected = Image.merge("RGB", (green, red, blue))
    for kind in ("PNG", "WEBP"):
        content = encoded(scene(), kind, icc_profile=swapped, lossless=True)
        assert_near(load_picture(content), expected, 1)


@pytest.mark.slow
def test_large_pictures_are_kept_smaller() -> None:
    large = Image.new("RGB", (7000, 3500), (10, 200, 30))
    kept = load_picture(encoded(large, "JPEG"))
    assert 0.98 * STORED_PIXELS < kept.width * kept.height <= STORED_PIXELS
    assert kept.width / kept.height == pytest.approx(2, rel=1e-3)
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1600, 3), np.uint8)
    # At worst, PNG adds little to the pixels, so that the kept picture can be read again.
    per_pixel = len(encoded(Image.fromarray(noise), compress_level=1)) / (1000 * 1600)
    assert per_pixel * STORED_PIXELS < MAX_BYTES


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"])
def test_truncated_files_are_refused(kind: str) -> None:
    content = encoded(scene(size=(96, 96)), kind)
    for share in (0.05, 0.4, 0.8):
        refusal(content[: int(share * len(content))])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"])
def test_damage_is_refused_or_harmless(kind: str) -> None:
    content = encoded(scene(), kind)
    rng = random.Random(3)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            image = load_picture(bytes(damaged))
        except InputError as error:
            assert error.remedy  # noqa: PT017 - both outcomes are valid
        else:
            assert image.mode == "RGB"


@settings(max_examples=60)
@given(
    width=st.integers(16, 90),
    height=st.integers(16, 90),
    target=st.sampled_from([(32, 64), (64, 32), (48, 48)]),
)
def test_fitting_covers_the_shape_and_keeps_the_centre(
    width: int, height: int, target: tuple[int, int]
) -> None:
    fitted = fit_picture(scene(size=(width, height)), *target)
    assert (fitted.height, fitted.width) == target
    pixels = np.asarray(fitted).astype(float)
    # The scene's slopes are even: its middle must stay in the middle, and nothing may be distorted.
    assert pixels[:, :, 0].mean() == pytest.approx(127, abs=6)
    assert pixels[:, :, 1].mean() == pytest.approx(127, abs=6)
    scale = max(target[0] / height, target[1] / width)
    slope = (pixels[:, -4, 0] - pixels[:, 3, 0]).mean() / (target[1] - 7)
    assert slope == pytest.approx(255 / (width - 1) / scale, rel=0.25)


@pytest.mark.parametrize(("size", "target"), [((300, 100), (100, 100)), ((100, 300), (100, 100))])
def test_the_crop_says_which_part_is_kept_and_its_middle_is_the_former_one(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    picture = scene(size=size)
    axis = 0 if size[0] > size[1] else 1
    means = [np.asarray(fit_picture(picture, *target, crop))[..., axis].mean() for crop in (0, 0.5, 1)]
    assert means == pytest.approx([255 / 6, 255 / 2, 255 * 5 / 6], abs=3)
    former = ImageOps.fit(picture, target[::-1], Image.Resampling.LANCZOS)
    assert fit_picture(picture, *target).tobytes() == former.tobytes()


def test_a_zoom_below_one_shows_the_whole_picture_over_a_blurred_copy() -> None:
    picture = Image.new("RGB", (200, 100), (200, 40, 40))
    picture.paste((40, 40, 200), (100, 0, 200, 100))
    upright = np.asarray(fit_picture(picture, 160, 80, zoom=0.25))
    assert upright.shape == (160, 80, 3)
    band = upright[60:100]  # as wide as the video, 40 pixels high, in its middle
    assert abs(band[:, :38].astype(int) - (200, 40, 40)).max() <= 1
    assert abs(band[:, 42:].astype(int) - (40, 40, 200)).max() <= 1
    assert not np.array_equal(upright[50, 30:50], band[0, 30:50])  # the copy around it is blurred
    assert np.array_equal(np.asarray(fit_picture(picture, 160, 80, 0.5, 0.0, 0.25))[:40], band)


def test_a_zoom_keeps_a_smaller_part_at_its_place_in_both_directions() -> None:
    picture = scene(size=(300, 200))
    pixels = np.asarray(fit_picture(picture, 100, 100, 1, 0, 2.0)).astype(float)
    across, down = (pixels[..., axis].mean() / 255 for axis in (0, 1))
    assert across == pytest.approx(1 - 100 / 2 / 300, abs=0.02)  # the rightmost 100 of 300 pixels
    assert down == pytest.approx(100 / 2 / 200, abs=0.02)  # the upper 100 of 200 pixels


def test_a_picture_that_fits_is_not_changed() -> None:
    assert np.array_equal(np.asarray(fit_picture(scene(), HEIGHT, WIDTH)), np.asarray(scene()))

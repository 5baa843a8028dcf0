"""Tests that a picture has the colours that its file declares, however the file stores its pixels."""

import io
import struct
import zlib
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageCms

from diffusers_helper.conditions.picture_file import load_picture
from tests.support.heic import heic, icc, nclx

SIZE = (64, 48)
COLOUR, SWAPPED = (200, 60, 30), (60, 200, 30)
PQ, HLG = 16, 18
# What values of 148 in PQ and in HLG look like on a standard screen, and a value that is declared as neither
MAPPED = {PQ: 224, HLG: 163, 13: 148}


def swapping_profile() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"????").replace(b"gXYZ", b"rXYZ").replace(b"????", b"gXYZ")


def grey_profile(gamma: float) -> bytes:
    point = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(256 * gamma)) + b"\0\0"
    tags = b"".join(
        struct.pack(">4sII", name, start, size)
        for name, start, size in ((b"wtpt", 156, len(point)), (b"kTRC", 156 + len(point), len(curve) - 2))
    )
    body = struct.pack(">I", 2) + tags + point + curve
    head = struct.pack(">I4sI4s4s4s", 128 + len(body), b"lcms", 0x02400000, b"mntr", b"GRAY", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + body


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    lossless: dict[str, Any] = {
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100},
        "JPEG": {"quality": 100},
    }
    image.save(content, kind, **lossless.get(kind, {}), **options)
    return content.getvalue()


def assert_colour(content: bytes, expected: tuple[int, int, int], tolerance: int = 1) -> None:
    pixels = np.asarray(load_picture(content)).astype(int)
    assert pixels.shape == (SIZE[1], SIZE[0], 3)
    assert np.abs(pixels - expected).max() <= tolerance


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_profile_holds_with_and_without_transparency(kind: str, mode: str) -> None:
    image = Image.new(mode, SIZE, COLOUR)
    assert_colour(encoded(image, kind, icc_profile=swapping_profile()), SWAPPED)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_profile_holds_for_a_palette(kind: str) -> None:
    image = Image.new("RGB", SIZE, COLOUR).quantize(4)
    assert_colour(encoded(image, kind, icc_profile=swapping_profile()), SWAPPED)


def test_a_profile_holds_beside_transparent_parts_which_become_white() -> None:
    palette, profile = Image.new("P", SIZE, 0), swapping_profile()
    palette.putpalette([*COLOUR, 10, 20, 30])
    palette.paste(1, (32, 0, 64, 48))
    layer = Image.new("RGBA", SIZE, COLOUR)
    layer.paste((10, 20, 30, 0), (32, 0, 64, 48))
    for content in (
        encoded(palette, "PNG", icc_profile=profile, transparency=1),
        encoded(palette.convert("RGB"), "PNG", icc_profile=profile, transparency=(10, 20, 30)),
        encoded(layer, "PNG", icc_profile=profile),
        encoded(layer, "WEBP", icc_profile=profile, exact=True),
    ):
        picture = load_picture(content)
        assert picture.getpixel((5, 5)) == SWAPPED
        assert picture.getpixel((60, 5)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_a_grey_picture_has_the_colours_of_its_profile(kind: str) -> None:
    """With a gamma of 1, a value is light itself; sRGB shows 60 / 255 of white as 133."""
    profile, grey = grey_profile(1.0), Image.new("L", SIZE, 60)
    assert_colour(encoded(grey, kind, icc_profile=profile), (133, 133, 133))
    assert_colour(encoded(grey, kind), (60, 60, 60), tolerance=0)
    # A profile for grey says nothing of a colour.
    assert_colour(
        encoded(Image.new("RGB", SIZE, "blue"), kind, icc_profile=profile), (0, 0, 255), tolerance=3
    )


def test_grey_with_transparency_or_16_bits_has_the_colours_of_its_profile() -> None:
    profile = grey_profile(1.0)
    assert_colour(encoded(Image.new("LA", SIZE, (60, 255)), "PNG", icc_profile=profile), (133, 133, 133))
    half = load_picture(encoded(Image.new("LA", SIZE, (60, 51)), "PNG", icc_profile=profile))
    assert half.getpixel((5, 5)) == pytest.approx((231, 231, 231), abs=1)  # 133 over white, by a fifth
    marked = encoded(Image.new("L", SIZE, 60), "PNG", icc_profile=profile, transparency=7)
    assert_colour(marked, (133, 133, 133))
    deep = Image.fromarray(np.full((SIZE[1], SIZE[0]), 60 * 257, np.uint16))
    for kind in ("PNG", "TIFF"):
        assert_colour(encoded(deep, kind, icc_profile=profile), (133, 133, 133))


def test_grey_with_a_profile_for_colours_is_taken_as_a_colour() -> None:
    assert_colour(encoded(Image.new("L", SIZE, 60), "JPEG", icc_profile=swapping_profile()), (60, 60, 60))


@pytest.mark.parametrize("profile", [b"", b"no profile", grey_profile(1.0), swapping_profile()])
@pytest.mark.parametrize("kind", ["TIFF", "JPEG"])
def test_inks_are_inks_whatever_profile_of_something_else_they_have(kind: str, profile: bytes) -> None:
    image = Image.new("CMYK", SIZE, (0, 255, 255, 0))
    assert_colour(encoded(image, kind, icc_profile=profile), (255, 0, 0), tolerance=3)


def test_a_heic_has_the_colours_of_its_profile() -> None:
    image = Image.new("RGB", SIZE, COLOUR)
    assert_colour(heic([image], properties=[icc(swapping_profile())]), SWAPPED, tolerance=2)


def cicp(content: bytes, primaries: int, transfer: int) -> bytes:
    chunk = b"cICP" + bytes([primaries, transfer, 0, 1])
    return content[:33] + struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[33:]


@pytest.mark.parametrize("transfer", MAPPED)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P"])
def test_a_png_of_high_range_is_mapped_to_the_standard_one(mode: str, transfer: int) -> None:
    image = Image.new("RGB", SIZE, (148, 148, 148))
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    content = cicp(encoded(image, "PNG"), 9, transfer)
    assert_colour(content, (MAPPED[transfer],) * 3, tolerance=0)


def test_the_range_that_a_picture_declares_counts_more_than_its_profile() -> None:
    content = encoded(Image.new("RGB", SIZE, (148, 148, 148)), "PNG", icc_profile=swapping_profile())
    assert_colour(cicp(content, 9, PQ), (224, 224, 224), tolerance=0)


def test_colours_beyond_the_standard_screen_are_narrowed() -> None:
    """Of BT.2020, a red of 100 nits has less green and blue than none on a standard screen."""
    content = encoded(Image.new("RGB", SIZE, (130, 0, 0)), "PNG")
    wide, narrow = (load_picture(cicp(content, primaries, PQ)).getpixel((5, 5)) for primaries in (9, 1))
    assert wide[0] > narrow[0] + 20
    assert wide[1:] == narrow[1:] == (0, 0)


@pytest.mark.parametrize("transfer", MAPPED)
def test_an_avif_of_high_range_is_mapped_to_the_standard_one(transfer: int) -> None:
    content = encoded(Image.new("RGB", SIZE, (148, 148, 148)), "AVIF")
    at = content.index(b"colrnclx") + 8
    assert struct.unpack(">HH", content[at : at + 4]) == (1, 13)
    content = content[:at] + struct.pack(">HH", 9, transfer) + content[at + 4 :]
    assert_colour(content, (MAPPED[transfer],) * 3, tolerance=2)


@pytest.mark.parametrize("transfer", MAPPED)
def test_a_heic_of_high_range_is_mapped_to_the_standard_one(transfer: int) -> None:
    image = Image.new("RGB", SIZE, (148, 148, 148))
    content = heic([image], properties=[nclx(9, transfer, 1)], bits=10)
    assert_colour(content, (MAPPED[transfer],) * 3, tolerance=2)


def test_a_picture_and_a_frame_of_high_range_look_alike(tmp_path: Any) -> None:
    from diffusers_helper.conditions.footage import last_frames

    path = tmp_path / "high.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("libx265", rate=5, options={"x265-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p10le"
        context = stream.codec_context
        context.color_trc, context.color_primaries, context.colorspace = PQ, 9, 9
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((SIZE[1], SIZE[0], 3), 148, np.uint8), "rgb24")
            for packet in stream.encode(frame.reformat(format="yuv420p10le", dst_colorspace=9)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    (frame,) = last_frames(path, 1)
    still = cicp(encoded(Image.new("RGB", SIZE, (148, 148, 148)), "PNG"), 9, PQ)
    assert_colour(still, frame.getpixel((5, 5)), tolerance=3)


@pytest.mark.parametrize(
    ("primaries", "expected"), [(1, COLOUR), (9, (249, 0, 0)), (12, (218, 42, 0))], ids=["709", "2020", "P3"]
)
def test_wide_colours_of_the_standard_range_are_narrowed(
    primaries: int, expected: tuple[int, int, int]
) -> None:
    image = Image.new("RGB", SIZE, COLOUR)
    assert_colour(cicp(encoded(image, "PNG"), primaries, 13), expected)
    assert_colour(heic([image], properties=[nclx(primaries, 13, 1)]), expected, tolerance=2)
    profiled = cicp(encoded(image, "PNG", icc_profile=swapping_profile()), primaries, 13)
    assert_colour(profiled, SWAPPED)

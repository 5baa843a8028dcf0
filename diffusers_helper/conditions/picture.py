"""The start picture: reading it within limits, converting it to upright 8-bit RGB, and fitting its shape."""

from __future__ import annotations

import contextlib
import io
import math
import struct
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps
from PIL.PngImagePlugin import PngInfo

from diffusers_helper.errors import PictureError
from diffusers_helper.files import read_file

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 64_000_000
MIN_SIDE = 16
# A larger picture is scaled down to this. It is still larger than any video, and its PNG is below MAX_BYTES.
STORED_PIXELS = 16_000_000
# A progressive JPEG has about ten scans. Each costs a pass over the whole picture, but hardly any bytes.
MAX_SCANS = 64
# These decoders are in wide use. Pillow's others are rarely needed, and each would be one more way to attack.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")

_OTHER = "Choose another file."
_CONVERT = "Open it in a picture viewer and save it as PNG or JPEG."


def load_picture(source: Path | bytes) -> Image.Image:
    """Read a picture file, or the content of one, as upright RGB with 8 bits per channel.

    The first picture of an animation or of a file with several pages is used. Transparent parts become white,
    a colour profile in the file is applied, and a picture of more than 16 megapixels is scaled down to that.

    Raises:
        PictureError: If the source is no picture of `FORMATS`, is damaged, too large or too small. The size
            is checked in the header, before decoding.
    """
    with _open_checked(source) as (image, name):
        try:
            return _as_rgb(image)
        except (PictureError, MemoryError):
            raise
        except Exception as error:
            # Decoders meet damage with many kinds of errors: OSError, SyntaxError, EOFError, zlib.error, ...
            raise PictureError(f"{name} is damaged ({error}); expected a whole file.", _CONVERT) from error


def size_of(source: Path | bytes) -> tuple[int, int]:
    """Read the width and height in the header of a picture, or refuse it as `load_picture` does."""
    with _open_checked(source) as (image, _):
        return image.size


def plain_png(image: Image.Image, chunks: PngInfo | None = None) -> bytes:
    """Encode a picture as PNG as jobs store it, with further chunks if they are given."""
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1, pnginfo=chunks)
    return content.getvalue()


@contextlib.contextmanager
def _open_checked(source: Path | bytes) -> Generator[tuple[Image.Image, str], None, None]:
    """Yield a picture whose header was read and checked, and the name for it in messages."""
    name = "The picture" if isinstance(source, bytes) else f"The picture {source}"
    content = _read_content(source, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a faulty file that Pillow can read is accepted
        image = _decode_header(content, name)
        _check_size(image, name)
        _check_scans(content, image, name)
        yield image, name


def fit_picture(image: Image.Image, height: int, width: int, crop: float = 0.5) -> Image.Image:
    """Scale a picture to cover height x width (Lanczos), and cut it. `crop` 0 keeps the left or upper end."""
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS, centering=(crop, crop))


def _read_content(source: Path | bytes, name: str) -> bytes:
    try:
        return source if isinstance(source, bytes) else read_file(source, MAX_BYTES)
    except (OSError, ValueError) as error:  # a name that no file system accepts raises ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        expected = f"a picture file of at most {MAX_BYTES // 2**20} MiB"
        raise PictureError(f"{name} cannot be read ({reason}); expected {expected}.", _OTHER) from error


def _decode_header(content: bytes, name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:  # decoders raise many kinds of errors for a damaged header too
        raise PictureError(
            f"{name.replace('The picture', 'The file', 1)} is not a picture that can be read.",
            f"Choose a PNG, JPEG, WebP, AVIF, GIF, BMP or TIFF file of at most {MAX_PIXELS // 10**6} "
            "million pixels.",
        ) from error


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    problem = f"{name} has {width}x{height} pixels"
    if width * height > MAX_PIXELS:
        raise PictureError(f"{problem}; expected at most {MAX_PIXELS // 10**6} million.", "Save it smaller.")
    if min(width, height) < MIN_SIDE:
        raise PictureError(f"{problem}; expected at least {MIN_SIDE} each way.", "Choose a larger picture.")


def _check_scans(content: bytes, image: Image.Image, name: str) -> None:
    if image.format not in ("JPEG", "MPO"):
        return
    scans = content.count(b"\xff\xda")  # the marker of a scan, which cannot occur in the coded data
    if scans > MAX_SCANS:
        raise PictureError(f"{name} is a JPEG of {scans} scans; expected at most {MAX_SCANS}.", _CONVERT)


def _as_rgb(image: Image.Image) -> Image.Image:
    image.load()
    orientation = _orientation(image)  # read after loading, during which Pillow turns a TIFF by itself
    image = _without_profile(_to_8_bits(image))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if image.width * image.height > STORED_PIXELS:
        scale = math.sqrt(STORED_PIXELS / (image.width * image.height))
        size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
        image = image.resize(size, Image.Resampling.LANCZOS)
    if orientation in _TURNS:
        image = image.transpose(_TURNS[orientation])
    # A new image leaves out the file's other metadata.
    plain = Image.new("RGB", image.size)
    plain.paste(image)
    return plain


_EXIF_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip


def _orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, or 1 (upright) if the file has no readable one."""
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        return 1
    return value if isinstance(value, int) else 1


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey values to 8 bits, since Pillow would clip them. Refuse floating-point values."""
    if image.mode == "F":
        raise PictureError(
            "The picture has floating-point values; expected 8 or 16 bits per channel.", _CONVERT
        )
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        scaled = np.empty(values.shape, np.uint8)
        for row in range(len(values)):  # the 64-bit values of the whole picture would take gigabytes
            scaled[row] = (values[row].astype(np.int64).clip(0, 65535) + 128) // 257
        return Image.fromarray(scaled)
    return image


def _without_profile(image: Image.Image) -> Image.Image:
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "CMYK"):
        return image
    try:
        source_profile = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        cms: Any = ImageCms  # Pillow's profiles have no type
        converted = cms.profileToProfile(image, source_profile, cms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image  # an unusable profile is ignored
    return image if converted is None else converted

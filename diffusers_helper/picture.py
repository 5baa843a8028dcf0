"""The start picture: read with bounds, turned upright, made plain 8-bit RGB, and cut to the model's shape."""

from __future__ import annotations

import io
import math
import stat
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps

from diffusers_helper.errors import InputError

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 64_000_000
MIN_SIDE = 16
MAX_ASPECT = 8
# Of a larger picture a smaller copy is kept. It is still larger than any video, and as PNG below MAX_BYTES.
KEPT_PIXELS = 16_000_000
# Decoders that are in wide use. Others that Pillow brings are rare, and each is one more way to be attacked.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")

_CONVERT = "Open it in a picture viewer and save it as PNG or JPEG."


def load_picture(source: Path | bytes) -> Image.Image:
    """Reads a picture file, or the content of one.

    Of an animation or a file with several pages the first picture is taken. Transparent parts become white, a
    colour profile that comes with the file is applied, and what is larger than 16 megapixels is scaled down
    to that.

    Args:
        source: PNG, JPEG, WebP, AVIF, GIF, BMP or TIFF of at most 64 MiB and 64 megapixels.

    Returns: RGB, 8 bits a channel, upright.

    Raises:
        InputError: for anything that is no such picture, is damaged, has a side below 16 pixels or one side
            more than 8 times the other. Size and shape are judged by the header, before anything is decoded.
    """
    name = "The picture" if isinstance(source, bytes) else f"The picture {source.name}"
    content = _limited(len(source), name, source) if isinstance(source, bytes) else _read(source, name)
    if not content:
        raise InputError(f"{name} is empty; expected a picture file.", "Choose another file.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow can read in spite of a fault is read
        # Pillow warns from 90 megapixels on and refuses from 180 on; both are too many here.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = _open(content, name)
        _check_size(image, name)
        try:
            return _as_rgb(image)
        except (InputError, MemoryError):
            raise
        except Exception as error:
            # Decoders meet damage with many kinds of errors: OSError, SyntaxError, EOFError, zlib.error, ...
            raise InputError(f"{name} is damaged ({error}); expected a whole file.", _CONVERT) from error


def fit_picture(image: Image.Image, height: int, width: int) -> Image.Image:
    """Scales a picture until it covers height x width pixels (Lanczos), and cuts off the rest evenly."""
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)


def _read(path: Path, name: str) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no file"
            raise InputError(f"{name} is {kind}; expected a picture file.", "Choose a file.")
        with path.open("rb") as file:
            return _limited(status.st_size, name, file.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{name} cannot be read ({reason}); expected a picture file.", "Check the path."
        ) from error


def _limited(size: int, name: str, content: bytes) -> bytes:
    size = max(size, len(content))
    if size > MAX_BYTES:
        raise InputError(
            f"{name} has {size / 2**20:.1f} MiB; expected at most {MAX_BYTES // 2**20} MiB.",
            "Save it smaller, as JPEG for example.",
        )
    return content


def _open(content: bytes, name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(
            f"{name} has far more than {MAX_PIXELS // 10**6} million pixels; expected at most that many.",
            "Save it smaller.",
        ) from error
    except Exception as error:
        # A damaged header too is met with many kinds of errors.
        raise InputError(
            f"{name} is not a picture that can be read; expected PNG, JPEG, WebP, AVIF, GIF, BMP or TIFF.",
            _CONVERT,
        ) from error


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    found = f"{name} has {width}x{height} pixels"
    if width * height > MAX_PIXELS:
        raise InputError(f"{found}; expected at most {MAX_PIXELS // 10**6} million.", "Save it smaller.")
    if min(width, height) < MIN_SIDE:
        raise InputError(f"{found}; expected at least {MIN_SIDE} each way.", "Choose a larger picture.")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise InputError(
            f"{found}; expected one side at most {MAX_ASPECT} times the other.", "Cut it to another shape."
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    image.load()
    orientation = _orientation(image)  # after loading, in which Pillow turns a TIFF by itself
    image = _without_profile(_to_8_bits(image))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    image = image.convert("RGB")
    if image.width * image.height > KEPT_PIXELS:
        scale = math.sqrt(KEPT_PIXELS / (image.width * image.height))
        size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
        image = image.resize(size, Image.Resampling.LANCZOS)
    if orientation in _TURNS:
        image = image.transpose(_TURNS[orientation])
    # A new image without what else the file says of itself.
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
    """How the camera was held, 1 to 8 as EXIF counts; 1, upright, where the file does not say it readably."""
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        return 1
    return value if isinstance(value, int) else 1


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits scaled to 8, where Pillow alone would clip them."""
    if image.mode == "F":
        raise InputError("The picture has floating-point values; expected 8 or 16 bits a channel.", _CONVERT)
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    return image


def _without_profile(image: Image.Image) -> Image.Image:
    """The colours in sRGB, where the file has a profile that says what they mean."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "CMYK"):
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        cms: Any = ImageCms  # Pillow does not give its profiles a type
        converted = cms.profileToProfile(image, source, cms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image  # a profile that cannot be used says nothing
    return image if converted is None else converted

"""The start picture: reading it within limits, converting it to upright 8-bit RGB, and fitting its shape."""

import contextlib
import io
import math
import re
import struct
import warnings
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps
from PIL.PngImagePlugin import PngInfo

from diffusers_helper.conditions.colour import to_srgb
from diffusers_helper.errors import PictureError, first_line
from diffusers_helper.files import read_file
from diffusers_helper.untrusted.confined import confined

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 64_000_000
MIN_SIDE = 16
# A larger picture is scaled down to this. It is still larger than any video, and its PNG is below MAX_BYTES.
STORED_PIXELS = 16_000_000
# A progressive JPEG has about ten scans. Each costs a pass over the whole picture, but hardly any bytes.
MAX_SCANS = 64
# These decoders are in wide use. Pillow's others are rarely needed, and each would be one more way to attack.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
_TITLES = "PNG, JPEG, WebP, AVIF, HEIC, GIF, BMP or TIFF"
# Formats that people have and nothing here reads, by the endings of their files' names
_RAW = (
    "3fr", "arw", "cr2", "cr3", "crw", "dng", "erf", "iiq", "mef", "mos", "mrw", "nef", "nrw", "orf", "pef",
    "raf", "raw", "rw2", "rwl", "sr2", "srf", "srw", "x3f",
)  # fmt: skip
_UNREAD = dict.fromkeys(_RAW, "a camera's raw file") | {"jxl": "a JPEG XL picture", "svg": "a drawing"}
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL ")  # the beginnings of its files
_DNG_VERSION = 50706  # a tag of the TIFF that a DNG is

_CODES = "codes"  # the entry of an image's `info` with its codes of ITU-T H.273
# The markers of a JPEG that begin a part with a length, and the end of the picture
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_SCAN, _END = b"\xff\xda", b"\xff\xd9"

_OTHER = "Choose another file."
_CONVERT = "Open it in a picture viewer and save it as PNG or JPEG."


def load_picture(source: Path | bytes) -> Image.Image:
    """Read a picture, or the first of several, as upright RGB with 8 bits per channel in standard colours.

    Transparent parts become white. More than 16 megapixels are scaled down. PictureError if it cannot be
    used; the size is checked in the header, before decoding.
    """
    with _open_checked(source) as (image, name):
        try:
            return _as_rgb(image)
        except (PictureError, MemoryError):
            raise
        except Exception as error:
            # Decoders meet damage with many kinds of errors: OSError, SyntaxError, EOFError, zlib.error, ...
            problem = f"{name} is damaged ({first_line(error)}); expected a whole file."
            raise PictureError(problem, _CONVERT) from error


@confined
def size_of(path: Path) -> tuple[int, int]:
    with _open_checked(path) as (image, _):
        return image.size


@confined
def read_as_png(path: Path) -> bytes:
    return plain_png(load_picture(path))


@confined
def read_small(path: Path, width: int, height: int) -> bytes:
    small, content = load_picture(path), io.BytesIO()
    small.thumbnail((width, height))
    small.save(content, "WEBP", quality=80)
    return content.getvalue()


def plain_png(image: Image.Image, chunks: PngInfo | None = None) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1, pnginfo=chunks)
    return content.getvalue()


@contextlib.contextmanager
def _open_checked(source: Path | bytes) -> Generator[tuple[Image.Image, str], None, None]:
    name, ending = "The picture", ""
    if isinstance(source, Path):
        name, ending = f"The picture {source}", source.suffix[1:].lower()
    content = _read_content(source, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a faulty file that Pillow can read is accepted
        image = _decode_header(content, name, ending)
        _check_size(image, name)
        _check_scans(content, image, name)
        yield image, name


def fit_picture(
    image: Image.Image, height: int, width: int, x: float = 0.5, y: float | None = None, zoom: float = 1
) -> Image.Image:
    """Scale a picture to cover height x width (Lanczos), `zoom` times as large, and cut it.

    `x` 0 keeps the left end, and `y` 0 the upper one; without `y`, `x` stands for both. A `zoom` below 1
    makes room around the picture, which a blurred copy fills.
    """
    y = x if y is None else y
    if zoom < 1:
        ground = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
        ground = ground.filter(ImageFilter.GaussianBlur(min(width, height) / 8))
        scale = zoom * max(width / image.width, height / image.height)
        small = ImageOps.scale(image, scale, Image.Resampling.LANCZOS)
        ground.paste(small, (round((width - small.width) * x), round((height - small.height) * y)))
        return ground
    if zoom > 1:
        part = round(image.width / zoom), round(image.height / zoom)
        left, top = round((image.width - part[0]) * x), round((image.height - part[1]) * y)
        image = image.crop((left, top, left + part[0], top + part[1]))
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS, centering=(x, y))


def _read_content(source: Path | bytes, name: str) -> bytes:
    try:
        return source if isinstance(source, bytes) else read_file(source, MAX_BYTES)
    except (OSError, ValueError) as error:  # a name that no file system accepts raises ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        expected = f"a picture file of at most {MAX_BYTES // 2**20} MiB"
        raise PictureError(f"{name} cannot be read ({reason}); expected {expected}.", _OTHER) from error


def _decode_header(content: bytes, name: str, ending: str) -> Image.Image:
    if content.startswith(_JPEG_XL):
        ending = "jxl"
    try:
        image = Image.open(io.BytesIO(content), formats=_formats_of(content))
        if _DNG_VERSION in getattr(image, "tag_v2", {}):
            ending = "dng"
        image.info[_CODES] = _declared_codes(image, content)
    except ImportError as error:  # ComfyUI's Python lacks what only few pictures need
        problem = f"{name} is a HEIC; the package pi-heif, which reads it, is not installed."
        raise PictureError(problem, "Install pi-heif, or export the picture as JPEG or PNG.") from error
    except Exception as error:  # decoders raise many kinds of errors for a damaged header too
        if ending in _UNREAD:
            raise _unread(name, ending) from error
        raise PictureError(
            f"{name.replace('The picture', 'The file', 1)} is not a picture that can be read.",
            f"Choose a {_TITLES} file of at most {MAX_PIXELS // 10**6} million pixels.",
        ) from error
    # To a decoder, a camera's raw file is often a TIFF of a small preview.
    if image.format == "TIFF" and ending in _RAW:
        raise _unread(name, ending)
    return image


def _unread(name: str, ending: str) -> PictureError:
    problem = f"{name} is {_UNREAD[ending]} ({ending.upper()}); expected {_TITLES}."
    return PictureError(problem, "Export it as JPEG or PNG, and choose that file.")


def _formats_of(content: bytes) -> tuple[str, ...]:
    """Select the decoder of HEIC for a file that begins as HEIC and AVIF do but is no AVIF."""
    brands = content[8 : int.from_bytes(content[:4])] if content[4:8] == b"ftyp" else b"avif"
    if b"avif" in brands or b"avis" in brands:
        return FORMATS
    _heif().register_heif_opener()
    return ("HEIF",)


def _heif() -> Any:
    return import_module("pi_heif")  # it has no types, and most programs meet no HEIC


def _declared_codes(image: Image.Image, content: bytes) -> tuple[int, int]:
    """Read a picture's codes of ITU-T H.273 for transfer and primaries, 0 for none."""
    if image.format == "PNG":
        at = content.find(b"\0\0\0\4cICP", 0, content.find(b"IDAT"))
        return (content[at + 9], content[at + 8]) if at >= 0 else (0, 0)
    colours: dict[str, int] | None = image.info.get("nclx_profile")
    if image.format == "AVIF":
        with contextlib.suppress(ImportError, OSError, ValueError, SyntaxError, RuntimeError, EOFError):
            colours = _heif().open_heif(content).info.get("nclx_profile")
    return (colours["transfer_characteristics"], colours["color_primaries"]) if colours else (0, 0)


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    problem = f"{name} has {width}x{height} pixels"
    if width * height > MAX_PIXELS:
        raise PictureError(f"{problem}; expected at most {MAX_PIXELS // 10**6} million.", "Save it smaller.")
    if min(width, height) < MIN_SIDE:
        raise PictureError(f"{problem}; expected at least {MIN_SIDE} each way.", "Choose a larger picture.")


def _check_scans(content: bytes, image: Image.Image, name: str) -> None:
    scans = _count_scans(content) if image.format in ("JPEG", "MPO") else 0
    if scans > MAX_SCANS:
        raise PictureError(f"{name} is a JPEG of {scans} scans; expected at most {MAX_SCANS}.", _CONVERT)


def _count_scans(content: bytes) -> int:
    """Count the scans of a JPEG up to its end, behind which phones put videos and more."""
    scans, position = 0, 2
    while (marker := _MARKER.search(content, position)) and marker[0] != _END:
        scans += marker[0] == _SCAN
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    return scans


def _as_rgb(image: Image.Image) -> Image.Image:
    profile, codes = image.info.get("icc_profile"), image.info[_CODES]
    image.load()
    orientation = _orientation(image)  # read after loading, during which Pillow turns a TIFF by itself
    image = _to_8_bits(image)
    is_grey, alpha = image.getbands()[0] in ("1", "L"), None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    image = to_srgb(image.convert("L") if is_grey else image, profile, *codes)
    if alpha is not None:
        image.putalpha(alpha)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
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
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        return 1
    return value if isinstance(value, int) else 1


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey values to 8 bits, since Pillow would clip them."""
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

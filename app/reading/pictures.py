"""The reader of uploaded pictures."""

from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.conditions.picture_file import load_picture, plain_png, size_of
from diffusers_helper.errors import PictureError


@dataclass(frozen=True, slots=True)
class Size:
    """The upright size of a picture in the file and as it is used, which differ above 16 megapixels."""

    width: int
    height: int
    used_width: int
    used_height: int


@dataclass(frozen=True, slots=True)
class PlainPicture:
    size: Size
    png: bytes


def read_picture(path: Path) -> PlainPicture:
    try:
        width, height = size_of(path)
        used = load_picture(path)
    except PictureError as error:
        # A user knows the file's name, but not the folder that it was uploaded to.
        raise PictureError(error.message.replace(str(path), path.name), error.remedy) from error
    if (width > height) != (used.width > used.height):  # the file says that the camera was held upright
        width, height = height, width
    return PlainPicture(Size(width, height, used.width, used.height), plain_png(used))

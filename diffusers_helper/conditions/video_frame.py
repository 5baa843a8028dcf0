"""A frame of a video as the picture that a player shows: RGB, 8 bits, upright, opaque, of square pixels."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from diffusers_helper.conditions.colour import to_standard_colours

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from diffusers_helper.conditions.film import Film

_BT709, _UNSPECIFIED = 1, 2  # codes of ITU-T H.273 for the matrix of colours
_HD_LINES = 720  # from here on, a video that does not say its matrix has that of BT.709
_TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT, (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180, (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270, (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}  # fmt: skip
"""The turns and mirrors by the signs of a display matrix."""


def to_picture(frame: "VideoFrame", film: "Film") -> Image.Image:
    from av.video.reformatter import Interpolation

    flags = int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)
    has_alpha = film.may_be_transparent and any(part.is_alpha for part in frame.format.components)
    is_hd = frame.colorspace == _UNSPECIFIED and frame.height >= _HD_LINES
    pixels = frame.reformat(
        format="rgba" if has_alpha else "rgb24",
        src_colorspace=_BT709 if is_hd else None,
        interpolation=flags,
        threads=1,
    ).to_ndarray()
    picture = Image.fromarray(
        to_standard_colours(np.ascontiguousarray(pixels[..., :3]), frame.color_trc, frame.color_primaries)
    )
    if has_alpha:
        white = Image.new("RGB", picture.size, "white")
        picture = Image.composite(picture, white, Image.fromarray(pixels[..., 3]))
    if film.pixel_aspect_ratio != 1:
        size = round(picture.width * film.pixel_aspect_ratio), picture.height
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    turn = _turn_of(frame)
    return picture if turn is None else picture.transpose(turn)


def _turn_of(frame: "VideoFrame") -> Image.Transpose | None:
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return None
    signs = np.sign(np.frombuffer(matrix, np.int32)[[0, 1, 3, 4]])
    return _TURNS.get(tuple(signs.tolist()))

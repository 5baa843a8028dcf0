"""A frame of a video as the picture that a player shows: RGB with 8 bits, upright, opaque, of square pixels.

High dynamic range (PQ and HLG) is mapped to the standard one, and the colours of BT.2020 to those of BT.709.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from diffusers_helper.conditions.film import Film

# Codes of ITU-T H.273: the two high ranges, and the primaries or the matrix of colours.
_PQ, _HLG, _BT709, _UNSPECIFIED, _BT2020 = 16, 18, 1, 2, 9
_HD_LINES = 720  # from here on, a video that does not say its matrix has that of BT.709
_TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT, (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180, (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270, (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}  # fmt: skip
"""The turns and mirrors by the signs of a display matrix."""


def to_picture(frame: VideoFrame, film: Film) -> Image.Image:
    """Convert a frame of a film. Transparent parts become white."""
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
    picture = Image.fromarray(_standard_colours(pixels[..., :3], frame))
    if has_alpha:
        white = Image.new("RGB", picture.size, "white")
        picture = Image.composite(picture, white, Image.fromarray(pixels[..., 3]))
    if film.pixel_aspect_ratio != 1:
        size = round(picture.width * film.pixel_aspect_ratio), picture.height
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    turn = _turn_of(frame)
    return picture if turn is None else picture.transpose(turn)


def _turn_of(frame: VideoFrame) -> Image.Transpose | None:
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return None
    signs = np.sign(np.frombuffer(matrix, np.int32)[[0, 1, 3, 4]])
    return _TURNS.get(tuple(signs.tolist()))


_VALUES = np.arange(256, dtype=np.float32) / 255
_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_WHITE_NITS = 203  # of a white surface (ITU-R BT.2408)
_MAX_NITS = 1000  # of the light that is shown as white
_KNEE = 0.5  # the share of a white surface's light up to which brightness stays as it is


def _pq_light(pixels: np.ndarray) -> np.ndarray:
    """Convert PQ values (ITU-R BT.2100) to light in nits."""
    power = _VALUES ** (1 / 78.84375)
    ratio = np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)
    return (10000 * ratio ** (1 / 0.1593017578125))[pixels]


def _hlg_light(pixels: np.ndarray) -> np.ndarray:
    """Convert HLG values (ITU-R BT.2100) to light in nits on a screen of 1000 nits."""
    bright = (np.exp((_VALUES - 0.55991073) / 0.17883277) + 0.28466892) / 12
    scene = np.where(_VALUES <= 0.5, _VALUES**2 / 3, bright)[pixels]
    return 1000 * scene * (scene @ _LUMA)[..., None] ** 0.2


_ROWS = 64  # that are converted at once
_LIGHT = {_PQ: _pq_light, _HLG: _hlg_light}


def _standard_colours(pixels: np.ndarray, frame: VideoFrame) -> np.ndarray:
    """Convert (H, W, 3) bytes to those that a standard screen shows."""
    is_wide, light_of = frame.color_primaries == _BT2020, _LIGHT.get(frame.color_trc)
    standard = np.array(pixels, order="C")
    # A whole frame as numbers with a point would take ten times its memory.
    for rows in np.array_split(standard, -(-len(standard) // _ROWS)) if is_wide or light_of else ():
        light = light_of(rows) / _WHITE_NITS if light_of else (_VALUES**2.2)[rows]
        if is_wide:
            light = np.maximum(light @ _TO_BT709.T, 0)
        if light_of:
            light = _tone_map(light)
        rows[:] = 255 * np.clip(light, 0, 1) ** (1 / 2.2) + 0.5
    return standard


def _tone_map(light: np.ndarray) -> np.ndarray:
    """Compress what is brighter than the knee, where 1 is the light of a white surface.

    The extended Reinhard curve continues the straight line without a bend. It is applied to the brightest
    channel, which keeps the hue.
    """
    brightest = light.max(-1, keepdims=True)
    headroom = 1 - _KNEE
    excess = np.maximum(brightest - _KNEE, 0) / headroom
    max_excess = np.maximum(_MAX_NITS / _WHITE_NITS - _KNEE, 0) / headroom
    compressed = headroom * excess * (1 + excess / max_excess**2) / (1 + excess)
    return light * (np.minimum(brightest, _KNEE) + compressed) / np.maximum(brightest, 1e-9)

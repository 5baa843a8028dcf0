"""The colours of pictures and frames as a standard screen shows them: sRGB or BT.709, with 8 bits."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageCms

# Codes of ITU-T H.273: the two high ranges, and two sets of primaries
_PQ, _HLG, _BT2020, _P3 = 16, 18, 9, 12
_PROFILE_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes | None, transfer: int, primaries: int) -> Image.Image:
    """Convert an 8-bit picture to sRGB, without its transparency, by its profile or codes of H.273.

    A profile is ignored if it is unusable, or if the range is high. A code is 0 if it is not declared.
    """
    if image.mode not in ("L", "CMYK"):
        image = image.convert("RGB")
    if profile and transfer not in _LIGHT:
        return _with_profile(image, profile).convert("RGB")
    image = image.convert("RGB")
    if transfer not in _LIGHT and primaries not in _TO_BT709:
        return image
    return Image.fromarray(to_standard_colours(np.asarray(image), transfer, primaries))


def _with_profile(image: Image.Image, profile: bytes) -> Image.Image:
    cms: Any = ImageCms  # Pillow's profiles have no type
    try:
        source = cms.ImageCmsProfile(io.BytesIO(profile))
        mode = _PROFILE_MODES.get(source.profile.xcolor_space)
        if mode == image.mode or (mode, image.mode) == ("RGB", "L"):
            image = image.convert(mode)
            return cms.profileToProfile(image, source, cms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        pass
    return image


_VALUES = np.arange(256, dtype=np.float32) / 255
_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_TO_BT709 = {
    _BT2020: np.array(
        [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
    ),
    _P3: np.array([[1.2249, -0.2249, 0], [-0.0421, 1.0421, 0], [-0.0196, -0.0786, 1.0983]], np.float32),
}
_WHITE_NITS = 203  # of a white surface (ITU-R BT.2408)
_MAX_NITS = 1000  # of the light that is shown as white
_KNEE = 0.5  # the share of a white surface's light up to which brightness stays as it is


def _pq_light(pixels: np.ndarray) -> np.ndarray:
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


def to_standard_colours(pixels: np.ndarray, transfer: int, primaries: int) -> np.ndarray:
    """Convert (H, W, 3) bytes with these codes of ITU-T H.273 to those that a standard screen shows."""
    light_of, matrix = _LIGHT.get(transfer), _TO_BT709.get(primaries)
    if light_of is None and matrix is None:
        return pixels
    standard = np.array(pixels, order="C")
    # All pixels at once, as numbers with a point, would take ten times their memory.
    for rows in np.array_split(standard, -(-len(standard) // _ROWS)):
        light = light_of(rows) / _WHITE_NITS if light_of else (_VALUES**2.2)[rows]
        if matrix is not None:
            light = np.maximum(light @ matrix.T, 0)
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

"""The colours of pictures and frames as a standard screen shows them: sRGB or BT.709, with 8 bits.

Colour profiles are applied. High dynamic range (PQ and HLG) is mapped to the standard one.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageCms

_PQ, _HLG, _BT2020 = 16, 18, 9  # the codes of the two high ranges and of BT.2020 in ITU-T H.273
_PROFILE_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes | None, transfer: int, primaries: int) -> Image.Image:
    """Convert the colours of a picture to sRGB, without its transparency.

    Args:
        image: The picture, with 8 bits per channel.
        profile: The ICC profile of the picture, if any. An unusable one is ignored.
        transfer, primaries: The picture's codes of ITU-T H.273; 0 for those that it does not declare. The
            code of a high range takes precedence over a profile.
    """
    if image.mode not in ("L", "CMYK"):
        image = image.convert("RGB")
    if transfer in _LIGHT:
        return Image.fromarray(to_standard_range(np.asarray(image.convert("RGB")), transfer, primaries))
    return (_with_profile(image, profile) if profile else image).convert("RGB")


def _with_profile(image: Image.Image, profile: bytes) -> Image.Image:
    cms: Any = ImageCms  # Pillow's profiles have no type
    try:
        source = cms.ImageCmsProfile(io.BytesIO(profile))
        mode = _PROFILE_MODES.get(source.profile.xcolor_space)
        if mode == image.mode or (mode, image.mode) == ("RGB", "L"):
            return cms.profileToProfile(
                image.convert(mode), source, cms.createProfile("sRGB"), outputMode="RGB"
            )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        pass
    return image


_VALUES = np.arange(256, dtype=np.float32) / 255
_LUMA = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_WHITE_NITS = 203  # of a white surface (ITU-R BT.2408)
_MAX_NITS = 1000  # of the light that is shown as white
_KNEE = 0.5  # the share of a white surface's light up to which brightness stays as it is
_ROWS = 64  # that are mapped at once, since the numbers in between take many times the memory of the pixels


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


_LIGHT = {_PQ: _pq_light, _HLG: _hlg_light}


def to_standard_range(pixels: np.ndarray, transfer: int, primaries: int) -> np.ndarray:
    """Map (H, W, 3) bytes of high dynamic range to those that a standard screen shows; leave others.

    Args:
        transfer, primaries: Codes of ITU-T H.273.
    """
    if transfer not in _LIGHT:
        return pixels
    bands = (pixels[top : top + _ROWS] for top in range(0, len(pixels), _ROWS))
    mapped = (_tone_map(_LIGHT[transfer](band), is_wide=primaries == _BT2020) for band in bands)
    return np.concatenate([*mapped])


def _tone_map(nits: np.ndarray, *, is_wide: bool) -> np.ndarray:
    """Convert light in nits to the picture, (H, W, 3) bytes, that a standard screen shows.

    What is brighter than the knee is compressed by an extended Reinhard curve, which continues the straight
    line without a bend. It is applied to the brightest channel, which keeps the hue.
    """
    light = nits / _WHITE_NITS
    if is_wide:
        light = np.maximum(light @ _TO_BT709.T, 0)
    brightest = light.max(-1, keepdims=True)
    headroom = 1 - _KNEE
    excess = np.maximum(brightest - _KNEE, 0) / headroom
    max_excess = np.maximum(_MAX_NITS / _WHITE_NITS - _KNEE, 0) / headroom
    compressed = headroom * excess * (1 + excess / max_excess**2) / (1 + excess)
    light = light * (np.minimum(brightest, _KNEE) + compressed) / np.maximum(brightest, 1e-9)
    return (255 * np.clip(light, 0, 1) ** (1 / 2.2) + 0.5).astype(np.uint8)

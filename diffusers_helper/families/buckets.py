"""The picture shapes that the model was trained for."""

from __future__ import annotations

from collections.abc import Callable

Buckets = Callable[[int, int], tuple[tuple[int, int], ...]]
REFERENCE_SIDE = 640
# FramePack's shapes at side 640, height first
REFERENCE_BUCKETS: tuple[tuple[int, int], ...] = (
    (416, 960), (448, 864), (480, 832), (512, 768), (544, 704), (576, 672), (608, 640),
    (640, 608), (672, 576), (704, 544), (768, 512), (832, 480), (864, 448), (960, 416),
)  # fmt: skip


def buckets(side: int = REFERENCE_SIDE, multiple: int = 32) -> tuple[tuple[int, int], ...]:
    """Return the distinct reference shapes (height, width), scaled to `side` and rounded to `multiple`."""
    if multiple < 1 or side < multiple:
        raise ValueError(f"side is {side} and multiple is {multiple}; expected side >= multiple >= 1.")

    def scaled(edge: int) -> int:
        unit = REFERENCE_SIDE * multiple
        return max(multiple, (2 * edge * side + unit) // (2 * unit) * multiple)

    return tuple(dict.fromkeys((scaled(h), scaled(w)) for h, w in REFERENCE_BUCKETS))


def nearest_bucket(
    height: int, width: int, side: int = REFERENCE_SIDE, multiple: int = 32, offered: Buckets = buckets
) -> tuple[int, int]:
    """Return the shape with the nearest aspect ratio, by the least |h bw - w bh|; the later one on a tie.

    Args:
        height: The height of the picture.
        width: The width of the picture.
        side: The side of a square of the shapes' area.
        multiple: The number of which the shapes' sides are multiples.
        offered: Returns the shapes to choose from, given side and multiple.
    """
    if height < 1 or width < 1:
        raise ValueError(f"The picture has {width}x{height} pixels; expected at least one pixel each way.")
    candidates = offered(side, multiple)
    return min(reversed(candidates), key=lambda shape: abs(height * shape[1] - width * shape[0]))

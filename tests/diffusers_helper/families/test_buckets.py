"""Tests of picture shapes: FramePack's table, its rule at other sizes, and the choice of the nearest."""

from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.families.family import REFERENCE_BUCKETS, buckets
from diffusers_helper.families.framepack import FRAMEPACK

sides = st.integers(64, 1280)
multiples = st.sampled_from([16, 32])


def test_side_640_gives_framepacks_fourteen_shapes() -> None:
    assert buckets() == buckets(640, 32) == REFERENCE_BUCKETS


@given(side=sides, multiple=multiples)
def test_scaled_shapes_keep_area_aspect_and_grid(side: int, multiple: int) -> None:
    shapes = buckets(side, multiple)
    assert len(set(shapes)) == len(shapes) <= 14
    # Whichever of two equal shapes is dropped, the set stays the same when turned by 90 degrees.
    assert {(width, height) for height, width in shapes} == set(shapes)
    for height, width in shapes:
        assert height % multiple == width % multiple == 0
        assert any(
            all(
                # The side is the nearest multiple of the grid's step, but at least one step.
                abs(edge - wanted * side / 640) <= multiple / 2 or edge == multiple > wanted * side / 640
                for edge, wanted in zip((height, width), reference, strict=True)
            )
            for reference in REFERENCE_BUCKETS
        )


@given(height=st.integers(1, 20_000), width=st.integers(1, 20_000), side=sides, multiple=multiples)
def test_nearest_shape_has_the_least_cross_difference(
    height: int, width: int, side: int, multiple: int
) -> None:
    chosen = FRAMEPACK.nearest_bucket(height, width, side, multiple)
    candidates = buckets(side, multiple)
    best = min(abs(height * w - width * h) for h, w in candidates)
    assert [shape for shape in candidates if abs(height * shape[1] - width * shape[0]) == best][-1] == chosen

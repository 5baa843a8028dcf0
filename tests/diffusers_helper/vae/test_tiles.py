"""Tests that tiles have one size, cover a side and have weights that add up to one, and of joined tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diffusers_helper.planning.vae import Tiles
from diffusers_helper.vae.passes import Axis, Grid, Mosaic


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int]:
    tile = draw(st.integers(2, 64))
    return draw(st.integers(1, 300)), tile, draw(st.integers(0, tile // 2))


@given(cuts())
def test_tiles_are_equal_and_cover_the_side(cut: tuple[int, int, int]) -> None:
    length, tile, overlap = cut
    axis = Axis.cut(length, tile, overlap)
    num_tiles = len(axis.starts)
    assert axis.tile_size <= tile
    # One latent less would not cover the side with this overlap.
    assert num_tiles * (axis.tile_size - 1) - (num_tiles - 1) * overlap < length
    assert axis.starts[0] == 0
    assert axis.starts[-1] + axis.tile_size == length
    for before, after in zip(axis.starts, axis.starts[1:], strict=False):
        assert before < after <= before + axis.tile_size - overlap
    # One tile less would not cover the side with this overlap.
    fewer = num_tiles - 1
    assert fewer == 0 or fewer * tile - (fewer - 1) * overlap < length


@given(cuts(), st.integers(1, 4))
def test_weights_add_up_to_one(cut: tuple[int, int, int], scale: int) -> None:
    axis = Axis.cut(*cut)
    total = torch.zeros(axis.length * scale)
    for start, weight in zip(axis.starts, axis.weights(scale), strict=True):
        assert weight.min() > 0
        assert len(weight) == axis.tile_size * scale
        total[start * scale : start * scale + len(weight)] += weight
    torch.testing.assert_close(total, torch.ones_like(total))


def pictures(frames: int, height: int, width: int) -> Tensor:
    return torch.randn(1, 3, frames, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_of_a_picture_make_the_picture(dtype: torch.dtype) -> None:
    source, grid = pictures(5, 40, 56).to(dtype), Grid.cut((10, 14), Tiles(6, 2), 1)
    assert len(grid.tiles) == 2 * 3
    mosaic = Mosaic(grid, 4, 5)
    for place in grid.tiles:
        tile = grid.tile_of(source, place, 4)
        assert tile.shape[-2:] == (24, 24)
        mosaic.add(place, 0, tile[:, :, :2])
        mosaic.add(place, 2, tile[:, :, 2:])
    result = mosaic.finish()
    assert result.dtype == dtype
    torch.testing.assert_close(result, source)


def test_between_two_tiles_the_one_passes_into_the_other() -> None:
    mosaic = Mosaic(Grid.cut((1, 8), Tiles(5, 2), 1), 2, 1)
    mosaic.add((0, 0), 0, torch.zeros(1, 1, 1, 2, 10))
    mosaic.add((0, 1), 0, torch.ones(1, 1, 1, 2, 10))
    row = mosaic.finish()[0, 0, 0, 0]
    torch.testing.assert_close(row, torch.tensor([0.0] * 6 + [0.125, 0.375, 0.625, 0.875] + [1.0] * 6))


def test_one_tile_is_handed_through_as_it_is() -> None:
    source = pictures(3, 8, 8)
    mosaic = Mosaic(Grid.cut((2, 2), Tiles(), 1), 4, 3)
    mosaic.add((0, 0), 0, source)
    assert mosaic.finish() is source


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 40), st.sampled_from([8, 16]))
def test_a_plan_has_the_tiles_that_are_cut(height: int, width: int, tile: int, scale: int) -> None:
    tiles = Tiles.of(32 * tile)
    fitted = tiles.fitted(height * scale, width * scale)
    grid = Grid.cut((height, width), tiles, scale)
    for axis, side in zip((grid.rows, grid.columns), fitted, strict=True):
        assert 0 <= side - scale * axis.tile_size < 16
        assert side <= scale * axis.length

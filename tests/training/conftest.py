"""The fixture that the tests of the demo world share."""

import pytest

from training.render import Renderer, make_canvases


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_canvases(3, 1))

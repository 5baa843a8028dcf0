"""The page that the tests of models open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.pages import Stand, strict_window


@pytest.fixture
def page(browser: Any, stand: Stand) -> Iterator[Any]:
    """Open the page; fail if it leaves an error in the console."""
    with strict_window(browser, stand) as page:
        yield page

"""The page's scripts: ES modules, served unchanged at an address that changes whenever one of them does."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

ROUTE = "scripts"
_FOLDER = Path(__file__).parent


def on_load(module: str, function: str = "default") -> str:
    """Return the `js_on_load` of a component that an exported function of a module sets up."""
    return f"{_imported(module)}.then((module) => module.{function}({{ element, props, trigger, watch }}));"


def call(module: str, function: str, *leading: object) -> str:
    """Return the `js` of an event whose values go, after the leading arguments, to a function of a module."""
    given = "".join(f"{json.dumps(argument)}, " for argument in leading)
    return f"(...values) => {_imported(module)}.then((module) => module.{function}({given}...values))"


def content(address: str) -> bytes | None:
    """Return the module at an address below the route, or None if there is none."""
    version, _, module = address.partition("/")
    return _modules().get(module) if version == _version() else None


@cache
def head() -> bytes:
    """Return the markup with which the head of every document begins, before Gradio's own scripts."""
    return (_FOLDER / "head.html").read_bytes()


def _imported(module: str) -> str:
    """Return the expression that imports a module."""
    if module not in _modules():
        raise FileNotFoundError(module)
    # The address is relative to the page, which may lie below another path. A bare path would be relative to
    # Gradio's script that evaluates the expression.
    return f"import(new URL('{ROUTE}/{_version()}/{module}', document.baseURI))"


@cache
def _modules() -> dict[str, bytes]:
    """Return every module by its path, as it was when the page was built."""
    files = sorted(_FOLDER.rglob("*.js"))
    return {file.relative_to(_FOLDER).as_posix(): file.read_bytes() for file in files}


@cache
def _version() -> str:
    """Return a version that changes with any module; they share it, so that they can import each other."""
    return hashlib.sha256(repr(_modules()).encode()).hexdigest()[:12]

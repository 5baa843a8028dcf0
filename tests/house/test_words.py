"""Tests that each word stands for one thing: no value has a name that says nothing."""

import ast
import re
from collections.abc import Iterator

from tests.support.layers import sources

PRODUCT = ("app/", "cache/", "diffusers_helper/", "rocm_nodes/")
# Values have a noun as their name: the section, the job, the tile.
EMPTY_NAMES = {"one", "found", "given", "known", "own", "shown", "told"}
# Words of our own that the field has a word for, as names of functions, classes, parameters and fields.
DIALECT = {
    "way", "ways", "shrink", "magnitudes", "shortage", "foresee", "bury", "let_go", "settle", "told_apart",
    "family_of", "strangers", "Way", "Twig", "Errand", "Shortage", "Ladder",
}  # fmt: skip


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of values, functions and classes, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_names_are_nouns_of_the_field() -> None:
    unclear = [
        f"{source.path}:{line}: {name}"
        for source in sources()
        if source.path.startswith(PRODUCT)
        for name, line in names_in(source.tree)
        if name in EMPTY_NAMES | DIALECT
    ]
    assert not unclear, "\n".join(unclear)


def test_no_docstring_says_only_the_name() -> None:
    """The docstring of `free_bytes` is not "Return the free bytes."."""
    repeated = []
    for source in sources():
        for node in ast.walk(source.tree) if source.path.startswith(PRODUCT) else ():
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                words = set(re.findall(r"[a-z]+", text.lower())) - {"return", "get", "the", "a", "of", "an"}
                if words <= set(node.name.lower().split("_")):
                    repeated.append(f"{source.path}:{node.lineno}: {node.name}: {text}")
    assert not repeated, "\n".join(repeated)

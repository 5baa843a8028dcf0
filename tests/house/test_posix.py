"""Tests that what only POSIX has is used where docs/development.md says, and nowhere else."""

import ast
import re

import pytest

from tests.support.layers import ROOT, Source, imports, named, sources

PRODUCT = ("app/", "cache/", "diffusers_helper/", "rocm_nodes/")
# Further names of modules and of `os` that Windows lacks. Whoever needs one adds it to the table first.
ELSEWHERE = frozenset({
    "grp", "pty", "pwd", "termios", "tty", "os.chown", "os.fork", "os.getuid", "os.getpgid", "os.killpg",
    "os.mkfifo", "os.O_DIRECTORY", "os.O_NOFOLLOW", "os.preadv", "os.pwrite", "os.setsid",
    "os.statvfs",
})  # fmt: skip


def table() -> dict[str, set[str]]:
    """Return the modules of each name in the table of docs/development.md."""
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    section = page.partition("\n## What only POSIX has\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")][2:]
    quoted = [[re.findall("`([^`]+)`", cell) for cell in row] for row in rows]
    return {name: set(where) for names, where in quoted for name in names if name != "fsync"}


def uses(source: Source) -> set[str]:
    """Return the modules that a file imports, and the attributes that it uses, such as `os.pwrite`."""
    names = {target for _, target in imports(source)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            # The C library's function is an attribute of a call's result.
            names.add(node.attr if node.attr == "prctl" else named(node))
    return names


def faults(where: dict[str, set[str]], files: list[Source]) -> set[tuple[str, str]]:
    """Return the files with the names that they use although they must not."""
    names = where.keys() | ELSEWHERE
    return {
        (source.path, name)
        for source in files
        for name in uses(source) & names
        if source.path not in where.get(name, ())
    }


def test_what_only_posix_has_is_where_the_table_says() -> None:
    where = table()
    assert {"fcntl", "signal", "prctl", "resource", "os.posix_fallocate", "select"} <= where.keys()
    product = [source for source in sources() if source.path.startswith(PRODUCT)]
    assert faults(where, product) == set()
    used = {(name, source.path) for source in product for name in uses(source)}
    assert {(name, path) for name, paths in where.items() for path in paths} <= used


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import fcntl", "fcntl"),
        ("from signal import SIGINT", "signal"),
        ("def f():\n    import resource", "resource"),
        ("import ctypes\nctypes.CDLL(None).prctl(1, 9)", "prctl"),
        ("import os\nos.pwrite(1, b'', 0)", "os.pwrite"),
        ("import os\nos.killpg(1, 9)", "os.killpg"),
    ],
)
def test_a_use_elsewhere_is_found(text: str, name: str) -> None:
    assert faults(table(), [Source("app/x.py", text)]) == {("app/x.py", name)}
    assert faults({name: {"app/x.py"}}, [Source("app/x.py", text)]) == set()

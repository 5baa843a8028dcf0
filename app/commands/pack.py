"""The built pack: a copy of the nodes for ComfyUI whose modules have no name at the top level.

ComfyUI loads the nodes of all authors into one process, where the names `cache`, `app` or `training` may be
others'. The imports of the copy are therefore rewritten to relative ones, as pip does with what it vendors.
Only the names change, at their places in the syntax tree, so lines and comments stay as they are.
"""

from __future__ import annotations

import ast
import hashlib
import re
import secrets
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "longtake_rocm"
PACKED = ("cache", "diffusers_helper", "rocm_nodes")
INIT_TEXT = b"""# Built by Longtake's install-comfyui-nodes; changes here are lost when it runs again.
from ._vendor.rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

WEB_DIRECTORY = "./web"  # the help pages are in its folder docs
__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
"""
_FOLDER = "_vendor"
# What lies beside the modules, in these folders: what the Registry and ComfyUI's page read, and a model.
_DEMO = "assets/demo_model"
_DATA_FOLDERS = {
    "rocm_nodes/pack": "", "example_workflows": "example_workflows/", _DEMO: f"{_FOLDER}/{_DEMO}/",
}  # fmt: skip
_STAMP = ".stamp"
OUR_PACKAGES = (*PACKED, "app", "training")
# Calls whose argument is the name of a module, even where it has no dot, as in "cache".
_MODULE_NAME_FUNCTIONS = {"getLogger", "import_module", "find_spec", "__import__"}
DOTTED = re.compile(rf"({'|'.join(PACKED)})\.[\w.]*")


def write_pack(folder: Path, root: Path = ROOT) -> None:
    """Write the pack as a folder, in the place of an older one, as a whole or not at all.

    Until it is complete, its name has the ending of folders that ComfyUI does not load.
    """
    names = (f".{folder.name}.{secrets.token_hex(4)}.disabled" for _ in range(2))
    new_folder, old_folder = map(folder.with_name, names)
    try:
        for name, data in pack_files(root).items():
            (new_folder / name).parent.mkdir(parents=True, exist_ok=True)
            (new_folder / name).write_bytes(data)
        if folder.exists():
            folder.rename(old_folder)
        new_folder.rename(folder)
    finally:
        if old_folder.exists() and not folder.exists():
            old_folder.rename(folder)
        for leftover in (new_folder, old_folder):
            shutil.rmtree(leftover, ignore_errors=True)


def refresh_pack(folder: Path) -> None:
    """Write the pack unless it was built from these files, as their names, sizes and times say."""
    entries = [
        (str(file), file.stat().st_size, file.stat().st_mtime_ns)
        for top in (*PACKED, *_DATA_FOLDERS, "app/commands")
        for file in sorted((ROOT / top).rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    ]
    stamp = hashlib.sha256(repr(entries).encode()).hexdigest()
    file = folder / _STAMP
    if not file.is_file() or file.read_text(encoding="ascii") != stamp:
        write_pack(folder)
        file.write_text(stamp, encoding="ascii")


def pack_files(root: Path = ROOT) -> dict[str, bytes]:
    files = {"__init__.py": INIT_TEXT, f"{_FOLDER}/__init__.py": b""}
    if (root / "LICENSE").is_file():  # a wheel keeps it elsewhere
        files["LICENSE"] = (root / "LICENSE").read_bytes()
    for source, target in _DATA_FOLDERS.items():
        sources = (file for file in (root / source).rglob("*") if file.is_file())
        files |= {target + file.relative_to(root / source).as_posix(): file.read_bytes() for file in sources}
    for file in (file for top in PACKED for file in (root / top).rglob("*.py")):
        files[f"{_FOLDER}/{file.relative_to(root).as_posix()}"] = Rewriter(file, root).result()
    return dict(sorted(files.items()))


class Rewriter(ast.NodeVisitor):
    """The text of one module, with its references to others rewritten.

    A test refuses what cannot be rewritten, such as `import cache.conv`, which has no relative form.
    """

    def __init__(self, file: Path, root: Path) -> None:
        self._file, self._source = file, file.read_bytes()
        self._package = ".".join(file.relative_to(root).parent.parts)
        self._to_root = "." * (1 + len(self._package.split(".")))
        self._names: set[ast.AST] = set()
        self._edits: list[tuple[int, int, str]] = []
        self._line_offsets = [0]
        for line in self._source.split(b"\n"):
            self._line_offsets.append(self._line_offsets[-1] + len(line) + 1)
        self.visit(ast.parse(self._source, str(file)))

    def result(self) -> bytes:
        text = self._source
        for start, end, replacement in sorted(self._edits, reverse=True):
            text = text[:start] + replacement.encode() + text[end:]
        return text

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Put the dots that lead to the root of the pack before the name of a module."""
        if not node.level and is_our_module(node.module or ""):
            start, end = self._span(node)
            word = re.match(rb"from[\s\\]+", self._source[start:end])
            assert word is not None
            self._edits.append((start + word.end(), start + word.end(), self._to_root))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in _MODULE_NAME_FUNCTIONS:
            self._names.update(node.args)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Turn the name of a module into an expression that is its name wherever the pack is."""
        if name := self.name_in(node):
            skipped = "\n" * ((node.end_lineno or node.lineno) - node.lineno)
            expression = f'({skipped}__spec__.parent.removesuffix("{self._package}") + "{name}")'
            self._edits.append((*self._span(node), expression))

    def name_in(self, node: ast.Constant) -> str:
        name = node.value
        if not isinstance(name, str) or not is_our_module(name):
            return ""
        is_sure = node in self._names or name in ("diffusers_helper", "rocm_nodes")
        return name if is_sure or DOTTED.fullmatch(name) else ""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave it alone: its names begin with `__name__`."""

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last, behind = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._line_offsets[node.lineno - 1] + node.col_offset, self._line_offsets[last - 1] + behind


def is_our_module(name: str) -> bool:
    return name.partition(".")[0] in OUR_PACKAGES

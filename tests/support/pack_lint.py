"""The search for what a built pack cannot carry: names of modules that cannot be rewritten, and data."""

import ast
import re
from collections.abc import Iterable
from importlib.util import resolve_name
from itertools import pairwise
from pathlib import Path

from app.commands.pack import PACKED, rewritten

OUR_PACKAGES = (*PACKED, "app", "training")
DOTTED = re.compile(rf"({'|'.join(PACKED)})\.[\w.]*")
# Calls whose argument is the name of a module, even where it has no dot, as in "cache".
TAKES_NAME = {"getLogger", "import_module", "find_spec", "__import__"}
# A new process would look for its modules by name, and finds none that is inside a pack.
SPAWNING = {"multiprocessing", "ProcessPoolExecutor"}
# The module that reads data, the demo model, at a path that begins with its own `__file__`.
READER = "diffusers_helper/models/registry.py"


def is_our_module(name: str) -> bool:
    return name.partition(".")[0] in OUR_PACKAGES


class PackLint(ast.NodeVisitor):
    """A reading of one module of the pack that ends at the first thing that a pack cannot carry."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file, self._root = file, root
        self._package = ".".join(("pack", *file.relative_to(root).parent.parts))
        self.visit(ast.parse(rewritten(file, root), str(file)))

    def visit_Import(self, node: ast.Import) -> None:
        """Refuse our own modules here, as only `from` can be relative."""
        names = [alias.name for alias in node.names]
        self._refuse_spawning(node, names)
        for name in filter(is_our_module, names):
            self._refuse(node, f"it imports {name} without `from`, so the import cannot be relative")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = resolve_name("." * node.level + (node.module or ""), self._package)
        self._refuse_spawning(node, [module, *(alias.name for alias in node.names)])
        if is_our_module(module):
            self._refuse(node, f"it imports {module} in a form that is not made relative")
        name = module.removeprefix("pack").removeprefix(".")
        if name != module and name and not self._is_there(name):
            self._refuse(node, f"it refers to {name}, which the pack does not have")

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for one in node.args if function in TAKES_NAME else ():
            if isinstance(one, ast.Constant) and is_our_module(str(one.value)):
                self._refuse(node, f"it names {one.value}, which has another name in the pack")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if DOTTED.match(str(node.value)) and " " not in str(node.value):
            self._refuse(node, f"it names {node.value}, which has another name in the pack")

    def visit_Name(self, node: ast.Name) -> None:
        """Refuse a path to data that the pack does not have."""
        if node.id == "__file__" and not self._file.as_posix().endswith(READER):
            self._refuse(node, "it reads data that the pack does not have")

    def visit_List(self, node: ast.List | ast.Tuple) -> None:
        """Refuse a command that starts a module by its name."""
        texts = [one.value if isinstance(one, ast.Constant) else "" for one in node.elts]
        for one, other in pairwise(texts):
            if one == "-m" and is_our_module(str(other)):
                self._refuse(node, f"it starts {other} by its name")
        self.generic_visit(node)

    visit_Tuple = visit_List

    def _is_there(self, name: str) -> bool:
        path = self._root.joinpath(*name.split("."))
        return not name.endswith(".") and (path.is_dir() or path.with_suffix(".py").is_file())

    def _refuse_spawning(self, node: ast.AST, names: Iterable[str]) -> None:
        for name in names:
            if name.partition(".")[0] in SPAWNING:
                self._refuse(node, f"{name} starts processes that cannot find the pack's modules")

    def _refuse(self, node: ast.AST, why: str) -> None:
        raise ValueError(f"{self._file}, line {getattr(node, 'lineno', 0)}: {why}.")


def check_pack(root: Path) -> None:
    """Read all modules that a pack takes along.

    Raises:
        ValueError: If one of them has something that a pack cannot carry.
    """
    for file in (file for top in PACKED for file in (root / top).rglob("*.py")):
        PackLint(file, root)

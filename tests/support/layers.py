"""The checks of the table of layers and of the house rules, which read syntax trees and import nothing.

To admit a new package, or to move a module to another layer, change the table in pyproject.toml.
"""

import ast
import gc
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("cache", "diffusers_helper", "app", "rocm_nodes", "training")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_STARTER_LINES = 400, 60, 40


@dataclass(frozen=True)
class Layer:
    """A layer of the table in pyproject.toml.

    Attributes:
        modules: The names of modules and packages, each including everything below it.
        imports: The other layers that it may import from.
        packages: Third-party packages that it may import; "any" allows all but those in `banned`.
        banned: Top-level names, also of the standard library, that it may not import anywhere.
        deferred: Top-level names that it may import only inside functions.
        strict: Whether the type checker is strict with its modules.
    """

    name: str
    modules: list[str]
    imports: list[str]
    packages: list[str] | str
    banned: tuple[str, ...] | list[str] = ("argparse",)
    deferred: tuple[str, ...] | list[str] = ()
    strict: bool = False
    reads_environment: bool = False
    writes_environment: bool = False


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
LAYERS = tuple(Layer(**entry) for entry in PROJECT["longtake"]["layers"])
CORE = next(layer for layer in LAYERS if layer.name == "core").modules
HEAVY = frozenset({"torch", "torchvision", "diffusers", "transformers", "accelerate", "safetensors", "av"})
# The main modules of processes, which are run and never imported.
NEVER_IMPORTED = ("app.engine", "app.probe", "app.relay", "app.reading.worker", "app.__main__", "demo_gradio")
UNSAFE = frozenset({"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"})
# Its unpickler gets stand-ins in place of whatever a pickle names.
READER_OF_PICKLES = "diffusers_helper.weights.pickle_file"


def place(module: str) -> str:
    """Return the path of a module or package. The path of a folder ends in a slash."""
    path = module.replace(".", "/")
    return f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"


def own_modules(layer: Layer) -> list[str]:
    """Return the paths of a layer's entries that exist, without packages' `__init__` files."""
    places = [place(module) for module in layer.modules if not module.endswith(".__init__")]
    return [path for path in places if (ROOT / path).exists()]


def shown(paths: list[str]) -> str:
    """Return paths as a cell of the table, which names the folder that all of them are in only once."""
    folders = {path.rstrip("/").rpartition("/")[0] for path in paths}
    if len(paths) == 1 or len(folders) > 1:
        return ", ".join(f"`{path}`" for path in paths)
    (folder,) = folders
    return f"in `{folder}/`: " + ", ".join(f"`{path.removeprefix(folder + '/')}`" for path in paths)


def layer_table() -> str:
    lines = ["| layer | modules | imports | other packages |", "| --- | --- | --- | --- |"]
    for layer in filter(own_modules, LAYERS):
        modules = shown(own_modules(layer))
        packages = layer.packages if isinstance(layer.packages, str) else ", ".join(layer.packages)
        banned = [name for name in layer.banned if name != "argparse"]
        packages += f", but not {', '.join(banned)}" if banned and packages == "any" else ""
        lines.append(f"| {layer.name} | {modules} | {', '.join(layer.imports)} | {packages} |")
    return "\n".join(lines)


def is_below(module: str, prefix: str) -> bool:
    """Return whether a module is `prefix` or below it. The name `package.__init__` stands for the package."""
    return module == prefix or module.startswith(prefix + ".") or f"{module}.__init__" == prefix


def layer_of(file: str) -> Layer:
    matches = [(len(prefix), layer) for layer in LAYERS for prefix in layer.modules if is_below(file, prefix)]
    return max(matches, key=lambda match: match[0])[1]


@dataclass
class Source:
    """One parsed file. `known` are all modules of the repository."""

    path: str
    text: str
    known: frozenset[str] = frozenset()
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text, self.path)

    @property
    def file(self) -> str:
        """Return the path as the name of a module, which ends in `.__init__` for a package's own file."""
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def module(self) -> str:
        return module_name(self.path)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def named(node: ast.AST) -> str:
    """Return a name such as `a.b.c` as it is written, or "" for any other expression."""
    if isinstance(node, ast.Attribute):
        prefix = named(node.value)
        return f"{prefix}.{node.attr}" if prefix else ""
    return node.id if isinstance(node, ast.Name) else ""


def not_run_on_import(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes that an import does not run: functions, and blocks for type checkers."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, functions)
        or (isinstance(node, ast.If) and named(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"))
        for inner in ast.walk(node)
    }


def imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Yield each imported module, also those of `from package import module` and `import_module("name")`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node, full if full in source.known else node.module
        elif isinstance(node, ast.Call) and named(node.func).endswith(("import_module", "__import__")):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node, first.value


def import_faults(source: Source) -> Iterator[tuple[ast.AST, str]]:
    layer = layer_of(source.file)
    allowed = {layer.name, *layer.imports}
    later = not_run_on_import(source.tree)
    for node, target in imports(source):
        top = target.split(".")[0]
        other = layer_of(target).name if top in (*PRODUCT, "demo_gradio") else ""
        if target in NEVER_IMPORTED:
            yield node, f"imports {target}, which is only ever started as a process of its own"
        elif top in UNSAFE and (top, source.file) != ("pickle", READER_OF_PICKLES):
            yield node, f"imports {top}; data crosses pipes and disks as JSON or safetensors"
        elif top in layer.banned:
            yield node, f"imports {target}; layer '{layer.name}' must not"
        elif other and other not in allowed:
            below = ", ".join(layer.imports) or "no other"
            yield node, f"imports {target} of layer '{other}'; layer '{layer.name}' may import {below}"
        elif not other and layer.packages != "any" and top not in {*layer.packages, *sys.stdlib_module_names}:
            packages = ", ".join(layer.packages) or "nothing"
            yield (
                node,
                f"imports {target}; besides the standard library, '{layer.name}' may import {packages}",
            )
        if top in layer.deferred and node not in later and other != "core":
            yield node, f"imports {target} at the top; layer '{layer.name}' may do so in a function only"


def environment_faults(source: Source) -> Iterator[tuple[ast.AST, str]]:
    layer = layer_of(source.file)
    writers = ("update", "setdefault", "pop", "popitem", "clear")
    for node in ast.walk(source.tree):
        writes = False
        if isinstance(node, ast.Subscript) and named(node.value) in ("os.environ", "environ"):
            writes = isinstance(node.ctx, ast.Store | ast.Del)
        elif isinstance(node, ast.Call):
            writes = named(node.func) in {f"os.environ.{name}" for name in writers} | {
                "os.putenv",
                "os.unsetenv",
            }
        if writes and not layer.writes_environment:
            yield node, f"writes the environment; layer '{layer.name}' must not"
        reads = named(node) in ("os.environ", "os.getenv", "os.putenv")
        reads |= (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(alias.name in ("environ", "getenv", "putenv") for alias in node.names)
        )
        if reads and not layer.reads_environment:
            yield node, f"uses the environment; layer '{layer.name}' gets its settings as arguments"


def house_faults(source: Source) -> Iterator[tuple[ast.AST | None, str]]:
    """Yield the violations of the rules for every file, tests included, that ruff does not know."""
    lines = source.text.splitlines()
    limit = MAX_STARTER_LINES if source.path == "demo_gradio.py" else MAX_FILE_LINES
    if len(lines) > limit:
        yield None, f"has {len(lines)} lines; at most {limit}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield node, f"{node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            yield node.value, "uses trust_remote_code; models run our code only"
        elif isinstance(node, ast.Call) and named(node.func) == "torch.load" and not reads_tensors_only(node):
            yield node, "uses torch.load without weights_only=True, which runs code that the file brings"


def reads_tensors_only(call: ast.Call) -> bool:
    return any(
        keyword.arg == "weights_only"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def import_graph(files: tuple[Source, ...]) -> dict[str, set[str]]:
    modules = {source.module for source in files}
    return {source.module: {target for _, target in imports(source) if target in modules} for source in files}


def room_of(module: str) -> str:
    """Return the folder of the library that a module is in, or the module itself beside these folders."""
    name = ".".join(module.split(".")[:2])
    return place(name) if (ROOT / place(name)).exists() else module


def room_graph(files: tuple[Source, ...]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for module, targets in import_graph(files).items():
        if module.startswith("diffusers_helper."):
            rooms = {room_of(target) for target in targets if target.startswith("diffusers_helper.")}
            graph.setdefault(room_of(module), set()).update(rooms - {room_of(module)})
    return {room: targets & graph.keys() for room, targets in graph.items()}


def faults(source: Source) -> list[str]:
    reports: list[tuple[ast.AST | None, str]] = list(house_faults(source))
    if source.path.split("/")[0].removesuffix(".py") in (*PRODUCT, "demo_gradio"):
        reports += import_faults(source)
        reports += environment_faults(source)
    numbered = sorted((getattr(node, "lineno", 0), message) for node, message in reports)
    return [
        f"{source.path}:{line}: {message}" if line else f"{source.path} {message}"
        for line, message in numbered
    ]


def python_files(*folders: str) -> list[str]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts]


@cache
def sources() -> tuple[Source, ...]:
    """Return every file of the product and of the tests, parsed only once."""
    paths = python_files(*PRODUCT, "tests", "benchmarks")
    paths += ["demo_gradio.py"] if (ROOT / "demo_gradio.py").is_file() else []
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}
    known = frozenset(module_name(path) for path in texts)
    gc.disable()  # collections among a million new nodes take several times as long as the parsing
    parsed = tuple(Source(path, text, known) for path, text in texts.items())
    gc.freeze()
    gc.enable()
    return parsed

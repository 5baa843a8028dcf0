"""Tests of the built pack: its rewritten imports, what it refuses, and how it is written."""

import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.commands import pack
from app.commands.pack import pack_files, write_pack
from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.layers import ROOT
from tests.support.pack_lint import check_pack

COMMENT = "  # kept: import cache"
# A line of rocm_nodes/inner/__init__.py, and what it becomes.
REWRITTEN = [
    ("from cache import conv", "from ...cache import conv"),
    ("from cache.conv import *", "from ...cache.conv import *"),
    ("from cache.conv import (\n    VALUE,\n)", "from ...cache.conv import (\n    VALUE,\n)"),
    ("def f():\n    from cache import conv", "def f():\n    from ...cache import conv"),
    ("from . import side", "from . import side"),
    ("x = 'cache'; y = {'app': 1}", "x = 'cache'; y = {'app': 1}"),
]
REFUSED = [
    ("from app.engine import main", "imports app.engine in a form"),
    ("x = 1; from cache import conv", "imports cache in a form"),
    ("import training", "imports training without `from`"),
    ("from cache.gone import x", "refers to cache.gone"),
    ("x = import_module('app')", "names app,"),
    ("x = f'cache.{name}'", "names cache.,"),
    ("x = [sys.executable, '-m', 'rocm_nodes']", "starts rocm_nodes by its name"),
    ("import multiprocessing.pool", "starts processes"),
    ("x = Path(__file__).parent / 'data.json'", "reads data"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = {
        "app/engine.py": "", "cache/__init__.py": "", "cache/conv.py": "VALUE = 'ours'\n",
        "diffusers_helper/__init__.py": "", "diffusers_helper/errors.py": "from cache import conv\n",
        "rocm_nodes/__init__.py": "from rocm_nodes import inner\nNODE_CLASS_MAPPINGS = {'A': 1}\n"
        "NODE_DISPLAY_NAME_MAPPINGS = {}\n",
        "rocm_nodes/inner/__init__.py": "", "rocm_nodes/inner/side.py": "", "LICENSE": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def written(root: Path, text: str) -> None:
    (root / "rocm_nodes/inner/__init__.py").write_bytes(text.encode())


def test_a_pack_is_built_again_once_a_file_of_it_has_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, built = tmp_path / "pack", list[Path]()
    folder.mkdir()
    monkeypatch.setattr(pack, "ROOT", root)
    monkeypatch.setattr(pack, "write_pack", built.append)
    file = root / "cache" / "conv.py"
    for change, times in (
        (lambda: None, 1), (lambda: None, 1), (lambda: os.utime(file, (1, 1)), 2),
        (lambda: file.with_suffix(".pyc").touch(), 2), (lambda: file.with_name("more.py").touch(), 3),
        (file.unlink, 4), (lambda: None, 4),
    ):  # fmt: skip
        change()
        pack.refresh_pack(folder)
        assert len(built) == times


@pytest.mark.parametrize(("text", "expected"), REWRITTEN)
def test_imports_are_rewritten_in_place(root: Path, text: str, expected: str) -> None:
    around = '"""Import cache."""\n{}' + COMMENT + "\nbehind = 1\n"
    written(root, around.format(text))
    found = pack_files(root)["_vendor/rocm_nodes/inner/__init__.py"].decode()
    assert found == around.format(expected)
    ast.parse(found)


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_cannot_be_rewritten_is_refused(root: Path, text: str, reason: str) -> None:
    written(root, f"\n{text}\n")
    with pytest.raises(ValueError, match=rf"inner.__init__\.py, line 2: .*{reason}"):
        check_pack(root)


def test_all_modules_of_the_pack_can_be_rewritten() -> None:
    check_pack(ROOT)


def test_all_modules_of_the_nodes_rooms_and_no_others_are_taken_along(root: Path) -> None:
    names = ("cache/__init__", "cache/conv", "diffusers_helper/__init__", "diffusers_helper/errors",
             "rocm_nodes/__init__", "rocm_nodes/inner/__init__", "rocm_nodes/inner/side")  # fmt: skip
    own = ["LICENSE", "__init__.py", "_vendor/__init__.py"]
    assert list(pack_files(root)) == [*own, *(f"_vendor/{name}.py" for name in names)]


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_every_form_finds_the_modules_of_the_pack(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(root, "from cache import conv\nfrom cache.conv import VALUE\nfound = [conv.VALUE, VALUE]\n")
    write_pack(root / "longtake_rocm", root)
    pack = load(root / "longtake_rocm", monkeypatch)
    assert pack.NODE_CLASS_MAPPINGS == {"A": 1}
    inner = sys.modules[f"{pack.__name__}._vendor.rocm_nodes.inner"]
    assert inner.found == ["ours"] * 2


class Absolute(ast.NodeTransformer):
    """Takes the rewriting back, in the tree of a module of the pack."""

    def __init__(self, package: str) -> None:
        self.package = package

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        name = resolve_name("." * node.level + (node.module or ""), self.package)
        return ast.ImportFrom(name.removeprefix("_vendor."), node.names, 0)


def test_nothing_but_names_of_modules_differs_from_the_source() -> None:
    files = {name.removeprefix("_vendor/"): data for name, data in pack_files().items() if "_vendor/" in name}
    del files["__init__.py"]
    assert files["rocm_nodes/registry.py"].count(b"from ..rocm_nodes.") == 2
    assert "assets/demo_model/transformer/diffusion_pytorch_model.safetensors" in files
    assert {name.partition("/")[0] for name in files} == {"assets", "cache", "diffusers_helper", "rocm_nodes"}
    for name, data in files.items():
        source = (ROOT / name).read_bytes()
        if not name.endswith(".py"):
            assert data == source
            continue
        assert data.count(b"\n") == source.count(b"\n")
        package = ".".join(("_vendor", *Path(name).parent.parts))
        found = Absolute(package).visit(ast.parse(data))
        assert ast.dump(found) == ast.dump(ast.parse(source)), name


def test_the_same_source_gives_the_same_bytes() -> None:
    code = (
        "import hashlib; from app.commands.pack import pack_files; "
        "print(hashlib.sha256(repr(list(pack_files().items())).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == hashlib.sha256(repr(list(pack_files().items())).encode()).hexdigest()


@pytest.mark.parametrize("failing", ["write_bytes", "rename"])
def test_a_failed_write_leaves_the_older_pack(
    root: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    place = root / "custom_nodes" / "longtake_rocm"
    write_pack(place, root)
    (place / "old.txt").write_text("old")
    plain, calls = getattr(Path, failing), list[Path]()

    def fail(self: Path, *rest: Any) -> Any:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return plain(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, fail)
        with pytest.raises(OSError, match="No space"):
            write_pack(place, root)
    assert calls[1].name.endswith(".disabled") or calls[1].parent.name.endswith((".disabled", "_vendor"))
    assert [path.name for path in place.parent.iterdir()] == ["longtake_rocm"]
    assert (place / "old.txt").is_file()
    write_pack(place, root)
    assert [path.name for path in place.parent.iterdir()] == ["longtake_rocm"]
    assert not (place / "old.txt").exists()


def test_the_pack_has_what_the_registry_and_the_page_read() -> None:
    files = pack_files()
    examples = {f"example_workflows/{file.name}" for file in (ROOT / "example_workflows").iterdir()}
    pages = {f"web/docs/{name}.md" for name in NODE_CLASS_MAPPINGS} | {"web/nodes.js"}
    metadata = {"README.md", "icon.svg", "pyproject.toml", "requirements.txt"}
    assert (len(examples), {name for name in files if not name.startswith("_vendor/")}) == (
        5, examples | pages | metadata | {"LICENSE", "__init__.py"}
    )  # fmt: skip
    comfy = tomllib.loads(files["pyproject.toml"].decode())["tool"]["comfy"]
    assert comfy["Icon"] in files


def test_a_checkout_among_comfyuis_nodes_builds_the_pack_when_it_has_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "app/commands").mkdir()
    for name in ("__init__.py", "app/__init__.py", "app/commands/__init__.py", "app/commands/pack.py"):
        shutil.copy(ROOT / name, root / name)
    monkeypatch.delitem(sys.modules, "folder_paths", raising=False)
    assert not hasattr(load(root, monkeypatch), "NODE_CLASS_MAPPINGS")
    monkeypatch.setitem(sys.modules, "folder_paths", ModuleType("folder_paths"))
    place = root / "longtake_rocm"

    def started() -> Any:
        for name in [name for name in sys.modules if name.startswith(str(root))]:
            monkeypatch.delitem(sys.modules, name)
        return load(root, monkeypatch)

    pack = started()
    assert pack.NODE_CLASS_MAPPINGS == {"A": 1}
    assert pack.WEB_DIRECTORY == "./longtake_rocm/web"
    (place / "kept.txt").write_text("of the first build")
    started()
    assert (place / "kept.txt").is_file()
    (root / "rocm_nodes/__init__.py").write_text(
        "NODE_CLASS_MAPPINGS = {'BB': 2}\nNODE_DISPLAY_NAME_MAPPINGS = {}\n"
    )
    importlib.invalidate_caches()
    assert started().NODE_CLASS_MAPPINGS == {"BB": 2}
    assert not (place / "kept.txt").exists()

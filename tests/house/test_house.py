"""The house as a whole: its plan is written once, its imports have no circle, and no folder is crowded."""

import ast
from collections import Counter

from tests.support.layers import (
    LAYERS,
    PROJECT,
    ROOT,
    circle,
    import_graph,
    layer_table,
    own_modules,
    python_files,
    room_graph,
    sources,
)

MOST_MODULES = 16
FOLDERS = ("app", "cache", "diffusers_helper", "rocm_nodes")


def test_the_page_on_architecture_shows_the_table_of_layers() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert layer_table() in page, f"docs/architecture.md must hold this table:\n{layer_table()}"


def test_the_type_checker_is_strict_with_the_strict_layers() -> None:
    expected = [module.rstrip("/") for layer in LAYERS if layer.strict for module in own_modules(layer)]
    assert sorted(PROJECT["pyright"]["strict"]) == sorted(expected)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(import_graph(sources())) == []


def test_no_room_of_the_library_imports_itself_by_way_of_others() -> None:
    graph = room_graph(sources())
    assert graph["diffusers_helper/planning/"] >= {"diffusers_helper/models/", "diffusers_helper/families/"}
    assert circle(graph) == []


def test_a_circle_would_be_noticed() -> None:
    assert {*circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})} == {"b", "c"}


def test_every_class_of_the_product_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for source in sources():
        if source.path.partition("/")[0] in FOLDERS:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(source.path)
    assert {"GuidedDenoiser", "GenerationRequest"} <= places.keys()
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_folder_is_crowded() -> None:
    modules = [path for path in python_files(*FOLDERS) if not path.endswith("/__init__.py")]
    counts = Counter(path.rpartition("/")[0] for path in modules)
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}

"""Tests of the example workflows: those for ComfyUI's page ask for the same as those for its API."""

from itertools import combinations
from typing import Any

import pytest

from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.comfyui_graphs import EXAMPLES, GRAPHS, api_of, graph_of, prompt_of

# Between two nodes there is room for the title of the lower one.
_GAP = (0, 30)
# The kinds of inputs that have values, beside lists of choices
_VALUES = ("INT", "FLOAT", "STRING", "BOOLEAN")


def test_each_example_has_both_forms() -> None:
    assert sorted(path.stem for path in GRAPHS.glob("*.json")) == EXAMPLES
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_graph_asks_for_what_the_api_file_asks_for(example: str) -> None:
    """Check that the page would send the API's inputs, and defaults of our nodes for all others."""
    api, prompt = api_of(example), prompt_of(graph_of(example))
    assert set(prompt) == set(api)
    for number, entry in api.items():
        found = prompt[number]
        assert found["class_type"] == entry["class_type"]
        assert found["_meta"] == entry["_meta"]
        more = {name: found["inputs"].pop(name) for name in set(found["inputs"]) - set(entry["inputs"])}
        assert found["inputs"] == entry["inputs"]
        assert more == {name: default(entry["class_type"], name) for name in more}


@pytest.mark.parametrize("example", EXAMPLES)
def test_saved_values_keep_their_places(example: str) -> None:
    """Check that what is added to our nodes comes last, since a graph has an input's value at its place."""
    ours = [node for node in graph_of(example)["nodes"] if node["type"] in NODE_CLASS_MAPPINGS]
    assert ours
    for node in ours:
        types = NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
        inputs = {name: kind for place in types.values() for name, (kind, *_) in place.items()}
        names = [name for name, kind in inputs.items() if isinstance(kind, list) or kind in _VALUES]
        saved = [one["name"] for one in node["inputs"] if "widget" in one]
        assert names[: len(saved)] == saved


def default(node: str, name: str) -> Any:
    types = NODE_CLASS_MAPPINGS[node].INPUT_TYPES()
    (_, facts), *_ = [types[place][name] for place in types if name in types[place]]
    return facts["default"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_graph_is_whole(example: str) -> None:
    """Check that each link is named by both of its ends, and that no node lies on another one."""
    graph = graph_of(example)
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert graph["links"]
    for number, source, slot, target, place, kind in graph["links"]:
        assert number in nodes[source]["outputs"][slot]["links"]
        assert nodes[target]["inputs"][place]["link"] == number
        assert "*" in (given := nodes[source]["outputs"][slot]["type"], kind) or given == kind
    for first, second in combinations(nodes.values(), 2):
        apart = [
            a["pos"][axis] + a["size"][axis] < b["pos"][axis] - _GAP[axis]
            for a, b in ((first, second), (second, first))
            for axis in (0, 1)
        ]
        assert any(apart), (first["title"], second["title"])

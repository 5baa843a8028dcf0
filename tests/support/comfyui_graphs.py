"""The example workflows in both of ComfyUI's formats: prompts for its API, and graphs for its page."""

import json
from typing import Any

from tests.support.comfyui_client import Server, node
from tests.support.layers import ROOT

FOLDER = ROOT / "docs/comfyui"
GRAPHS = ROOT / "example_workflows"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.json"))
_SEEDS = ("seed", "noise_seed")


def api_of(example: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{example}.json").read_text())


def framepack(**settings: Any) -> dict[str, Any]:
    graph = api_of("framepack")
    graph["2"]["inputs"] |= settings
    return graph


def process_facts(server: Server) -> Any:
    """Return what a node must not change in the process, as `facts`, and its memory, as `rss`."""
    loader = node("VAELoader", vae_name="wan_2.1_vae.safetensors")
    return server.run({"1": loader, "2": node("ToyProcess", vae=["1", 0])})["2"]


def graph_of(example: str) -> dict[str, Any]:
    return json.loads((GRAPHS / f"{example}.json").read_text())


def prompt_of(graph: dict[str, Any]) -> dict[str, Any]:
    """Return the prompt that the page sends for a graph."""
    sources = {number: [str(source), slot] for number, source, slot, *_ in graph["links"]}
    return {str(node["id"]): _entry(node, sources) for node in graph["nodes"]}


def _entry(node: dict[str, Any], sources: dict[int, Any]) -> dict[str, Any]:
    values, inputs = iter(node["widgets_values"]), dict[str, Any]()
    for place in node["inputs"]:
        name = place["name"]
        if "widget" in place:
            value = next(values)
            # The button that takes a file is no input.
            if place["type"] != "IMAGEUPLOAD":
                inputs[name] = value
            # The page adds to a seed what becomes of it after a run.
            assert name not in _SEEDS or next(values) == "fixed"
        if place["link"] is not None:
            inputs[name] = sources[place["link"]]
    assert not list(values), f"{node['type']} has values without inputs"
    return {"inputs": inputs, "class_type": node["type"], "_meta": {"title": node["title"]}}

"""Tests of the example workflows on the page of the real ComfyUI, in Chromium.

They need what `test_comfyui.py` needs, and ComfyUI's page (comfyui-frontend-package) in its Python.
"""

import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.comfyui_client import Server, wait_until
from tests.support.comfyui_graphs import EXAMPLES, api_of, graph_of
from tests.support.comfyui_process import ABSENT, COMFYUI, PYTHON, running
from tests.support.pages import needs_chromium

pytestmark = [*needs_chromium, pytest.mark.slow, pytest.mark.skipif(not COMFYUI, reason=ABSENT)]
_READY = "window.app?.graph && Object.keys(window.LiteGraph.registered_node_types).length > 100"
_LOAD = """async graph => {
    await app.loadGraphData(graph)
    return (await app.graphToPrompt()).output
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('comfyui_frontend_package') is None)"
    if subprocess.run([PYTHON, "-c", code], check=False).returncode:
        pytest.skip("ComfyUI's Python has no comfyui-frontend-package")
    with running(tmp_path_factory.mktemp("comfyui"), has_page=True) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    page.goto(server.address)
    page.wait_for_function(_READY)
    yield page
    page.close()


# Names of the widgets that are drawn and the height of a new node, before and after a click on its button,
# and the number of values that a workflow has of it.
_FOLDED = """() => {
    const node = LiteGraph.createNode("ROCMOptimizedVAEDecode")
    app.graph.add(node)
    const visible = () => node.widgets.filter(one => node.isWidgetVisible(one)).map(one => one.name)
    const shown = () => [visible(), node.size[1]]
    const before = shown()
    node.widgets.find(one => one.name === "more inputs").callback()
    const after = shown()
    const values = node.serialize().widgets_values.length
    app.graph.remove(node)
    return [before, after, values]
}"""


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_asks_for_what_the_api_file_asks_for(page: Page, example: str) -> None:
    prompt = page.evaluate(_LOAD, graph_of(example))
    entries = api_of(example)
    assert entries
    for number, entry in entries.items():
        assert prompt[number]["class_type"] == entry["class_type"]
        assert prompt[number]["inputs"] | entry["inputs"] == prompt[number]["inputs"]


def test_a_node_shows_its_rare_inputs_on_request(page: Page) -> None:
    (few, low), (many, high), values = page.evaluate(_FOLDED)
    assert few == [
        "tile_size", "overlap", "use_rocm_optimizations", "precision_mode", "batch_optimization",
        "chunk_size", "rocm_preferred", "more inputs",
    ]  # fmt: skip
    assert values == len(many) - 1 == 20
    assert high > low + 200


def test_a_workflow_is_queued_from_the_page_and_its_report_is_shown(page: Page, server: Server) -> None:
    graph = graph_of("framepack")
    values = graph["nodes"][1]["widgets_values"]
    values[2], values[5] = 1.0, 1  # seconds and steps
    page.evaluate(_LOAD, graph)
    page.keyboard.press("Escape")  # the first visit opens a list of templates
    page.keyboard.press("Control+Enter")
    wait_until(lambda: any(run["status"]["completed"] for run in server.get("/history").values()))
    page.get_by_text("37 frames in").first.wait_for()
    page.screenshot(path=server.base / "page.png")
    page.evaluate(
        "app.graph.nodes.flatMap(node => node.widgets ?? []).find(one => one.name === 'report').callback()"
    )
    report = page.locator(".longtake-report")
    assert "/framepack/" in report.inner_text()  # what is cut off below the node
    red, green, blue = report.evaluate("one => getComputedStyle(one).color.match(/\\d+/g).map(Number)")
    assert red == green == blue, "it looks like an error"
    prompt = page.evaluate("async () => (await app.graphToPrompt()).output")
    assert not any("report" in entry["inputs"] for entry in prompt.values())

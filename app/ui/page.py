"""The page's layout: its controls, their places, and the actions that they call."""

from __future__ import annotations

from html import escape

import gradio as gr

from app.jobs.service import JobService
from app.ui.calls.generate import add_endpoints
from app.ui.calls.jobs import JobCalls
from app.ui.calls.serve import add_calls
from app.ui.catalogue import Catalogue
from app.ui.form.actions import Actions
from app.ui.form.controls import SCRIPT, RequestForm, connect_request
from app.ui.form.describe import Describer
from app.ui.form.dropped import DropCalls
from app.ui.form.endpoints import FormCalls
from app.ui.form.presses import PressCalls
from app.ui.history.endpoints import HistoryCalls
from app.ui.live.subscribe import LiveResult, connect_updates
from app.ui.loras import LoraCalls
from app.ui.models.endpoints import ModelCalls
from app.ui.models.own_calls import OwnFileCalls
from app.ui.scripts import call, on_load
from app.ui.tabs import build_panel
from diffusers_helper import __version__
from diffusers_helper.units import gb_text

# The form's script inserts the chosen model's title.
_HEADER = """<header class="lt-header"><h1>Long<i>take</i></h1>
<nav class="lt-tabs" role="tablist" aria-label="Parts of the page">
<a role="tab" id="tab-create" href="#create" aria-controls="panel-create">Create</a>
<a role="tab" id="tab-queue" href="#queue" aria-controls="panel-queue">Queue
<span class="lt-tab-count"></span></a>
<a role="tab" id="tab-history" href="#history" aria-controls="panel-history">History</a>
<a role="tab" id="tab-models" href="#models" aria-controls="panel-models">Models
<span class="lt-tab-count"></span></a></nav>
<p class="lt-machine"><span>{card}, <span id="lt-model">{model}</span></span>
<span title="{reason}">{cap}</span></p></header>
<p class="lt-lost" role="status"></p>"""
_FOOTER = """<footer class="lt-footer"><span>Longtake {version}</span>
<details id="lt-program"><summary>Use it from a program</summary>
<p>This Python program makes the video that the form above describes. It only needs
<code>pip install gradio_client</code>, and it waits for its turn in the queue. If the page has a password,
pass <code>auth=("user", "password")</code> to <code>Client</code>.</p>
<pre tabindex="0" role="region" aria-label="Example program"><code></code></pre>
<button type="button">Copy the program</button></details></footer>"""


def build_page(service: JobService, catalogue: Catalogue) -> gr.Blocks:
    """Return the whole page for a job service, which may be started later."""
    with gr.Blocks(
        title="Longtake", analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)
    ) as page:
        gr.HTML(_header(catalogue), apply_default_css=False, js_on_load=on_load("tabs.js"))
        with gr.Row(elem_classes="lt-main", elem_id="panel-create"):
            with gr.Column(scale=0, min_width=400, elem_classes=["lt-card", "lt-request"]):
                request = RequestForm(catalogue)
            with gr.Column(scale=1, min_width=320, elem_classes="lt-result"):
                request.offer.render()
                result = LiveResult()
                request.demo_box.render()
                gr.HTML(_FOOTER.format(version=escape(__version__)), apply_default_css=False, js_on_load=None)
        for tab in ("queue", "history", "models"):
            build_panel(tab)
        actions = Actions(service, catalogue)
        connect_request(page, request, actions, Describer(service, catalogue))
        _connect_jobs(page, request, result, actions)
        add_endpoints(page, service, catalogue)
        calls = (
            JobCalls(service, catalogue), HistoryCalls(service, catalogue), FormCalls(catalogue), LoraCalls(),
            ModelCalls(service, catalogue),
        )  # fmt: skip
        add_calls([function for group in calls for function in group.all])
        # These may take seconds, and keep no others waiting.
        add_calls([*OwnFileCalls(service, catalogue).all, *DropCalls(service, catalogue).all])
        add_calls(PressCalls(actions).all)
    return page


def _header(catalogue: Catalogue) -> str:
    """Return the header, which names the device and the memory that it may take by default."""
    profile = catalogue.planner.profile
    cap = f"memory cap {gb_text(profile.cap_bytes.value)} GB"
    return _HEADER.format(
        card=escape(profile.machine.name),
        model=escape(catalogue.info(catalogue.preselected).title),
        cap=cap if catalogue.planner.knows_the_size else "memory cap set by the card’s size",
        reason=escape(f"{profile.cap_bytes.reason} ({profile.cap_bytes.source})"),
    )


def _connect_jobs(page: gr.Blocks, request: RequestForm, result: LiveResult, actions: Actions) -> None:
    names, controls = list(request.controls), list(request.controls.values())
    request.start.click(None, controls, None, js=call("form/press.js", "start", names), **SCRIPT)
    request.save.click(None, controls, None, js=call("form/press.js", "save", names), **SCRIPT)
    connect_updates(page, actions.service, result, request)

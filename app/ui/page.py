"""The page: its document, its endpoints, and the updates that keep open pages up to date."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from app.jobs.service import JobService
from app.jobs.view import GROUPS
from app.ui import scripts
from app.ui.calls.cards import CardCalls
from app.ui.calls.generate import endpoints
from app.ui.calls.jobs import JobCalls
from app.ui.calls.serve import Endpoint, served
from app.ui.catalogue import Catalogue
from app.ui.form.actions import Actions
from app.ui.form.controls import form_markup
from app.ui.form.endpoints import DropCalls, FormCalls
from app.ui.form.markup import options, parts_of
from app.ui.history.endpoints import HistoryCalls
from app.ui.live.subscribe import Updates
from app.ui.loras import LoraCalls
from app.ui.models.endpoints import ModelCalls, OwnFileCalls
from diffusers_helper import __version__
from diffusers_helper.request import WEIGHT_TYPES
from diffusers_helper.units import gb_text

_HERE = Path(__file__).parent
_NO_COPY = ("auto", "default")  # types of weights that a converted copy cannot have


@dataclass(frozen=True, slots=True)
class Page:
    """One service's page."""

    document: str
    endpoints: list[Endpoint]
    updates: Updates


def build_page(service: JobService, catalogue: Catalogue) -> Page:
    """Return the page of a job service, which may be started later."""
    groups = (
        endpoints(service, catalogue),
        served(
            JobCalls(service, catalogue), HistoryCalls(service, catalogue), CardCalls(service),
            FormCalls(catalogue), LoraCalls(), ModelCalls(service, catalogue),
        ),
        # These may take seconds, and keep no others waiting.
        served(OwnFileCalls(service, catalogue), DropCalls(service, catalogue)),
        served(Actions(service, catalogue)),
    )  # fmt: skip
    return Page(_document(catalogue), [one for group in groups for one in group], Updates(service))


def _document(catalogue: Catalogue) -> str:
    profile, info = catalogue.planner.profile, catalogue.info(catalogue.preselected)
    parts = parts_of(info)
    cap = f"memory cap {gb_text(profile.cap_bytes.value)} GB"
    if not catalogue.planner.knows_the_size:
        cap = "memory cap set by the card’s size"
    panels = {name: _file(f"{name}/{name}.html") for name in ("live", "queue", "history", "models")}
    copies = [(one, f"{one} ({words})") for one, words in WEIGHT_TYPES.items() if one not in _NO_COPY]
    choices = {
        "@states@": options((" ".join(states), name) for name, states in GROUPS.items()),
        "@types@": options(WEIGHT_TYPES.items(), "default"), "@copies@": options(copies, "int8"),
    }  # fmt: skip
    for place, markup in choices.items():
        panels = {name: panel.replace(place, markup) for name, panel in panels.items()}
    return Template(_file("page.html")).substitute(
        panels,
        scripts=scripts.folder(),
        styles="".join(f'<link rel="stylesheet" href="{one}">' for one in scripts.styles()),
        card=escape(profile.machine.name), model=escape(info.title), cap=cap, version=escape(__version__),
        reason=escape(f"{profile.cap_bytes.reason} ({profile.cap_bytes.source})"),
        form=form_markup(catalogue), offer=parts["try-it"], demo=parts["demo-box"],
    )  # fmt: skip


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")

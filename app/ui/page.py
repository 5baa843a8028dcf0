"""The page: its document, its routes, and the endpoints of the same calls for programs."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from fastapi import APIRouter

from app.jobs.service import JobService
from app.jobs.view import GROUPS
from app.languages.translation import LANGUAGES
from app.ui import scripts
from app.ui.api import Endpoint, gradio_endpoints, page_router
from app.ui.catalogue import Catalogue
from app.ui.finish.endpoints import FinishCalls
from app.ui.form.actions import Actions
from app.ui.form.controls import form_markup
from app.ui.form.endpoints import FormCalls
from app.ui.form.markup import model_markup, options
from app.ui.generate import generate_endpoints
from app.ui.history.endpoints import HistoryCalls, add_zip
from app.ui.live.exports import add_exports
from app.ui.live.subscribe import add_updates
from app.ui.models.endpoints import ModelCalls
from app.ui.queue.endpoints import JobCalls
from diffusers_helper import __version__
from diffusers_helper.request import WEIGHT_TYPES
from diffusers_helper.units import gb_text

_HERE = Path(__file__).parent
_NOT_CONVERTIBLE = ("auto", "default")  # types of weights that a converted copy cannot have


@dataclass(frozen=True, slots=True)
class Page:
    document: str
    router: APIRouter
    endpoints: list[Endpoint]


def build_page(service: JobService, catalogue: Catalogue, *, has_password: bool = False) -> Page:
    kinds = JobCalls, HistoryCalls, FormCalls, ModelCalls, FinishCalls
    calls = [kind(service, catalogue) for kind in kinds]
    router = page_router(Actions(service, catalogue), *calls)
    for add in (add_updates, add_zip, add_exports):
        add(router, service)
    endpoints = [*generate_endpoints(service, catalogue), *gradio_endpoints(*calls)]
    return Page(_document(catalogue, has_password), router, endpoints)


def _document(catalogue: Catalogue, has_password: bool) -> str:
    profile = catalogue.planner.profile
    info = catalogue.info(catalogue.preselected)
    model_parts = model_markup(info)
    cap = f"memory cap {gb_text(profile.cap_bytes.value)} GB"
    if not catalogue.planner.has_cap:
        cap = "memory cap set by the card’s size"
    types = WEIGHT_TYPES.items()
    copies = ((dtype, f"{dtype} ({label})") for dtype, label in types if dtype not in _NOT_CONVERTIBLE)
    states = options((" ".join(states), name) for name, states in GROUPS.items())
    choices = {"states": states, "copies": options(copies, "int8")}
    panels = ("live", "queue", "history", "models")
    return Template(_file("page.html")).substitute(
        {name: Template(_file(f"{name}/{name}.html")).substitute(choices) for name in panels},
        scripts=scripts.folder(),
        styles="".join(f'<link rel="stylesheet" href="{address}">' for address in scripts.styles()),
        card=escape(profile.machine.name), model=escape(info.title), cap=cap, version=escape(__version__),
        reason=escape(f"{profile.cap_bytes.reason} ({profile.cap_bytes.source})"),
        form=form_markup(catalogue), offer=model_parts["try-it"], demo=model_parts["demo-box"],
        languages=language_options(), logout='<a href="logout">Log out</a>' if has_password else "",
    )  # fmt: skip


def language_options() -> str:
    return "".join(
        f'<option value="{code}" lang="{code}">{name}</option>' for code, name in LANGUAGES.items()
    )


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")

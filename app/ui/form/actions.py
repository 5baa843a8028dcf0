"""The actions of the page's controls. They return quickly, since jobs run elsewhere and outlive the page."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form import markup as view
from app.ui.form import settings as form
from app.ui.form.examples import example_file, example_picture, samples_of
from app.ui.pictures import picture_path
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.downloads import NotHere
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.packing import Mode
from diffusers_helper.request import SETTINGS

_log = logging.getLogger(__name__)
_EXAMPLE_SECONDS = 2.4  # two sections are ready soon, and enough to see the video grow
# The outputs of `choose_model` and `restore` besides settings, in this order.
AROUND = ("examples", "demo_box", "offer")


def mode_choices(modes: tuple[Mode, ...]) -> list[tuple[str, str]]:
    """Return the orders that a model supports, as choices for a radio."""
    return [(SETTINGS["mode"].choices[mode], mode) for mode in modes]


@dataclass(frozen=True)
class Actions:
    """The handlers of one job service."""

    service: JobService
    catalogue: Catalogue

    def start(self, settings: dict[str, Any], *, may_download: bool = False) -> str:
        """Queue a job, and return a notice with its place, a question, or the reason of a refusal.

        Args:
            settings: The form's values.
            may_download: Whether the person has agreed to the download of a model that is not here.
        """
        try:
            settings = settings | {"image": picture_path(settings.get("image"))}
            return self._submit(self._request(settings), may_download=may_download)
        except NotHere as error:
            if not error.absence.has_room:
                return view.error_box(error)
            info = self.catalogue.info(str(settings.get("model")))
            return view.download_question(error, takes_days=self.catalogue.planner.takes_days(info))
        except LongtakeError as error:
            return view.error_box(error)

    def save(self, job_id: object, settings: dict[str, Any]) -> str:
        """Give a job that has not begun the form's settings, and return a notice or a refusal."""
        try:
            settings = settings | {"image": picture_path(settings.get("image"))}
            self.catalogue.edit(self.service, str(job_id), self._request(settings))
        except LongtakeError as error:
            return view.error_box(error)
        return view.passing_note("The changes are saved.", saved=True)

    def _request(self, settings: dict[str, Any]) -> dict[str, Any]:
        info = self.catalogue.info(str(settings.get("model")))
        return form.to_request(settings, info, self.catalogue.planner)

    def _submit(self, request: dict[str, Any], *, may_download: bool = False) -> str:
        job = self.catalogue.submit(self.service, request, may_download=may_download)
        before = self.service.queue_position(job.id)
        if not before:
            return ""
        jobs = "1 job comes" if before == 1 else f"{before} jobs come"
        return view.job_note(f"Queued {view.ordinal(before + 1)}: {jobs} first.", job.id, before)

    def end(self) -> str:
        """End the running job, or the next one if none has begun yet, and return a notice."""
        running, waiting = self.service.open_jobs()
        job = running or (waiting[0] if waiting else None)
        if job is None:
            return view.passing_note("Nothing is running.")
        return self._cancel(job.id, view.job_note("Ending: the work at hand is finished first.", job.id))

    def _cancel(self, job_id: str, done: str) -> str:
        return done if self.service.cancel(job_id) else ""

    def choose_model(self, name: str, mode: Mode) -> dict[str, Any]:
        """Return the values that change with the model, by name: settings, quick list, box and examples."""
        try:
            info = self.catalogue.info(name)
        except InputError:  # only a forged message can name a model outside the list
            return {}
        changes = {"steps": info.steps, "guidance": info.guidance, "resolution": info.side}
        mode = mode if mode in info.modes else info.modes[0]
        return changes | {"mode": _mode(info, mode)} | _around(info)

    def restore(self, kept: object) -> dict[str, Any]:
        """Return the parts of the form that a browser kept, by name."""
        usable = form.restored(self.catalogue, kept)
        if not usable:
            return {}
        info = self.catalogue.info(usable["model"])
        usable["mode"] = _mode(info, usable["mode"])
        return usable | _around(info)

    def fill(self, given: object) -> dict[str, Any]:
        """Return the form that has these settings, as JSON from the page's scripts, and otherwise defaults.

        The picture comes by itself, as an upload.
        """
        usable = form.restored(self.catalogue, given)
        if not usable:
            return {}
        info = self.catalogue.info(usable["model"])
        values = form.defaults(info, self.catalogue.planner) | {"prompt": "", "negative": ""} | usable
        return values | {"mode": _mode(info, usable["mode"])} | _around(info)

    def reset(self, name: str) -> dict[str, Any]:
        """Return every setting but picture, prompt and model, as the model wants it."""
        try:
            info = self.catalogue.info(name)
        except InputError:
            return {}
        values = form.defaults(info, self.catalogue.planner)
        return values | {"mode": _mode(info, values["mode"])}

    def use_example(self, name: str, index: int) -> dict[str, Any]:
        """Return the picture, if there is one, and the prompt of an entry of the quick list."""
        prompt = self._example(name, index)
        if prompt is None:
            return {}
        picture = example_picture(prompt)
        return {"prompt": prompt} | ({} if picture is None else {"image": picture})

    def run_example(self, name: str, index: int) -> dict[str, Any]:
        """Fill the form with an example and the model's own settings, and start exactly that."""
        prompt = self._example(name, index)
        file = None if prompt is None else example_file(prompt)
        if prompt is None or file is None:
            return self.use_example(name, index)
        info = self.catalogue.info(name)
        settings = form.defaults(info, self.catalogue.planner) | {"seconds": _EXAMPLE_SECONDS, "model": name}
        request = form.to_request(settings, info, self.catalogue.planner)
        try:
            notice = self._submit(request | {"image": str(file), "prompt": prompt})
        except LongtakeError as error:
            notice = view.error_box(error)
        filled = self.reset(name) | {"seconds": _EXAMPLE_SECONDS} | self.use_example(name, index)
        return filled | {"notice": notice}

    def _example(self, name: str, index: object) -> str | None:
        try:
            examples = self.catalogue.info(name).examples
        except InputError:
            return None
        return examples[index] if isinstance(index, int) and 0 <= index < len(examples) else None


def _around(info: ModelInfo) -> dict[str, Any]:
    return {
        "examples": gr.Dataset(samples=samples_of(info), visible=bool(info.examples)),
        "demo_box": view.demo_box(info),
        "offer": view.offer(info),
    }


def _mode(info: ModelInfo, mode: Mode) -> gr.Radio:
    return gr.Radio(choices=mode_choices(info.modes), value=mode)

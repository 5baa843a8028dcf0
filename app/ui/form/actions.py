"""The actions of the page's controls. They return quickly, since jobs run elsewhere and outlive the page."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from app.jobs.service import JobService
from app.presets import presets_folder, start_settings
from app.ui.catalogue import Catalogue
from app.ui.form import markup as view
from app.ui.form import settings as form
from app.ui.form.controls import mode_options, model_options
from app.ui.form.examples import example_file
from app.ui.form.extras import Extras
from app.ui.form.restore import Restored, merged
from app.ui.pictures import offered, picture_paths
from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.models.downloads import NotHere
from diffusers_helper.request import MAX_SEED, START_PICTURE
from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.units import count_text

_log = logging.getLogger(__name__)
_EXAMPLE_SECONDS = 2.4  # two sections are ready soon, and enough to see the video grow
# What the form is to show: `values` by setting, `markup` by the id of an element, and perhaps a `notice`.
Shown = dict[str, Any]


@dataclass(frozen=True)
class Actions:
    """The handlers of the page's controls for one job service."""

    service: JobService
    catalogue: Catalogue

    def start(self, settings: dict[str, Any], *, may_download: bool = False, press: str = "") -> str:
        """Queue a job, and return a notice with its place, a question, or the reason for a refusal.

        Args:
            settings: The form's values.
            may_download: Whether the user has agreed to download a model that is not on this machine.
            press: The id of the press of the button. A press that has been taken is only answered again.
        """
        if press and (made := self.service.history.made_by(press)):
            return self._queued_note(made)
        try:
            settings = settings | {
                **picture_paths(settings),
                "seed": form.seed_of(settings),
            }
            count = form.VARIANTS.check(settings.get("variants", 1))
            lineage = Extras.from_text(settings.get("extras")).lineage
            request = self._request(settings)
            return self._submit(request, count, may_download=may_download, lineage=lineage, press=press)
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
            settings = settings | picture_paths(settings)
            self.catalogue.edit(self.service, str(job_id), self._request(settings))
        except LongtakeError as error:
            return view.error_box(error)
        return view.passing_note("The changes are saved.", saved=True)

    def _request(self, settings: dict[str, Any]) -> dict[str, Any]:
        info = self.catalogue.info(str(settings.get("model")))
        return form.to_request(settings, info, self.catalogue.planner)

    def _submit(self, request: dict[str, Any], count: int = 1, **how: Any) -> str:
        """Queue some variants of a request, and return a notice about the first of them."""
        jobs: list[Job] = []
        try:
            for number in range(count):
                seed = (request["seed"] + number) % (MAX_SEED + 1) if number else request["seed"]
                jobs.append(self.catalogue.submit(self.service, request | {"seed": seed}, **how))
        except LongtakeError:
            for job in jobs:
                self.service.queue.cancel(job.id)
            raise
        return self._queued_note(jobs)

    def _queued_note(self, jobs: list[Job]) -> str:
        """Return a notice about jobs with the number of those ahead of them, or "" for one that is next."""
        before = self.service.queue_position(jobs[0].id)
        first = f"{count_text(before, 'job')} {'comes' if before == 1 else 'come'} first."
        if len(jobs) > 1:
            text = f"Queued {len(jobs)} videos{f': {first}' if before else '.'}"
            return view.job_note(text, jobs[0].id, before)
        note = f"Number {before + 1} in the queue: {first}"
        return view.job_note(note, jobs[0].id, before) if before else ""

    def end(self) -> str:
        """End the running job, or the next one if none has begun yet, and return a notice."""
        running, waiting = self.service.open_jobs()
        job = running or (waiting[0] if waiting else None)
        if job is None:
            return view.passing_note("Nothing is running.")
        return self._cancel(job.id, view.job_note("Ending: the current work is finished first.", job.id))

    def _cancel(self, job_id: str, done: str) -> str:
        return done if self.service.queue.cancel(job_id) else ""

    def choose_model(self, name: str, mode: str) -> Shown:
        """Return what changes with the model."""
        try:
            info = self.catalogue.info(name)
        except InputError:  # only a forged message can name a model outside the list
            return {}
        changes = {**info.own_settings, "resolution": info.side}
        return self._shown(changes | {"model": name, "mode": mode if mode in info.modes else info.modes[0]})

    def offer_models(self, name: str, mode: str) -> Shown:
        """Return what changes with the list of models: the values of another one if this is gone."""
        if name in self.catalogue.names:
            return {"markup": {"in-model": model_options(self.catalogue, name)}}
        other = self.catalogue.preselected
        text = f"The model {short_repr(name)} was removed, so {self.catalogue.info(other).title} is chosen."
        return self.choose_model(other, mode) | {"notice": view.passing_note(text)}

    def restore(self, kept: object) -> Shown:
        """Return the form's values that a browser kept, or else those of the start settings."""
        usable = form.restored(self.catalogue, kept)
        if not usable:
            start = self._start_settings()
            usable = form.restored(self.catalogue, json.dumps(start)) if start else {}
        name = self.catalogue.preselected
        return self._shown(usable or {"model": name, "mode": self.catalogue.info(name).modes[0]})

    def fill(self, text: str, kept: str) -> Shown:
        """Return the values of the form, and a notice, for settings that come from outside the form.

        Args:
            text: The text of a `Restored`, of unknown origin.
            kept: The form's values as JSON, of unknown origin as well.
        """
        try:
            found, values = Restored.from_text(text), parse_json((kept or "{}").encode())
            usable, notices = merged(found, values if isinstance(values, dict) else {}, self.catalogue)
        except (ValueError, TypeError, KeyError, AttributeError):
            error = InputError("These settings cannot be read.", "Restore them again.")
            return {"notice": view.error_box(error)}
        return self._shown(usable) | {"notice": view.restored_note(found.name, notices)}

    def _shown(self, values: dict[str, Any]) -> Shown:
        """Return values of the form, and the parts of the page that depend on the model among them."""
        name, mode = values["model"], values["mode"]
        info = self.catalogue.info(name)
        options = {
            "options-mode": mode_options(info.modes, mode), "in-model": model_options(self.catalogue, name),
        }  # fmt: skip
        return {"values": values, "markup": view.parts_of(info) | options}

    def reset(self, name: str) -> Shown:
        """Return all settings except picture, prompt and model: the start settings, or the model's own."""
        try:
            info = self.catalogue.info(name)
        except InputError:
            return {}
        values = form.defaults(info, self.catalogue.planner)
        start = self._start_settings() | {"model": name}
        own = form.restored(self.catalogue, json.dumps(start)) if len(start) > 1 else {}
        return self._shown(values | {one: own[one] for one in own if one in values} | {"model": name})

    def _start_settings(self) -> dict[str, Any]:
        try:
            return dict(start_settings(presets_folder()).settings)
        except InputError as error:
            _log.warning("The start settings are not used: %s", error)
            return {}

    def use_example(self, name: str, index: int) -> Shown:
        """Return the picture, if there is one, and the prompt of an entry of the quick list."""
        prompt = self._example(name, index)
        if prompt is None:
            return {}
        file, values = example_file(prompt), {"prompt": prompt}
        return {"values": values if file is None else values | _example_picture(file)}

    def run_example(self, name: str, index: int) -> Shown:
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
        own = {"seconds": _EXAMPLE_SECONDS, "prompt": prompt} | _example_picture(file)
        filled = self.reset(name)
        return filled | {"values": filled["values"] | own, "notice": notice}

    def _example(self, name: str, index: object) -> str | None:
        try:
            examples = self.catalogue.info(name).examples
        except InputError:
            return None
        return examples[index] if isinstance(index, int) and 0 <= index < len(examples) else None


def _example_picture(file: Path) -> dict[str, Any]:
    path = offered({START_PICTURE: file.read_bytes()}, file.name)[START_PICTURE]
    return {START_PICTURE: {"path": path, "orig_name": file.name}}

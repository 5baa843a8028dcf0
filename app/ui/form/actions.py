"""The calls of the form's controls: its description, what fills it, and the buttons below it."""

import json
import logging
import re
import threading
from itertools import chain
from typing import Any

from pydantic import TypeAdapter

from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.storage.importing import FOUND
from app.presets import presets_folder, start_settings
from app.ui.catalogue import Catalogue
from app.ui.form import markup as view
from app.ui.form import settings as form
from app.ui.form.controls import model_options, radio_options
from app.ui.form.describe import Describer, FormAnswer
from app.ui.pictures import upload_paths, write_uploads
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.finish.enlarge import missing_packages
from diffusers_helper.models.downloads import NotHere
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import MAX_SEED, SETTINGS, START_PICTURE, TIMED_PICTURES
from diffusers_helper.units import count_text

_log = logging.getLogger(__name__)
_ID = re.compile("[0-9a-f]{16,64}")
_EXAMPLE_SECONDS = 2.4  # two sections are ready soon, and enough to see the video grow


class Actions:
    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue, self._lock = service, catalogue, threading.Lock()
        self._describer = Describer(service, catalogue)

    def form_describe(self, settings: dict[str, Any]) -> FormAnswer:
        return self._describer.describe(settings)

    def form_start(self, press: str, settings: dict[str, Any], may_download: bool) -> str:
        """Queue the video that the form describes, once for each press, however often it is sent.

        The caller draws the id of a press. The answer is a notice with its place, or a question.
        """
        if not _ID.fullmatch(press):
            raise InputError(
                f"press is {short_repr(press)}; expected 16 to 64 of 0-9 and a-f.", "Draw an id."
            )
        with self._lock:  # the same press may come again while it is being taken
            jobs = self._service.history.made_by(press)
            for job in jobs:
                if job.state == "paused" and job.message == FOUND["message"]:  # by a start that was killed
                    self._service.queue.resume(job.id)
            return self._queued_note(jobs) if jobs else self._start(settings, may_download, press)

    def _start(self, settings: dict[str, Any], may_download: bool, press: str) -> str:
        settings = settings | upload_paths(settings)
        count = form.VARIANTS.check(settings.get("variants", 1))
        spans = form.Extras.from_text(settings.get("extras")).spans
        request = self._request(settings)
        options = {"lineage": Lineage(spans), "press": press, "waits": form.waits(settings)}
        try:
            return self._submit(request, count, may_download=may_download, **options)
        except NotHere as error:
            if not error.absence.has_room:
                raise
            info = self._catalogue.info(str(settings.get("model")))
            return view.download_question(error, takes_days=self._catalogue.planner.takes_days(info))

    def form_save(self, job: str, settings: dict[str, Any]) -> str:
        self._catalogue.edit(self._service, job, self._request(settings | upload_paths(settings)))
        return view.passing_note("The changes are saved.", saved=True)

    def _request(self, settings: dict[str, Any]) -> dict[str, Any]:
        info = self._catalogue.info(str(settings.get("model")))
        return form.to_request(settings, info, self._catalogue.planner)

    def _submit(self, request: dict[str, Any], count: int = 1, **options: Any) -> str:
        variants = (request | {"seed": (request["seed"] + n) % (MAX_SEED + 1)} for n in range(1, count))
        requests = chain([request], variants)
        jobs = (self._catalogue.submit(self._service, request, **options) for request in requests)
        return self._queued_note(self._service.all_or_none(jobs))

    def _queued_note(self, jobs: list[Job]) -> str:
        """Say how many jobs are ahead of new ones; "" for a single job that is next."""
        num_ahead = self._service.queue_position(jobs[0].id)
        order = f"{count_text(num_ahead, 'job')} {'comes' if num_ahead == 1 else 'come'} first."
        if len(jobs) > 1:
            return view.passing_note(f"Queued {len(jobs)} videos{f': {order}' if num_ahead else '.'}")
        return view.passing_note(f"Number {num_ahead + 1} in the queue: {order}") if num_ahead else ""

    def form_end(self) -> str:
        """End the job that is being made, or else the next one, and return a notice."""
        running, waiting = self._service.open_jobs()
        job = running or (waiting[0] if waiting else None)
        if job is None:
            return view.passing_note("Nothing is running.")
        is_ending = self._service.queue.cancel(job.id)
        return view.passing_note("Ending: the current work is finished first.") if is_ending else ""

    def form_model(self, model: str, mode: str) -> FormAnswer:
        info = self._catalogue.info(model)
        changes = {**info.default_settings, "resolution": info.side, "model": model}
        return self._form_update(changes | {"mode": mode if mode in info.modes else info.modes[0]})

    def form_models(self, model: str, mode: str) -> FormAnswer:
        """List the models to choose from now, and the values of another one if this model is gone."""
        if model in self._catalogue.names:
            return {"markup": {"in-model": model_options(self._catalogue, model)}}
        preselected = self._catalogue.preselected
        title = self._catalogue.info(preselected).title
        text = f"The model {short_repr(model)} was removed, so {title} is chosen."
        return self.form_model(preselected, mode) | {"notice": view.passing_note(text)}

    def form_restore(self, kept: str) -> FormAnswer:
        """Give `values` and `markup` for the form's values that a browser kept as JSON, or the start's."""
        start = self._start_settings()
        values = form.usable_values(self._catalogue, kept)
        usable = values or (form.usable_values(self._catalogue, json.dumps(start)) if start else {})
        name = self._catalogue.preselected
        return self._form_update(usable or {"model": name, "mode": self._catalogue.info(name).modes[0]})

    def form_fill(self, restored: str, kept: str) -> FormAnswer:
        """Fill the form with settings from outside, among its `kept` values; both are untrusted JSON."""
        try:
            settings = TypeAdapter(form.Restored).validate_json(restored)
            values = TypeAdapter(dict[str, Any]).validate_json(kept or "{}")
            usable, notices = form.merged(settings, values, self._catalogue)
        except ValueError as error:
            raise InputError("These settings cannot be read.", "Restore them again.") from error
        return self._form_update(usable) | {
            "notice": view.restored_note(settings.name, notices, settings.video)
        }

    def _form_update(self, values: dict[str, Any]) -> FormAnswer:
        name, mode = values["model"], values["mode"]
        info = self._catalogue.info(name)
        options = {
            "options-mode": radio_options(SETTINGS["mode"], info.modes, mode),
            "in-model": model_options(self._catalogue, name),
        }  # fmt: skip
        return {"values": values, "markup": view.model_markup(info) | options}

    def form_reset(self, model: str) -> FormAnswer:
        """Return all settings but start and end picture, prompt and model, as a page begins with them."""
        values = form.defaults(self._catalogue.info(model), self._catalogue.planner)
        start = self._start_settings() | {"model": model}
        if len(start) > 1:
            usable = form.usable_values(self._catalogue, json.dumps(start))
            values |= {name: value for name, value in usable.items() if name in values}
        return self._form_update(values | {"model": model, TIMED_PICTURES: ""})

    def _start_settings(self) -> dict[str, Any]:
        try:
            return dict(start_settings(presets_folder()).settings)
        except InputError as error:
            _log.warning("The start settings are not used: %s", error)
            return {}

    def form_example(self, model: str, index: int, starts: bool) -> FormAnswer:
        """Give the picture, if there is one, and the prompt of an example, and start its video if asked.

        Its video has the model's own settings, which then fill the form, too. That of the demo is enlarged.
        """
        info = self._catalogue.info(model)
        prompt = info.examples[index]
        file = view.example_file(prompt)
        values = dict[str, Any](prompt=prompt)
        if file is not None:
            path = write_uploads({START_PICTURE: file.read_bytes()}, file.name)[START_PICTURE]
            values |= {START_PICTURE: {"path": path, "orig_name": file.name}, "extras": ""}
        if file is None or not starts:
            return {"values": values}
        settings = form.defaults(info, self._catalogue.planner)
        settings |= {"seconds": _EXAMPLE_SECONDS, "model": model}
        request = form.to_request(settings, info, self._catalogue.planner)
        then = "enlarge:4" if model == "demo" and not missing_packages() else ""
        notice = self._submit(request | {"image": str(file), "prompt": prompt, "then": then})
        filled = self.form_reset(model)
        values |= {"seconds": _EXAMPLE_SECONDS}
        return filled | {"values": filled.get("values", {}) | values, "notice": notice}

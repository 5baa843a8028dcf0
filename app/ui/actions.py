"""What the page's buttons and fields do. Handlers are short: jobs are made elsewhere and outlive the page."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.jobs.service import JobService
from app.ui import view
from app.ui.catalogue import Catalogue
from app.ui.examples import example_picture, samples_of
from app.ui.watch import open_jobs
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.packing import Mode

_log = logging.getLogger(__name__)
MODE_LABELS: dict[Mode, str] = {"inverted": "End first · I2V", "forward": "Forward · F1"}
_ELSEWHERE = LongtakeError("This job runs in another program, such as the command line.", "End it there.")


def mode_choices(modes: tuple[Mode, ...]) -> list[tuple[str, str]]:
    return [(MODE_LABELS[mode], mode) for mode in modes]


@dataclass(frozen=True)
class Actions:
    """Handlers over one job service."""

    service: JobService
    catalogue: Catalogue

    def start(self, settings: dict[str, Any]) -> str:
        """Queues a job. Returns a notice: where it stands, or why not."""
        picture = settings.pop("image", None)
        settings["image"] = picture["path"] if isinstance(picture, dict) else ""
        try:
            job = self.catalogue.submit(self.service, settings)
            before = self.service.queue_position(job.id)
        except LongtakeError as error:
            return view.error_box(error)
        if not before:
            return ""
        jobs = "1 job comes" if before == 1 else f"{before} jobs come"
        return view.note_box(f"Queued {view.ordinal(before + 1)}: {jobs} first.")

    def end(self) -> str:
        """Ends the running job, or the next one if none has begun yet. Returns a notice."""
        running, waiting = open_jobs(self.service)
        job = running or (waiting[0] if waiting else None)
        if job is None:
            return view.note_box("Nothing is running.")
        return self._cancel(job.id, "Ending: the step being computed is finished first.")

    def remove_newest(self) -> str:
        """Takes the newest waiting job out of the queue. Returns a notice."""
        _, waiting = open_jobs(self.service)
        if not waiting:
            return view.note_box("No job is waiting.")
        return self._cancel(waiting[-1].id, "Removed from the queue.")

    def _cancel(self, job_id: str, done: str) -> str:
        if self.service.cancel(job_id):
            return view.note_box(done)
        return "" if self.service.job(job_id).is_over else view.error_box(_ELSEWHERE)

    def choose_model(self, name: str, mode: Mode, prompt: str) -> tuple[Any, ...]:
        """What else changes with the model: mode, quick list, banner, unknown words, resolution."""
        try:
            info = self.catalogue.info(name)
        except InputError:  # only a forged message names a model that is not in the list
            return tuple(gr.skip() for _ in range(5))
        if mode not in info.modes:
            mode = info.modes[0]
        return (
            gr.Radio(choices=mode_choices(info.modes), value=mode),
            gr.Dataset(samples=samples_of(info), visible=bool(info.examples)),
            view.banner(info),
            view.unknown_words(info, prompt),
            info.side,
        )

    def use_example(self, name: str, index: int) -> tuple[Any, Any]:
        """Picture, if there is one, and prompt of an entry of the quick list."""
        examples = self.catalogue.info(name).examples
        if not 0 <= index < len(examples):
            return gr.skip(), gr.skip()
        picture = example_picture(examples[index])
        return (gr.skip() if picture is None else picture), examples[index]

    def unknown_words(self, name: str, prompt: str) -> str:
        try:
            return view.unknown_words(self.catalogue.info(name), prompt)
        except InputError:
            return ""

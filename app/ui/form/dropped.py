"""The endpoints of files that are dropped on the page: pictures, and batches of videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.batch import batch_lines
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.endpoints import form_values, uploaded
from app.ui.form.settings import defaults, seed_of, to_request
from app.ui.pictures import upload_path
from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.request import PICTURES


class DropCalls:
    """The endpoints for one service. Each raises InputError if an argument cannot be used."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue

    @property
    def all(self) -> tuple[Any, ...]:
        """Return all endpoints."""
        return self.picture_check, self.batch_add

    def picture_check(self, file: dict[str, Any]) -> list[int]:
        """Return the width and the height of an uploaded picture, or refuse it."""
        found = self._catalogue.planner.pictures.judge(str(uploaded(file)))
        if isinstance(found, InputError):
            raise found
        return [found.width, found.height]

    def batch_add(self, file: dict[str, Any], pictures: dict[str, Any], form: str) -> list[str]:
        """Queue a video for each line of an uploaded CSV or JSON-lines file, or none if one cannot be used.

        Args:
            file: The upload, as for `recipe_read`.
            pictures: The uploaded pictures by the names that lines give; "" is for lines without one.
            form: The form's values by name, as JSON, for what a line leaves out.

        Returns:
            The ids of the jobs.
        """
        path = uploaded(file)
        known = {name: upload_path(upload, "image") for name, upload in pictures.items()}
        wanted = list[dict[str, Any]]()
        for line, found in batch_lines(path):
            try:
                if isinstance(found, str):
                    raise InputError(found)
                wanted.append(self._settings(found, form, known))
                self._catalogue.check(wanted[-1])
            except LongtakeError as error:
                raise InputError(
                    f"Line {line} of {path.name} cannot be used, so nothing was queued. {error}",
                    "Correct the line and drop the file again.",
                ) from error
        return [self._catalogue.submit(self._service, settings).id for settings in wanted]

    def _settings(self, line: dict[str, Any], form: str, known: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of a line's video, whose pictures can only be uploads."""
        values = form_values(form)
        model = line.get("model", values.get("model", self._catalogue.preselected))
        info, planner = self._catalogue.info(model), self._catalogue.planner
        # Steps, guidance and size of another model would not suit this one.
        values = defaults(info, planner) | (values if values.get("model", model) == model else {})
        values |= {"seed": seed_of(values), "model": model}
        return to_request(values, info, planner) | line | dict(_pictures(line, known))


def _pictures(line: Mapping[str, Any], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in PICTURES:
        wanted = str(line.get(name) or "")
        if wanted and wanted not in known:
            raise InputError(
                f"Its picture {short_repr(wanted)} was not dropped with the file.",
                "Drop the file together with its pictures.",
            )
        if wanted or (name == "image" and "" in known):
            yield name, known[wanted]

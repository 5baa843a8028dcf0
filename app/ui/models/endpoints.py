"""The endpoints of the models, which have the names and effects of the verbs of `python -m app models`."""

from __future__ import annotations

from typing import Any

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.models.present import ModelPresenter, card_plans, copy_offer, format_plans
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.installed import remove
from diffusers_helper.models.registry import find_model


class ModelCalls:
    """The endpoints of one service: each public method is one, which programs know by its docstring."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._downloads = service, service.downloads
        self._catalogue, self._presenter = catalogue, ModelPresenter(service, catalogue)

    @property
    def all(self) -> list[Any]:
        """Return all endpoints."""
        return [getattr(self, name) for name in vars(ModelCalls) if name.startswith("models_")]

    def models_list(self) -> dict[str, Any]:
        """List the models, with their parts, sizes, needs and downloads, and the disk that downloads fill."""
        return self._presenter.all()

    def models_get(self, model: str) -> dict[str, Any]:
        """Download a model beside the queue, or resume a download that is paused or has failed."""
        self._downloads.get(model)
        return self._presenter.one(model)

    def models_pause(self, model: str) -> dict[str, Any]:
        """Pause a download until `models_get` is called; the downloaded files stay."""
        find_model(model)
        self._downloads.pause(model)
        return self._presenter.one(model)

    def models_cancel(self, model: str) -> dict[str, Any]:
        """Withdraw a download, a check or a conversion; downloaded files stay until the model is removed."""
        find_model(model)
        self._downloads.cancel(model)
        return self._presenter.one(model)

    def models_verify(self, model: str) -> dict[str, Any]:
        """Begin to compare the checksums of a model's files; `problems` of `models_list` has the result."""
        find_model(model)
        self._downloads.verify(model)
        return self._presenter.one(model)

    def models_copy(self, model: str, weight_dtype: str) -> dict[str, Any]:
        """Return what a conversion would write and where, or why it is not possible."""
        return copy_offer(self._catalogue.info(model), weight_dtype)

    def models_convert(self, model: str, weight_dtype: str) -> dict[str, Any]:
        """Write a copy of a model's transformer in another type, beside the queue, as a model of its own."""
        offer = copy_offer(self._catalogue.info(model), weight_dtype)
        if offer["refusal"]:
            raise InputError(offer["refusal"])
        self._downloads.convert(model, weight_dtype)
        return self._presenter.one(model)

    def models_remove(self, model: str) -> dict[str, Any]:
        """Remove a downloaded model, except for parts that another one uses, or forget an added one."""
        running, _ = self._service.open_jobs()
        if running is not None and running.request.model == model:
            raise InputError(
                f"A video is being made with {model}; expected a model that is not in use.",
                "Remove it when the video is finished.",
            )
        info = find_model(model)
        self._downloads.cancel(model)
        self._downloads.wait_until_idle(model)
        try:
            removal = remove(info)
        except OSError as error:
            raise LongtakeError(
                f"A file of {model} cannot be removed ({error.strerror}).", "Check the rights of its folder."
            ) from error
        self._downloads.forget_check(model)
        return {
            "model": model, "removed_bytes": removal.num_bytes, "parts": list(removal.files),
            "kept": {part: list(users) for part, users in removal.kept.items()},
        }  # fmt: skip

    def models_formats(self, model: str) -> dict[str, Any]:
        """Return what these cards would do with the weights if the transformer's file had another format."""
        return format_plans(self._catalogue.info(model), self._catalogue.key(model))

    def models_plan(self, model: str, weight_dtype: str = "default") -> list[dict[str, Any]]:
        """Return what cards of 8 to 24 GB would do with a model's weights, for its own settings otherwise."""
        return card_plans(self._catalogue.info(model), self._catalogue.key(model), weight_dtype)

"""The models that the page and the API offer, and the machine that runs them."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.loras import with_lora_files
from app.ui.pictures import upload_path, uploaded_pictures, write_last_frame
from app.ui.planner import Planner
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.pictures import picture_paths, stored_pictures, with_paths
from diffusers_helper.errors import InputError
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import DEFAULT_MODEL, ModelInfo, find_model, model_names
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import BEFORE, FINISHING, TIMED_PICTURES, GenerationRequest


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The registered models, and the one in a `folder` named at the start, which is listed as `first`."""

    first: str = DEFAULT_MODEL
    folder: ModelInfo | None = None
    planner: Planner = field(default_factory=Planner)

    @classmethod
    def starting_with(cls, model: str, planner: Planner) -> Self:
        info = find_model(model, allow_folder=True)
        if model in model_names():
            return cls(model, planner=planner)
        name = (info.folder or Path(model)).name
        return cls(f"{name} (folder)" if name in model_names() else name, info, planner)

    @property
    def preselected(self) -> str:
        """The name that a new page shows: the first model's, or the default's if that was removed."""
        return self.first if self.first in self.names else DEFAULT_MODEL

    @property
    def names(self) -> tuple[str, ...]:
        return model_names() if self.folder is None else (*model_names(), self.first)

    @property
    def infos(self) -> dict[str, ModelInfo]:
        infos: dict[str, ModelInfo] = {}
        for name in self.names:
            with contextlib.suppress(InputError):
                infos[name] = self.info(name)
        return infos

    def info(self, name: str) -> ModelInfo:
        """Find a model; refuse anything that is not one of the names, such as a path."""
        if self.folder is not None and name == self.first:
            return self.folder
        return find_model(name if isinstance(name, str) else repr(name))  # pyright: ignore[reportUnnecessaryIsInstance]

    def key(self, name: str) -> str:
        """Name a model as jobs store it: by its own name, or by the folder's path."""
        if self.folder is not None and name == self.first:
            return str(self.folder.folder)
        return name

    def name_of(self, key: str) -> str:
        """Name a job's model as pages and programs know it, without the path of a folder."""
        if self.folder is not None and key == str(self.folder.folder):
            return self.first
        return key if key in model_names() else Path(key).name

    def submit(
        self, service: JobService, settings: dict[str, object], *, may_download: bool = False, **options: Any
    ) -> Job:
        request, pictures, allow_folder = self.check(settings, may_download=may_download)
        job = service.queue.add(request, allow_folder=allow_folder, pictures=pictures, **options)
        if absence_of(find_model(job.request.model, allow_folder=True)) is not None:
            service.downloads.get(job.request.model)  # the user has agreed to it
        return job

    def edit(self, service: JobService, job_id: str, settings: dict[str, object]) -> Job:
        """Replace the settings of a job that has not begun, with the checks of `submit`.

        An upload of the job's own picture counts as that picture, which a branch may not change. The job may
        keep a model that is not here yet.
        """
        job = service.job(job_id)
        keeps_model = self.key(str(settings.get("model", self.preselected))) == job.request.model
        request, pictures, allow_folder = self.check(settings, may_download=keeps_model)
        folder = JobFolder(job.folder)
        with contextlib.suppress(OSError):
            unchanged = stored_pictures(folder, picture_paths(job.request)).items() & pictures.items()
            request = with_paths(request, {name: str(folder.picture(name)) for name, _ in unchanged})
        return service.queue.edit(job_id, request, allow_folder=allow_folder, pictures=pictures)

    def check(
        self, settings: dict[str, object], *, may_download: bool = False
    ) -> tuple[GenerationRequest, dict[str, bytes], bool]:
        """Check that a request fits here; return it, its pictures, and whether its model is the folder."""
        model: Any = settings.get("model", self.preselected)
        if name := next((name for name in FINISHING if settings.get(name)), ""):
            raise InputError(setting=name, problem="is given", expected="none here", remedy="Leave it out.")
        settings = {**with_lora_files(settings), "model": self.key(model)}
        if isinstance(model, str):
            model_settings = self.info(model).default_settings
            settings |= {name: value for name, value in model_settings.items() if settings.get(name) is None}
        if settings.get("video"):
            video = Path(upload_path({"path": settings["video"]}, "video"))
            if not video.is_file():
                message = f"The video {video.name} is not here any more; uploads stay for a day."
                raise InputError(message, "Drop it again, or forget it.")
            settings["video"] = str(video)
            if not settings.get("image") and settings.get("extend") != BEFORE:
                last = write_last_frame(read_footage(video))
                settings |= {name: upload_path({"path": file}, name) for name, file in last.items()}
        settings[TIMED_PICTURES] = uploaded_pictures(settings.get(TIMED_PICTURES))
        request = GenerationRequest.from_dict(settings)
        self.planner.check(request, self.info(str(model)))
        absence = absence_of(self.info(str(model)))
        if absence is not None and not (may_download and absence.has_room):
            raise NotHere(absence)
        return request, self.planner.pictures.contents(request), request.model != model

"""Helpers for tests of the pipeline: a picture, requests, and the frames before they are encoded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffusers_helper.events import Event, PieceDone, SectionFinished, StageStarted, StepDone
from diffusers_helper.loading.copying import find_own_component
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.models.added import ADDED_MODELS, AddedModel
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.request import GenerationRequest


class Stop(Exception):
    """The error with which a test ends a job in the middle."""


def write_scene(path: Path, width: int = 64, height: int = 64) -> Path:
    """Write a picture with gradients and an edge, in which every latent differs from its neighbours."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * x // width, 255 * y // height
    blue = np.where((x - width / 2) ** 2 + (y - height / 2) ** 2 < (min(width, height) / 4) ** 2, 230, 40)
    Image.fromarray(np.stack([red, green, blue], -1).astype(np.uint8)).save(path)
    return path


def load_tiny(tiny_model: Path) -> Models:
    return load_models(find_model(str(tiny_model), allow_folder=True), device="cpu")


def add_model(folder: Path, name: str = "mine", **files: Path) -> Models:
    """Add a model that takes these parts from files and the others from a folder."""
    base = find_model(str(folder), allow_folder=True)
    parts = {part: find_own_component(part, file, base).component for part, file in files.items()}
    ADDED_MODELS.add(AddedModel(name, name, str(folder), parts))
    return load_models(find_model(name), device="cpu")


def tiny_request(image: Path, **settings: Any) -> GenerationRequest:
    """Return a request for one section with two steps, unless the settings differ."""
    given = {"prompt": "the red ball moves right", "seconds": 1.0, "steps": 2, "seed": 7, **settings}
    return GenerationRequest(image=str(image), **given)


def make(
    request: GenerationRequest, models: Models, folder: Path, **settings: Any
) -> tuple[Result, list[Event]]:
    """Run a whole job, and return its result and its events."""
    events: list[Event] = []
    return generate(request, models, folder=folder, on_event=events.append, **settings), events


def outline(events: list[Event]) -> list[str]:
    lines: list[str] = []
    for event in events:
        if isinstance(event, StepDone):
            lines.append(f"step {event.section} {event.step}/{event.steps}")
        elif isinstance(event, PieceDone):
            lines.append(f"{event.stage} {event.section} {event.piece}/{event.pieces}")
        elif isinstance(event, StageStarted):
            lines.append(event.stage if event.section is None else f"{event.stage} {event.section}")
        elif isinstance(event, SectionFinished):
            lines.append(f"finished {event.section}/{event.sections}")
        else:
            lines.append(type(event).__name__)
    return lines


class Frames:
    """A record of the final frames that a pipeline passes to the video, before they are encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._parts: list[np.ndarray] = []
        parts = self._parts

        class Recording(GrowingVideo):
            def add_section(
                self, final: np.ndarray | None, pending: np.ndarray | None, *, is_behind: bool = False
            ) -> Path:
                assert final is not None
                if self._mode == "inverted":
                    parts.insert(0, final)
                else:
                    parts.append(final)
                return super().add_section(final, pending, is_behind=is_behind)

        monkeypatch.setattr("diffusers_helper.job.setup.GrowingVideo", Recording)

    def all(self) -> np.ndarray:
        """Return all frames, uint8 (T, H, W, 3), in the order of the video."""
        return np.concatenate(self._parts)


def seconds_for(num_sections: int) -> float:
    """Return a length that gives this many sections."""
    return max(1.0, num_sections * 36 / 30)

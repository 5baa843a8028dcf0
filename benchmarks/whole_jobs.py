"""Helpers for benchmarks of whole jobs: a loaded model, a picture and a request."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffusers_helper.bench.context import StandInModels
from diffusers_helper.cancel import CancelToken
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.memory.device import open_device
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import GenerationRequest

FULL = "full"


def write_picture(path: Path, height: int, width: int) -> None:
    """Write a red disc on a gradient of greys."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.repeat((60 + 120 * x // width)[..., None], 3, -1)
    pixels[(x - width / 2) ** 2 + (y - height / 2) ** 2 < (height / 6) ** 2] = (220, 30, 30)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def load_whole(model: str, device: str | None = None, folder: Path | None = None) -> Models:
    """Load all parts of a model; "full" is FramePack's size with random weights, which go to the folder."""
    if model == FULL:
        assert folder is not None
        models = StandInModels(folder, torch.device(device) if device else open_device().torch_device)
    else:
        models = load_models(find_model(model, allow_folder=True), device=device)
    models.load(CancelToken())
    return models


def request_of(
    arguments: argparse.Namespace, models: Models, folder: Path, **settings: Any
) -> GenerationRequest:
    """Return the request that the command line asks for, with a picture that is written to `folder`."""
    picture = folder / "picture.png"
    write_picture(picture, *models.info.family.nearest_bucket(3, 4, models.info.side, models.info.multiple))
    return GenerationRequest(
        image=str(picture), prompt="the red ball moves right",
        model=models.info.name if arguments.model == FULL else arguments.model,
        seconds=arguments.seconds, steps=arguments.steps, **settings,
    )  # fmt: skip

"""Tests of where the shift of a section's noise levels comes from."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffusers_helper.framepack import work
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import flow_sigmas


@pytest.mark.parametrize(
    ("wanted", "of_model", "shift"), [(16.0, 70.0, 16.0), (0.0, 70.0, 70.0), (0.0, None, 7.0)]
)
def test_the_shift_is_that_of_the_request_or_of_the_model_or_goes_by_the_tokens(
    wanted: float, of_model: float | None, shift: float
) -> None:
    info, sections = SimpleNamespace(shift=of_model), SimpleNamespace(latent_window_size=9)
    job: Any = SimpleNamespace(
        latents_shape=lambda frames: (1, 16, frames, 80, 76),
        sections=sections,
        models=SimpleNamespace(info=info),
    )
    request = GenerationRequest(image="a.png", steps=12, shift=wanted)
    assert torch.equal(work.sigmas(job, request), flow_sigmas(12, shift))

"""Tests that a whole job of the demo model differs little with all kernels that a person can choose."""

from pathlib import Path

import numpy as np
import pytest

from cache import conv_rungs
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model
from tests.support.clips import psnr
from tests.support.making import Frames, make, tiny_request

pytest.importorskip("comfy_kitchen")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "weights", "least_db"), [("fused", "default", 60.0), ("fast8", "int8", 45.0)]
)
def test_a_job_with_all_kernels_is_close_to_the_plain_one(
    kernels: str, weights: str, least_db: float, small_scene: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Compare blocks, attention and convolutions in fp32, in which rounding hides nothing."""
    monkeypatch.setattr("diffusers_helper.models.sizes.slow_types", lambda **_: ("float16", "bfloat16"))
    monkeypatch.setattr(conv_rungs, "KITCHEN_CARDS", ("cpu",))
    monkeypatch.setattr(conv_rungs, "KITCHEN_TYPES", ("float32",))
    videos, counts = list[np.ndarray](), list[int]()
    models = load_models(find_model("demo"), device="cpu")  # a plain job leaves nothing to the next one
    for chosen in ({"kernels": "plain"}, {"kernels": kernels, "attention": "sliced"}):
        request = tiny_request(small_scene, weight_dtype=weights, resolution=64, **chosen)
        with monkeypatch.context() as patch:
            frames = Frames(patch)
            make(request, models, tmp_path / chosen["kernels"], local=Local({"LONGTAKE_VAE_DTYPE": "fp32"}))
        videos.append(frames.all())
        ladder = models.convolutions.ladder
        counts.append(ladder.successes["kitchen"] if ladder else 0)
    assert counts[0] == 0 < counts[1]
    assert least_db <= psnr(*videos).min() < 100.0  # the bits are not the same, so kernels were in use

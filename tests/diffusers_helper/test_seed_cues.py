"""Tests that a seed in the prompt is the seed of all noise of its sections."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from diffusers_helper import pipeline
from diffusers_helper.helios import work as helios
from diffusers_helper.sampling.schedule import noise_for
from diffusers_helper.wan import work as wan
from tests.support.making import load_tiny, make, tiny_request


@pytest.mark.parametrize(
    ("model", "purpose", "own"),
    [("tiny_helios_distilled", "stage", {}), ("tiny_wan_fast", "step", {"steps": 3, "clip_frames": 17})],
)
def test_a_seed_in_the_prompt_holds_for_the_noise_between_steps(
    model: str, purpose: str, own: dict[str, int], small_scene: Path, tmp_path: Path,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    drawn = set()

    def record(seed: int, purpose: str, number: int, shape: Sequence[int]) -> Tensor:
        drawn.add((purpose, seed))
        return noise_for(seed, purpose, number, shape)

    for module in (pipeline, helios, wan):
        monkeypatch.setattr(module, "noise_for", record)
    folder: Path = request.getfixturevalue(model)
    settings = {"prompt": "a red ball [0s: seed 9]", "mode": "forward", "resolution": 64, **own}
    make(tiny_request(small_scene, model=str(folder), **settings), load_tiny(folder), tmp_path)
    of_sections = {(name, seed) for name, seed in drawn if name in ("noise", purpose)}
    assert of_sections == {("noise", 9), (purpose, 9)}

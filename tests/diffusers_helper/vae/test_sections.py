"""Tests that decoding in cached windows of time gives the bits of the VAE's own decode."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor, nn

from diffusers_helper.families.packing import DEFAULT_CHUNK, Mode, plan_sections
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.memory.device import Device
from diffusers_helper.planning.vae import Task, Tiles, VaePlan, Video
from diffusers_helper.vae.borrowed import BorrowedVaeOwner
from diffusers_helper.vae.engine import VaeEngine, VideoPart
from tests.support.making import seconds_for


@pytest.fixture(scope="module")
def vae(tiny_model: Path) -> AutoencoderKLHunyuanVideo:
    return AutoencoderKLHunyuanVideo.from_pretrained(tiny_model / "vae").eval().requires_grad_(False)


class InWindows(BorrowedVaeOwner):
    """Plans as a job does: in the VAE's own windows of time. Remembers the parts it was asked for."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__(vae, Device())
        self.tiles, self.parts = Tiles(), list[VideoPart | None]()

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        return VaePlan(task, "windows", DEFAULT_CHUNK, self.tiles, 0, "")

    @contextmanager
    def vae_on_device(self, task: Task, part: VideoPart | None) -> Iterator[nn.Module]:
        self.parts.append(part)
        with super().vae_on_device(task, part) as vae:
            yield vae


def noise(count: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 16, count, 2, 2, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "count",
    [1, 4, 10, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 5, 6, 7, 9, 13, 18, 19))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_latents(count: int, dtype: torch.dtype, vae: AutoencoderKLHunyuanVideo) -> None:
    latents, network = noise(count, batch=2).to(dtype), copy.deepcopy(vae).to(dtype)
    expected = torch.cat([network.decode(item, return_dict=False)[0] for item in latents.split(1)])
    result = VaeEngine(InWindows(network)).decode(latents)
    assert result.shape[2] == 4 * count - 3
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("mode", "calls"),
    [("inverted", [3, 3, 4, 6]), pytest.param("forward", [3, 6, 4, 4], marks=pytest.mark.slow)],
)
def test_sections_share_windows(mode: Mode, calls: list[int], vae: AutoencoderKLHunyuanVideo) -> None:
    history, engine = LatentHistory(mode, noise(1)), VaeEngine(InWindows(vae))
    for section, expected_calls in zip(plan_sections(seconds_for(4), mode=mode), calls, strict=True):
        history.add(noise(9) + section.number, section)
        latents, begin = history.to_decode(section), section.decode_start
        expected = vae.decode(latents, return_dict=False)[0]
        counted: list[tuple[int, int]] = []
        part = VideoPart(section.number, begin)
        result = engine.decode(
            latents, part=part, progress=lambda *count, reported=counted: reported.append(count)
        )
        assert torch.equal(result, expected)
        assert counted == [(done, expected_calls) for done in range(1, expected_calls + 1)]
        assert engine.owner.parts[-1] == part


def test_other_tiles_share_nothing(vae: AutoencoderKLHunyuanVideo) -> None:
    engine, latents = VaeEngine(InWindows(vae)), noise(9).repeat(1, 1, 1, 2, 2)
    first = engine.decode(latents, part=VideoPart(1, 0))
    engine.owner.tiles = Tiles(16, 0)
    counted: list[int] = []
    tiled = engine.decode(latents, part=VideoPart(2, 0), progress=lambda done, total: counted.append(total))
    assert counted == [12] * 12
    assert not torch.equal(tiled, first)


def test_a_video_that_is_no_part_leaves_nothing_behind_and_takes_nothing(
    vae: AutoencoderKLHunyuanVideo,
) -> None:
    part = VideoPart(1, 0)
    for parts in [None, None], [None, part], [part, None]:  # at the same place, but another video
        engine = VaeEngine(InWindows(vae))
        for factor, place in enumerate(parts, 1):
            latents = factor * noise(5)
            expected = vae.decode(latents, return_dict=False)[0]
            assert torch.equal(engine.decode(latents, part=place), expected), parts

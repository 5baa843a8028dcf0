"""Tests of the transformer's training: weights of moving places, quickly made clips, a start from a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from training.encoders import Encoders
from training.pool import CLIP_LATENTS, Pool, encode_case
from training.render import Renderer, make_canvases
from training.scenes import Background, Case, Motion, Scene, Thing
from training.start import blend, start_from
from training.train_transformer import CHECKPOINT
from training.transformer import motion_weight
from training.vae import build_vae

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
SIZE = (64, 64)


def scene() -> Scene:
    """Return a red ball left of the middle on plain grey."""
    background = Background("solid", ((0.5, 0.5, 0.5),) * 2, 0.0, 0.3, 0.0)
    return Scene(background, (Thing("ball", "red", (0.86, 0.13, 0.12), -0.2, 0.0, 0.15),), 0.5, 0.5)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training folder started from the shipped model."""
    folder = tmp_path_factory.mktemp("training")
    assert start_from(MODEL, folder)
    return folder


@pytest.fixture(scope="module")
def vae(started: Path):
    state = torch.load(started / "vae_frozen.pt", weights_only=True)
    model = build_vae()
    model.load_state_dict(state["weights"])
    model.register_to_config(scaling_factor=state["scaling_factor"])
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoders(started: Path) -> Encoders:
    return Encoders(started / "model")


def test_a_small_pale_motion_counts_as_much_as_a_large_one() -> None:
    start = torch.zeros(2, 16, 1, 8, 8)
    clean = torch.zeros(2, 16, 9, 8, 8)
    clean[0, :, :, :6] = 1.0
    clean[1, :, :, :2, :2] = 0.3
    sums = motion_weight(clean, start).mean(dim=(1, 2, 3))
    assert 0.5 < float(sums[1] / sums[0]) < 2
    plain = clean.abs().mean(dim=(1, 2, 3, 4))
    assert float(plain[1] / plain[0]) < 0.05


def test_a_still_clip_weighs_its_places_alike() -> None:
    start = torch.randn(1, 16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    noise = 0.005 * torch.randn(1, 16, 9, 8, 8, generator=torch.Generator().manual_seed(2))
    assert float(motion_weight(start + noise, start).max()) < 2


def test_a_start_keeps_the_weights_and_an_existing_checkpoint(started: Path) -> None:
    shipped = HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer").state_dict()
    state = torch.load(started / CHECKPOINT, weights_only=True)
    assert state["step"] == 0
    assert "optimiser" not in state
    assert all(torch.equal(state["model"][name], value.float()) for name, value in shipped.items())
    scale = json.loads((MODEL / "vae" / "config.json").read_text())["scaling_factor"]
    frozen = torch.load(started / "vae_frozen.pt", weights_only=True)
    assert frozen["scaling_factor"] == pytest.approx(scale)
    before = (started / CHECKPOINT).read_bytes()
    assert not start_from(MODEL, started)
    assert (started / CHECKPOINT).read_bytes() == before


def test_a_blend_lies_between_the_model_and_the_running_mean(tmp_path: Path) -> None:
    model = HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer")
    shipped = model.float().state_dict()
    average = {name: value + 1 for name, value in shipped.items()}
    torch.save({"model": {}, "average": average, "spent": 7.0, "step": 3}, tmp_path / CHECKPOINT)
    blend(MODEL, tmp_path, 0.25)
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert (state["spent"], state["step"]) == (7.0, 3)
    assert all(torch.allclose(state["model"][name], value + 0.25) for name, value in shipped.items())


@pytest.mark.slow
def test_clips_made_from_single_frames_are_near_the_true_ones(vae, encoders: Encoders) -> None:
    renderer = Renderer(make_canvases(1, 1))
    case = Case(scene(), Motion("right"), "the red ball moves right")
    true, quick = (
        encode_case(vae, encoders, renderer, case, SIZE, exact).latents.float() for exact in (True, False)
    )
    assert true.shape == quick.shape == (16, CLIP_LATENTS, 8, 8)
    moved = (true - true[:, :1]).square().mean()
    assert float((quick - true).square().mean()) < 0.15 * float(moved)
    # The same clip one latent frame later is further off: the times are right.
    late = (quick[:, 2:] - true[:, 1:-1]).square().mean()
    assert float((quick[:, 1:] - true[:, 1:]).square().mean()) < float(late)


@pytest.mark.slow
def test_a_pool_forgets_its_oldest_clips(vae, encoders: Encoders) -> None:
    pool = Pool(vae, encoders, Renderer(make_canvases(1, 1)), np.random.default_rng(3), limit=3)
    pool.add(SIZE, 3)
    first = list(pool.items[SIZE])
    pool.add(SIZE, 2)
    kept = pool.items[SIZE]
    assert len(kept) == 3
    assert kept[2] is first[2]
    assert kept[0] is not first[0]
    assert kept[1] is not first[1]

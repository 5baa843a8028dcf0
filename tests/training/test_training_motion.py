"""Tests of what the transformer learns from: weights of moving places, fast clips, a start from a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from training.clips import encode_cases
from training.encoders import Encoders
from training.render import Renderer, make_canvases
from training.scenes import (
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
)
from training.start import start_from, weights_of
from training.train_transformer import CHECKPOINT
from training.transformer import (
    CLIP_LATENTS,
    Conditions,
    SectionTimes,
    build_transformer,
    gather,
    model_inputs,
)
from training.vae import build_vae

pytestmark = pytest.mark.slow  # it draws and encodes clips

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
SIZE, SMALL = (64, 64), (32, 32)


def scene() -> Drawing:
    """Return a red ball left of the middle on plain grey."""
    background = Background("solid", ((0.5, 0.5, 0.5),) * 2, 0.0, 0.3, 0.0)
    return Drawing(background, (Thing("ball", "red", (0.86, 0.13, 0.12), -0.2, 0.0, 0.15),), 0.5, 0.5)


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


def test_blocks_that_the_start_lacks_change_nothing_at_first(tmp_path: Path) -> None:
    shipped = HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer").float()
    config = dict(shipped.config) | {"num_single_layers": 3}
    shallow = HunyuanVideoFramepackTransformer3DModel.from_config(config)
    shallow.load_state_dict({name: value for name, value in shipped.state_dict().items()
                             if name in shallow.state_dict()})  # fmt: skip
    shallow.save_pretrained(tmp_path / "transformer")
    deeper = build_transformer()
    deeper.load_state_dict(weights_of(tmp_path))
    assert len(deeper.single_transformer_blocks) == len(shipped.single_transformer_blocks) > 3
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(1, 16, 1, 8, 8, generator=generator)
    section = SectionTimes("forward", 0, list(range(1, 10)), [None] * 18 + [0])
    text = torch.randn(1, 4, 64, generator=generator)
    conditions = Conditions(text, torch.ones(1, 4, dtype=torch.bool), text[:, 0], text, torch.ones(1))
    given = {
        "hidden_states": torch.randn(1, 16, 9, 8, 8, generator=generator),
        "timestep": torch.tensor([900.0]),
        **conditions.inputs(),
        **model_inputs(section, start, gather(start, start, section.history)),
    }
    with torch.no_grad():
        expected, made = (model.eval()(**given, return_dict=False)[0] for model in (shallow, deeper))
    assert expected.abs().max() > 0.1
    assert torch.equal(made, expected)


def encode_clip(vae, pixels: torch.Tensor) -> torch.Tensor:
    """Return latents (16, 19, h, w) of a whole clip (3, 81, H, W), encoded in chunks of 17 frames."""
    chunks = pixels.unfold(1, 17, 16).permute(1, 0, 4, 2, 3)
    with torch.no_grad():
        mean = vae.quant_conv(vae.encoder(chunks.contiguous())).chunk(2, dim=1)[0] * vae.config.scaling_factor
    return torch.cat([mean[0], *mean[1:, :, 1:]], dim=1)[:, :CLIP_LATENTS]


@pytest.mark.slow
def test_clips_made_from_single_frames_are_near_the_true_ones(vae, encoders: Encoders) -> None:
    renderer = Renderer(make_canvases(1, 1))
    case = Case(scene(), Motion("right"), "the red ball moves right")
    true = encode_clip(vae, renderer.case(case, range(81), SIZE))
    quick = encode_cases(vae, encoders, renderer, [case], SIZE)[0].latents.float()
    assert true.shape == quick.shape == (16, CLIP_LATENTS, 8, 8)
    moved = (true - true[:, :1]).square().mean()
    assert float((quick - true).square().mean()) < 0.15 * float(moved)
    # The same clip one latent frame later is further off, which shows that the times are right.
    late = (quick[:, 2:] - true[:, 1:-1]).square().mean()
    assert float((quick[:, 1:] - true[:, 1:]).square().mean()) < float(late)

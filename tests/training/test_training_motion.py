"""Tests of what the transformer learns from: weights of moving places, fast clips, a start from a model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from training.clips import Clips, draw_batch, draw_case, encode_cases
from training.encoders import Encoders
from training.render import Renderer, make_canvases
from training.scenes import (
    DIRECTIONS,
    MOTIONS,
    PLAIN,
    STILL,
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
    visible,
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
    motion_weight,
)
from training.vae import build_vae
from training.watch import Watch

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


def test_clips_encoded_together_are_those_encoded_alone(vae, encoders: Encoders) -> None:
    renderer = Renderer(make_canvases(1, 1))
    cases = [Case(scene(), Motion(name), f"the red ball moves {name}") for name in ("right", "up")]
    together = encode_cases(vae, encoders, renderer, cases, SIZE)
    for case, item in zip(cases, together, strict=True):
        alone = encode_cases(vae, encoders, renderer, [case], SIZE)[0]
        assert torch.equal(item.text.pooled, alone.text.pooled)
        assert torch.allclose(item.latents.float(), alone.latents.float(), atol=0.05)
        assert torch.allclose(item.picture, alone.picture, atol=1e-4)


@pytest.mark.slow
class TestClips:
    """Tests of the source of clips."""

    @pytest.fixture
    def clips(self, vae, encoders: Encoders) -> Clips:
        return Clips(vae, encoders, Renderer(make_canvases(1, 1)))

    def test_only_the_wanted_times_are_encoded(self, clips: Clips) -> None:
        whole, conditions = clips.encode(
            draw_batch(np.random.default_rng(3), SMALL, 3, range(CLIP_LATENTS), 1)
        )
        some, _ = clips.encode(draw_batch(np.random.default_rng(3), SMALL, 3, [0, 4, 11], 1))
        assert whole.shape == some.shape == (3, 16, CLIP_LATENTS, 4, 4)
        assert torch.allclose(some[:, :, [0, 4, 11]], whole[:, :, [0, 4, 11]], atol=0.05)
        others = [time for time in range(CLIP_LATENTS) if time not in (0, 4, 11)]
        assert not some[:, :, others].any()
        assert whole.abs().amax(dim=(1, 3, 4)).min() > 0
        assert conditions.pooled.shape == (3, 64)

    def test_all_clips_differ(self, clips: Clips) -> None:
        rng = np.random.default_rng(3)
        drawn = torch.cat([clips.encode(draw_batch(rng, SMALL, 3, [0, 9], 1))[0] for _ in range(2)])
        assert len({float(clip.sum()) for clip in drawn}) == 6

    def test_drawn_cases_show_their_motion(self) -> None:
        rng = np.random.default_rng(9)
        for _ in range(300):
            case = draw_case(rng, SMALL, 1)
            of_thing, of_camera = visible(case.scene)
            assert case.motion.name in (STILL, *of_thing, *of_camera)
            assert case.motion.name != STILL or case.motion.speed == ""

    def test_hard_motions_and_scenes_of_several_things_are_drawn_more_often(self) -> None:
        rng = np.random.default_rng(5)
        cases = [draw_case(rng, SMALL, 1) for _ in range(600)]
        motions = Counter(case.motion.name for case in cases)
        assert motions["spins"] > 3 * motions["pans left"] > 0
        batch = [case for case in cases if len(case.scene.things) > 1]
        assert len(batch) > 0.5 * len(cases)
        moves = sum(case.motion.name in DIRECTIONS for case in cases)
        plain = [case.motion.name for case in batch if case.scene.background.kind in PLAIN]
        assert sum(name in DIRECTIONS for name in plain) > 0.3 * moves


@pytest.mark.slow
def test_projections_tell_a_model_that_knows_from_one_that_does_not(vae, encoders: Encoders) -> None:
    watch = Watch.make(vae, encoders, SIZE, per_motion=2)
    assert len(watch.cases) == 2 * len(MOTIONS)
    order = iter([0, 1])

    def knowing(hidden_states, latents_clean, **_):
        chosen = range(next(order), len(watch.cases), 2)
        clean = torch.stack([watch.items[i].latents[:, 1:10] for i in chosen]).float()
        return (hidden_states - clean,)

    def still(hidden_states, latents_clean, indices_latents_clean, **_):
        which = 0 if indices_latents_clean[0] == 0 else 1
        return (hidden_states - latents_clean[:, :, which : which + 1],)

    assert all(share == pytest.approx(1, abs=1e-3) for share in watch.projections(knowing).values())
    assert all(abs(share) < 1e-3 for share in watch.projections(still).values())

"""Tests of what the transformer learns from: weights of moving places, and fast clips."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from training.clips import Clips, draw_batch, encode_frames
from training.encoders import Encoders
from training.render import Renderer, make_canvases
from training.run import load_vae
from training.scenes import (
    COLOURS,
    DIRECTIONS,
    MOTIONS,
    PLAIN,
    STILL,
    Act,
    Background,
    Drawing,
    Motion,
    Thing,
    sample_scene,
    visible,
)
from training.sections import VideoPlan
from training.stories import WARM, draw_story, warmed
from training.transformer import motion_weight
from training.watch import Watch

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
SIZE, SMALL = (64, 64), (32, 32)
ONE, TWO = VideoPlan("forward", (1,)), VideoPlan("forward", (1, 1))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    vae = load_vae(MODEL, tmp_path_factory.mktemp("none")).requires_grad_(False)
    return Clips(vae, Encoders(MODEL), Renderer(make_canvases(1, 1)))


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


def encode_clip(vae, pixels: torch.Tensor) -> torch.Tensor:
    """Return latents (16, 19, h, w) of a whole clip (3, 81, H, W), encoded in chunks of 17 frames."""
    chunks = pixels.unfold(1, 17, 16).permute(1, 0, 4, 2, 3)
    with torch.no_grad():
        mean = vae.quant_conv(vae.encoder(chunks.contiguous())).chunk(2, dim=1)[0] * vae.config.scaling_factor
    return torch.cat([mean[0], *mean[1:, :, 1:]], dim=1)[:, : TWO.length]


@pytest.mark.slow
def test_clips_made_from_single_frames_are_near_the_true_ones(clips: Clips) -> None:
    background = Background("solid", ((0.5, 0.5, 0.5),) * 2, 0.0, 0.3, 0.0)
    scene = Drawing(background, (Thing("ball", "red", (0.86, 0.13, 0.12), -0.2, 0.0, 0.15),), 0.5, 0.5)
    acts = [Act(Motion("right"))]
    true = encode_clip(clips.vae, clips.renderer.story(scene, acts, range(81), SIZE))
    frames = [TWO.frame(time) for time in range(TWO.length)]
    quick = encode_frames(clips.vae, clips.renderer.story(scene, acts, frames, SIZE)[None])[0]
    assert true.shape == quick.shape == (16, 19, 8, 8)
    moved = (true - true[:, :1]).square().mean()
    assert float((quick - true).square().mean()) < 0.15 * float(moved)
    # The same clip one latent frame later is further off, which shows that the times are right.
    late = (quick[:, 2:] - true[:, 1:-1]).square().mean()
    assert float((quick[:, 1:] - true[:, 1:]).square().mean()) < float(late)


@pytest.mark.slow
def test_a_batch_has_the_wanted_times_and_the_words_of_both_sections(clips: Clips) -> None:
    def batch(wanted: list[int], plan: VideoPlan = TWO):
        return clips.encode(draw_batch(np.random.default_rng(3), SMALL, 3, plan, 1, wanted, 1))

    whole, conditions, before = batch([*range(19)])
    some, *_ = batch([0, 4, 11])
    assert whole.shape == some.shape == (3, 16, 19, 4, 4)
    assert torch.allclose(some[:, :, [0, 4, 11]], whole[:, :, [0, 4, 11]], atol=0.05)
    assert not some[:, :, [time for time in range(19) if time not in (0, 4, 11)]].any()
    assert len({float(clip.sum()) for clip in whole}) == 3
    assert conditions.pooled.shape == (3, 64)
    assert not torch.equal(conditions.pooled, before.pooled)
    assert torch.equal(conditions.picture, before.picture)
    # Without pictures, all clips have the features of a black one.
    _, from_words, _ = batch([1, 10], VideoPlan("forward", (1, 1), has_picture=False))
    assert torch.equal(from_words.picture[0], from_words.picture[1])
    assert not torch.equal(from_words.picture[0], conditions.picture[0])


def test_hard_motions_and_scenes_of_several_things_are_drawn_more_often() -> None:
    rng = np.random.default_rng(5)
    stories = [draw_story(rng, SMALL, 1, [0]) for _ in range(600)]
    names = [story.acts[0].motion.name for story in stories]
    for story, name in zip(stories, names, strict=True):
        of_thing, of_camera = visible(story.scene)
        assert name in (STILL, *of_thing, *of_camera)
    motions = Counter(names)
    assert motions["spins"] > 2 * motions["pans left"] > 0
    several = [story for story in stories if len(story.scene.things) > 1]
    assert len(several) > 0.5 * len(stories)
    plain = [story.acts[0].motion.name for story in several if story.scene.background.kind in PLAIN]
    assert sum(name in DIRECTIONS for name in plain) > 0.3 * sum(name in DIRECTIONS for name in names)


def test_warm_colours_come_before_bright_grounds() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        scene = warmed(rng, sample_scene(rng, *SMALL, 1, (0, 0.5, 0.5)))
        assert scene.things[0].colour in WARM
        assert scene.things[0].rgb == COLOURS[scene.things[0].colour]
        assert min(min(rgb) for rgb in scene.background.rgb) >= 0.65
        assert len({(thing.colour, thing.shape) for thing in scene.things}) == len(scene.things)


@pytest.mark.slow
def test_projections_tell_a_model_that_knows_from_one_that_does_not(clips: Clips) -> None:
    watch = Watch.make(clips, SIZE, per_motion=2)
    assert len(watch.cases) == 2 * len(MOTIONS)
    order = iter([0, 1])

    def knowing(hidden_states, latents_clean, **_):
        return (hidden_states - watch.latents[next(order) :: 2, :, 1:],)

    def still(hidden_states, latents_clean, indices_latents_clean, **_):
        which = 0 if indices_latents_clean[0] == 0 else 1
        return (hidden_states - latents_clean[:, :, which : which + 1],)

    assert all(share == pytest.approx(1, abs=1e-3) for share in watch.projections(knowing).values())
    assert all(abs(share) < 1e-3 for share in watch.projections(still).values())

"""Tests of the training step: the fast arithmetic is right, and a stopped run continues exactly."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from training import train_transformer
from training.quick import Attend, NormAndRotate, QuickTransformer
from training.sampler import with_own_history
from training.start import start_from
from training.tasks import Tasks
from training.train_transformer import CHECKPOINT, Phase, Plan, Trainer
from training.transformer import (
    Conditions,
    SectionTimes,
    draw_frames,
    draw_section,
    flow_loss,
    gather,
    model_inputs,
    times_of,
)

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
SECOND = SectionTimes("forward", 0, list(range(10, 19)), [None] * 9 + list(range(10)))


@pytest.fixture
def model() -> HunyuanVideoFramepackTransformer3DModel:
    return HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer").float()


def inputs(height: int, width: int) -> dict[str, torch.Tensor]:
    """Return inputs of two clips, one with a shorter prompt than the other."""
    generator = torch.Generator().manual_seed(4)
    latents = torch.randn(2, 16, 19, height, width, generator=generator)
    start = latents[:, :, :1]
    history = gather(latents, start, SECOND.history)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, 5:] = False
    conditions = Conditions(
        torch.randn(2, 8, 64, generator=generator),
        mask,
        torch.randn(2, 64, generator=generator),
        torch.randn(2, 4, 64, generator=generator),
        torch.full((2,), 10_000.0),
    )
    return {
        "hidden_states": torch.randn(2, 16, 9, height, width, generator=generator),
        "timestep": torch.tensor([900.0, 400.0]),
        **conditions.inputs(),
        **model_inputs(SECOND, start, history),
    }


@pytest.mark.parametrize("size", [(8, 8), (10, 6)])
def test_the_quick_forward_is_the_plain_one(model, size: tuple[int, int]) -> None:
    given = inputs(*size)
    with torch.no_grad():
        plain = model(**given, return_dict=False)[0]
        quick = QuickTransformer(model, torch.float32)(**given)[0]
        low = QuickTransformer(model, torch.bfloat16)(**given)[0].float()
    # Exact GELU differs from its tanh form by up to 0.0005 in each layer.
    assert float((quick - plain).abs().max()) < 0.01 * float(plain.std())
    assert float((low - plain).square().mean().sqrt()) < 0.04 * float(plain.std())


@pytest.mark.slow
def test_the_quick_gradients_are_the_plain_ones(model) -> None:
    given = inputs(8, 8)
    model(**given, return_dict=False)[0].square().mean().backward()
    plain = {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}
    for dtype, most in ((torch.float32, 0.02), (torch.bfloat16, 0.1)):
        model.zero_grad()
        quick = QuickTransformer(model, dtype)
        quick(**given)[0].float().square().mean().backward()
        quick.pass_gradients()
        matrices = [(name, one) for name, one in model.named_parameters() if name in plain and one.ndim >= 2]
        assert matrices
        for name, param in matrices:
            error = float((param.grad - plain[name]).norm() / plain[name].norm().clamp_min(1e-6))
            assert error < most, (name, dtype)


def test_the_written_backward_passes_are_right() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    angle = torch.rand(3, 1, 2, dtype=torch.float64, generator=generator).repeat_interleave(2, -1)
    sin = angle.sin() * torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, w: NormAndRotate.apply(x, w, angle.cos(), sin), (draw(2, 3, 2, 4), draw(2, 4))
    )
    bias = torch.tensor([0.0, -1e4], dtype=torch.float64).view(1, 1, 1, 2)
    parts = (draw(1, 2, 4, 3), draw(1, 2, 4, 3), draw(1, 2, 4, 3))
    assert torch.autograd.gradcheck(lambda q, k, v: Attend.apply(q, k, v, bias), parts)


def conditions_of(given: dict[str, torch.Tensor]) -> Conditions:
    """Return the conditions among the inputs of a step."""
    return Conditions(*(given[name] for name in (
        "encoder_hidden_states", "encoder_attention_mask", "pooled_projections", "image_embeds", "guidance"
    )))  # fmt: skip


def test_a_step_uses_no_other_times_than_those_it_asks_for() -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    conditions = conditions_of(inputs(8, 8))
    modes = set()
    for _ in range(60):
        section, frames = draw_section(rng), draw_frames(generator, 3)
        for own in {False, section.before is not None}:
            # A latent that no step may use is not a number.
            latents = torch.full((2, 16, 19, 8, 8), float("nan"))
            latents[:, :, times_of(section, frames, own)] = 1.0
            known = with_own_history(still, section, latents, conditions, generator) if own else latents
            loss = flow_loss(still, section, latents, conditions, generator, frames, known)
            assert torch.isfinite(loss).all()
            modes.add((section.mode, own))
    assert modes == {(mode, own) for mode in ("inverted", "forward") for own in (False, True)}


def still(hidden_states: torch.Tensor, **_: torch.Tensor) -> tuple[torch.Tensor]:
    """Predict a clip of zeros."""
    return (hidden_states,)


@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_the_history_can_be_what_the_model_made_itself(mode: str) -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    section = draw_section(rng)
    while section.before is None or section.mode != mode:
        section = draw_section(rng)
    seen: list[dict] = []

    def sevens(hidden_states, **given):
        seen.append({"noisy": hidden_states, **given})
        return (hidden_states - 7.0,)

    latents = torch.zeros(2, 16, 19, 8, 8)
    latents[:, :, 0] = 1.0
    frames, conditions = draw_frames(generator, 3), conditions_of(inputs(8, 8))
    known = with_own_history(sevens, section, latents, conditions, generator)
    flow_loss(sevens, section, latents, conditions, generator, frames, known)
    first, second = seen
    # The section before sees nothing but the picture, and is made from pure noise.
    assert first["noisy"].shape[2] == 9
    assert (first["timestep"] == 1000).all()
    assert not first["latents_history_2x"].any()
    assert not first["latents_history_4x"].any()
    near = second["latents_clean"][:, :, 1]
    dirt = 0.15 * 5
    assert float((near - 7.0).abs().max()) < dirt
    assert float((second["latents_history_2x"] - 7.0).abs().max()) < dirt
    assert torch.equal(second["latents_clean"][:, :, 0], latents[:, :, 0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_and_its_weights_are_read_without_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(train_transformer, "GPU_CLIPS", 2)
    monkeypatch.setattr(train_transformer, "GPU_CANVAS_SETS", 2)
    start_from(MODEL, tmp_path)
    trainer = Trainer(0, 1, tmp_path, Plan(minutes=1, device="cuda"))
    for _ in range(2):
        trainer.train_step()
    assert len(trainer.losses) == 2
    assert all(torch.isfinite(loss) for loss in trainer.losses)
    trainer.save()
    trainer.watch(False)
    assert (tmp_path / train_transformer.CURVE).exists()
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True, map_location="cpu")
    assert state["step"] == 2


@pytest.mark.slow
class TestRun:
    """Tests of the trainer on tiny batches; its clock counts steps."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count()
        monkeypatch.setattr(train_transformer.time, "process_time", lambda: float(next(ticks)))
        monkeypatch.setattr(train_transformer, "CANVASES", 1)
        monkeypatch.setattr(train_transformer, "PHASES", (Phase(1.0, {(32, 32): 1.0}, 3, 2),))
        monkeypatch.setattr(Trainer, "watch", lambda self, videos: None)

    @staticmethod
    def trainer(folder: Path) -> Trainer:
        return Trainer(0, 1, folder, Plan(minutes=10))

    def test_a_stopped_run_goes_on_exactly(self, tmp_path: Path) -> None:
        ends = []
        for name, stop in (("whole", None), ("stopped", 2)):
            folder = tmp_path / name
            start_from(MODEL, folder)
            trainer = self.trainer(folder)
            for step in range(4):
                if step == stop:
                    trainer.save()
                    trainer = self.trainer(folder)
                trainer.train_step()
                trainer.spent += 1
            ends.append((trainer.model.state_dict(), trainer.average.weights, trainer.losses[-1]))
        (whole, mean, loss), (stopped, stopped_mean, stopped_loss) = ends
        assert loss == stopped_loss
        assert all(torch.equal(value, stopped[name]) for name, value in whole.items())
        assert all(torch.equal(value, stopped_mean[name]) for name, value in mean.items())

    def test_a_new_phase_follows_on_without_repeating_a_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        phases = (Phase(0.5, {(32, 32): 1.0}, 3, 2), Phase(1.0, {(32, 48): 1.0}, 3, 3))
        monkeypatch.setattr(train_transformer, "PHASES", phases)
        start_from(MODEL, tmp_path)
        trainer = self.trainer(tmp_path)
        trainer.learned = 0.0
        seen = [trainer.encoded[0]]
        for step in range(5):
            trainer.spent = 60 * trainer.plan.minutes * (0.6 if step >= 2 else 0.1)
            trainer.train_step()
            seen.append(trainer.encoded[0])
        sizes = [task.batch.size for task in seen]
        assert sizes == [(32, 32)] * 3 + [(32, 48)] * 3
        for step, task in enumerate(seen):
            phase = phases[step >= 3]
            same = Tasks(phase, trainer.plan.seed, 0, phase.batch, 1)[step]
            assert task.seed == same.seed
            assert task.batch.prompts == same.batch.prompts

    def test_runs_of_different_seeds_draw_different_clips(self, tmp_path: Path) -> None:
        clips: list[float] = []
        for seed in (1, 2, 1):
            start_from(MODEL, folder := tmp_path / str(len(clips)))
            trainer = Trainer(0, 1, folder, Plan(minutes=10, seed=seed))
            trainer.train_step()
            clips.append(trainer.losses[0])
        assert clips[0] == clips[2] != clips[1]

    def test_training_lowers_the_loss_on_its_clips(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_from(MODEL, tmp_path)
        trainer = self.trainer(tmp_path)
        with torch.no_grad():
            trainer.model.proj_out.weight.mul_(0.5)
        trainer.quick.refresh()
        # The same clips, noise and times in each step: only the weights can change the loss.
        same = trainer.encoded
        monkeypatch.setattr(trainer, "_encode_next", lambda: same)
        for _ in range(12):
            trainer.train_step()
        assert trainer.losses[-1] < 0.95 * trainer.losses[0]

    def test_a_run_ends_and_keeps_its_state(self, tmp_path: Path) -> None:
        start_from(MODEL, tmp_path)
        trainer = Trainer(0, 1, tmp_path, Plan(minutes=3 / 60))
        trainer.run()
        state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        assert state["step"] == trainer.step > 0
        assert state["spent"] >= 3
        assert state["learned"] == pytest.approx(0.45)
        # A run whose time is spent returns at once.
        again = Trainer(0, 1, tmp_path, Plan(minutes=3 / 60))
        again.run()
        assert again.step == trainer.step

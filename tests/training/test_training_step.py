"""Tests of the training step: the fast arithmetic is right, and a stopped run continues exactly."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel

from training.fast_conv import install
from training.optim import Optimizers
from training.quick import Attend, NormAndRotate, QuickTransformer, attend
from training.render import Renderer, make_canvases
from training.run import load_vae
from training.sampler import with_own_history
from training.sections import VideoPlan, gather, model_inputs
from training.tasks import Sides, Tasks, wanted_times
from training.train_transformer import CHECKPOINT, Plan, Trainer, factor, read_parts
from training.transformer import Conditions, flow_loss
from training.vae import SCENE_SIZES, Crops, draw_batch, draw_clips, refine

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
SECOND = VideoPlan("forward", (2,)).section(1)


@pytest.fixture
def model() -> HunyuanVideoFramepackTransformer3DModel:
    return HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer").float()


def inputs(height: int, width: int) -> dict[str, torch.Tensor]:
    """Return inputs of two clips, one with a shorter prompt than the other."""
    generator = torch.Generator().manual_seed(4)
    latents = torch.randn(2, 16, 19, height, width, generator=generator)
    start = latents[:, :, :1]
    history = gather(latents, SECOND.history)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, 5:] = False
    conditions = Conditions(
        torch.randn(2, 8, 64, generator=generator), mask, torch.randn(2, 64, generator=generator),
        torch.randn(2, 4, 64, generator=generator), torch.full((2,), 10_000.0),
    )  # fmt: skip
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


def test_the_fused_attention_of_a_gpu_is_the_written_one() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 3, n, 12, generator=generator) for n in (5, 21, 21))
    bias = torch.zeros(2, 1, 1, 4)
    bias[0, ..., 2:] = -1e4
    assert torch.allclose(attend(query, key, value, bias), Attend.apply(query, key, value, bias), atol=1e-5)


def test_a_bf16_copy_follows_its_master(model) -> None:
    quick = QuickTransformer(model, torch.bfloat16)
    with torch.no_grad():
        model.proj_out.weight.add_(1.0)
    quick.refresh()
    assert torch.equal(quick.model.proj_out.weight, model.proj_out.weight.bfloat16())


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


@pytest.mark.parametrize("mode", ["inverted", "forward"])
@pytest.mark.parametrize("has_picture", [True, False])
def test_a_step_uses_no_other_times_than_those_it_asks_for(mode, has_picture: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    conditions = conditions_of(inputs(8, 8))
    plan = VideoPlan(mode, (2, 1), has_picture)
    for number, own in itertools.product(range(3), (False, True)):
        # A latent that no step may use is not a number.
        latents = torch.full((2, 16, plan.length, 4, 4), float("nan"))
        latents[:, :, wanted_times(plan, number, own)] = 1.0
        latents[:, :, :1] = 1.0  # the picture, or noise
        if own and (before := plan.before(number)) is not None:
            latents = with_own_history(still, plan.section(before), latents, conditions, generator)
        loss = flow_loss(still, plan.section(number), latents, conditions, generator)
        assert torch.isfinite(loss).all()


def still(hidden_states: torch.Tensor, **_: torch.Tensor) -> tuple[torch.Tensor]:
    """Predict a clip of zeros."""
    return (hidden_states,)


@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_the_history_can_be_what_the_model_made_itself(mode) -> None:
    generator = torch.Generator().manual_seed(0)
    plan = VideoPlan(mode, (2,))
    number, before = (0, 1) if mode == "inverted" else (1, 0)
    seen: list[dict] = []

    def sevens(hidden_states, **given):
        seen.append({"noisy": hidden_states, **given})
        return (hidden_states - 7.0,)

    latents = torch.zeros(2, 16, 19, 8, 8)
    latents[:, :, 0] = 1.0
    conditions = conditions_of(inputs(8, 8))
    known = with_own_history(sevens, plan.section(before), latents, conditions, generator)
    flow_loss(sevens, plan.section(number), known, conditions, generator)
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


def test_the_learning_rate_rises_then_falls_to_a_low_end() -> None:
    assert factor(0.0, 0) < 0.05
    assert factor(0.05, 100) == 1.0
    assert factor(0.55, 1000) == pytest.approx(0.5)
    assert factor(1.0, 2000) == pytest.approx(0.03)


@pytest.mark.slow
def test_tasks_prepared_by_other_processes_are_the_same() -> None:
    tasks = Tasks(Sides(32, 64), 8, 4, 1, 100)
    inline, others = tasks.following(3, 0), tasks.following(3, 2)
    for step in range(3, 8):
        here, there, alone = next(inline), next(others), tasks[step]
        assert here.batch.prompts == there.batch.prompts == alone.batch.prompts
        assert here.seed == there.seed == alone.seed
        assert np.array_equal(here.batch.layout.places, there.batch.layout.places)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_canvases(1, 1, 64))


def trainer_in(folder: Path, renderer: Renderer, seed: int = 1) -> Trainer:
    vae = install(load_vae(MODEL, folder))
    plan = Plan(minutes=10, clips=2, seed=seed, sides=Sides(32, 64))
    return Trainer(MODEL, folder, plan, vae, renderer)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_and_its_weights_are_read_without_one(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, Renderer(make_canvases(1, 1, 64, "cuda")))
    for _ in range(2):
        trainer.train_step()
    assert all(torch.isfinite(loss) for loss in trainer.losses)
    trainer.save()
    state = read_parts(tmp_path / CHECKPOINT)
    assert state["step"] == 2


@pytest.mark.slow
def test_a_stopped_run_draws_the_next_clips_and_runs_of_different_seeds_others(
    tmp_path: Path, renderer: Renderer
) -> None:
    whole = trainer_in(tmp_path / "whole", renderer)
    whole.train_step()
    whole.save()
    going_on = trainer_in(tmp_path / "whole", renderer)
    assert (going_on.step, going_on.average.steps) == (1, 1)
    assert going_on.encoded[0].batch.prompts == whole.encoded[0].batch.prompts
    assert all(map(torch.equal, going_on.model.state_dict().values(), whole.model.state_dict().values()))
    for trainer in (whole, going_on):
        trainer.train_step()
    # The momentum was stored in bf16.
    assert torch.allclose(going_on.model.proj_out.weight, whole.model.proj_out.weight, atol=1e-4)
    other = trainer_in(tmp_path / "other", renderer, seed=2)
    assert other.encoded[0].seed != trainer_in(tmp_path / "same", renderer).encoded[0].seed


@pytest.mark.slow
def test_training_lowers_the_loss_on_its_clips(tmp_path: Path, renderer: Renderer, monkeypatch) -> None:
    trainer = trainer_in(tmp_path, renderer)
    with torch.no_grad():
        trainer.model.proj_out.weight.mul_(0.5)
    trainer.quick.refresh()
    # The same clips, noise and times in each step: only the weights can change the loss.
    same = trainer.encoded
    monkeypatch.setattr(trainer, "_encode_next", lambda: same)
    for _ in range(6):
        trainer.train_step()
    assert trainer.losses[-1] < 0.95 * trainer.losses[0]


def test_optimiser_skips_a_step_that_is_not_finite(model) -> None:
    optimiser = Optimizers(model, 1e-3)
    before = model.proj_out.weight.clone()
    for param in model.parameters():
        param.grad = torch.full_like(param, float("nan"))
    assert not optimiser.step(1.0)
    assert torch.equal(model.proj_out.weight, before)


def test_only_the_decoder_learns_from_both_kinds_of_latents(tmp_path: Path, renderer: Renderer) -> None:
    vae = load_vae(MODEL, tmp_path)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    refined = refine(vae, renderer, tmp_path / "decoder.pt", 0.01, 32, 2).state_dict()
    changed = {name.split(".")[0] for name, value in before.items() if not torch.equal(value, refined[name])}
    assert changed == {"decoder", "post_quant_conv"}
    clips, singles = draw_clips(np.random.default_rng(1), renderer, 64, 2, 32)
    assert (clips.shape, singles.shape) == ((2, 3, 17, 32, 32), (2, 3, 5, 32, 32))
    assert torch.equal(clips[:, :, 0], singles[:, :, 0])


def test_crops_of_clips_fit_into_their_pictures() -> None:
    renderer = Renderer(make_canvases(3, 1))
    wanted = Crops(4, 5, 96)
    assert any(min(size) < wanted.crop for size in SCENE_SIZES)
    assert draw_batch(np.random.default_rng(3), renderer, wanted).shape == (4, 3, 5, 96, 96)

"""Tests of schedule and samplers against formulas, diffusers, and stored vectors."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import Tensor

from diffusers_helper.helios.schedule import PyramidStage, sample_pyramid
from diffusers_helper.sampling.euler import sample_euler
from diffusers_helper.sampling.schedule import flow_sigmas, shift_of
from diffusers_helper.sampling.unipc import sample_unipc, step_weights

BOTH = pytest.mark.parametrize("sample", [sample_unipc, sample_euler])
STEPS = (1, 2, 3, 5, 10, 25, 50)
START = [1.5, -0.7, 0.3]


# A stiff toy model with a known clean mean per coordinate: a narrow Gaussian, a wide one, and two points,
# with a little of each coordinate leaking into the next.
def toy_denoise(x: Tensor, sigma: Tensor) -> Tensor:
    level = float(sigma)
    keep = 1 - level

    def gaussian(value: Tensor, mean: float, std: float) -> Tensor:
        return mean + std**2 * keep / (keep**2 * std**2 + level**2) * (value - keep * mean)

    narrow = gaussian(x[..., 0], 0.8, 0.05)
    wide = gaussian(x[..., 1], -0.4, 3.0)
    points = 1.5 * torch.tanh(1.5 * keep * x[..., 2] / level**2)
    leak = 0.1 * torch.sin(x.roll(1, dims=-1))
    return torch.stack([narrow, wide, points], dim=-1) + leak


# Results of the published formulas from START, by steps and shift, computed in 50 digits.
REFERENCE = {
    (2, 7.0): [0.825708246855886, -1.04605917251689, 0.0328285018138191],
    (3, 1.0): [0.848753413284143, -2.13266302677081, 1.39873349732016],
    (5, 3.0): [0.843368606498863, -1.93548682702274, 1.33135851871886],
    (10, 7.0): [0.845370387315992, -1.96079559660336, 1.33178757219765],
    (25, 7.0): [0.877336197233907, -2.06133933667463, 1.40053860619823],
    (50, 1.0): [1.10597425272102, -1.91334408986542, 1.40743169930596],
}


@pytest.mark.parametrize(("steps", "shift"), REFERENCE)
def test_unipc_gives_the_stored_vectors(steps: int, shift: float) -> None:
    got = sample_unipc(toy_denoise, torch.tensor(START, dtype=torch.float64), flow_sigmas(steps, shift))
    # Processors round sines and hyperbolic tangents differently, and the toy model is stiff.
    assert got.tolist() == pytest.approx(REFERENCE[steps, shift], rel=1e-9)


@settings(max_examples=40)
@given(
    factors=st.lists(
        st.one_of(st.floats(1e-4, 0.1), st.floats(0.1, 0.999), st.floats(0.999, 0.99999)),
        min_size=1,
        max_size=3,
    )
)
def test_step_weights_integrate_polynomials_exactly(factors: list[float]) -> None:
    """Compare each step of UniPC with the quadrature behind it, for steps from 1e-5 to 9 in lambda."""
    levels = [1.0]
    for factor in factors:
        levels.append(levels[-1] * factor)
    predictor, corrector = step_weights(levels[::-1])
    with mp.workdps(50):
        lam = [-mpmath.log(mpmath.mpf(level)) for level in levels]
        target, origin = lam[-1], lam[-2]
        h = target - origin
        nodes = [(point - origin) / h for point in [*lam[-3::-1], target]]

        def moment(power: int) -> mpmath.mpf:
            return h * mpmath.quad(lambda u: mpmath.exp((u - 1) * h) * u**power, [0, 1])

        # With one node, UniPC uses one half instead of the rule.
        for weights, points in ((predictor, nodes[:-1]), (corrector, nodes)):
            if len(points) == 1:
                assert weights[0] * float(points[0]) == pytest.approx(float(h) / 2, rel=1e-10)
                continue
            for power in range(1, len(points) + 1):
                terms = [weight * point**power for weight, point in zip(weights, points, strict=True)]
                scale = float(sum(abs(term) for term in terms))
                assert float(sum(terms)) == pytest.approx(float(moment(power)), rel=1e-10, abs=1e-10 * scale)


@pytest.mark.parametrize("steps", STEPS)
def test_euler_equals_diffusers_on_the_same_sigmas(steps: int) -> None:
    sigmas = flow_sigmas(steps, 7.0).float()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    scheduler.set_timesteps(sigmas=sigmas[:-1].tolist())
    assert torch.equal(scheduler.sigmas, sigmas)

    theirs = torch.tensor(START)
    for timestep, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        velocity = (theirs - toy_denoise(theirs, sigma)) / sigma
        theirs = scheduler.step(velocity, timestep, theirs, return_dict=False)[0]

    ours = sample_euler(toy_denoise, torch.tensor(START), sigmas)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("steps", STEPS)
def test_the_model_is_called_once_a_step_at_the_unrounded_level(
    sample: Callable[..., Tensor], steps: int
) -> None:
    sigmas = flow_sigmas(steps, 7.0)
    called: list[float] = []

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        assert sigma.ndim == 0
        called.append(float(sigma))
        return toy_denoise(x, sigma)

    sample(denoise, torch.tensor([START], dtype=torch.bfloat16), sigmas)
    assert called == sigmas[:-1].tolist()


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_is_kept_and_nothing_drifts(sample: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Follow a constant prediction: the path is a straight line, whose points are rounded only once."""
    sigmas = flow_sigmas(40, 7.0)
    start, goal = torch.tensor([2.0, -1.0], dtype=dtype), torch.tensor([0.3, 0.1], dtype=dtype)
    seen: list[Tensor] = []

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(x)
        return goal.clone()

    result = sample(denoise, start, sigmas)
    assert result.dtype == dtype
    assert torch.equal(result, goal)
    for x, sigma in zip(seen, sigmas.tolist(), strict=False):
        assert x.dtype == dtype
        line = goal.double() + sigma * (start.double() - goal.double())
        torch.testing.assert_close(x.double(), line, rtol=torch.finfo(dtype).eps, atol=4e-6)


@BOTH
def test_progress_tells_each_step_and_cannot_alter_it(sample: Callable[..., Tensor]) -> None:
    sigmas = flow_sigmas(6, 3.0)
    reported: list[tuple[int, int, Tensor]] = []

    def spoil(step: int, steps: int, x0: Tensor) -> str:
        reported.append((step, steps, x0.clone()))
        x0.fill_(7.0)
        return "ignored"

    x = torch.tensor([START], dtype=torch.float64)
    expected = sample(toy_denoise, x, sigmas)
    assert torch.equal(sample(toy_denoise, x, sigmas, on_step=spoil), expected)
    assert [(step, steps) for step, steps, _ in reported] == [(index + 1, 6) for index in range(6)]
    assert torch.equal(reported[-1][2], expected)
    assert torch.equal(x, torch.tensor([START], dtype=torch.float64))


@BOTH
def test_what_progress_raises_ends_the_run_at_once(sample: Callable[..., Tensor]) -> None:
    reported: list[int] = []

    def stop(step: int, *_: object) -> None:
        reported.append(step)
        if step == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        sample(toy_denoise, torch.tensor([START]), flow_sigmas(9, 7.0), on_step=stop)
    assert reported == [1, 2, 3]


@given(steps=st.integers(1, 100), shift=st.floats(0.05, 50))
def test_flow_sigmas_follow_the_formula(steps: int, shift: float) -> None:
    sigmas = flow_sigmas(steps, shift)
    assert sigmas.dtype == torch.float64
    assert sigmas.shape == (steps + 1,)
    assert sigmas[0] == 1.0
    assert sigmas[-1] == 0.0
    assert bool((sigmas.diff() < 0).all())
    for index, sigma in enumerate(sigmas.tolist()[:-1]):
        t = 1 - index / steps
        assert sigma == pytest.approx(shift / (shift + (1 / t - 1)), rel=1e-12)


def test_mu_is_linear_up_to_a_shift_of_seven() -> None:
    assert math.log(shift_of(256)) == pytest.approx(0.5)
    assert math.log(shift_of(4096)) == pytest.approx(1.15)
    assert math.log(shift_of(1000)) == pytest.approx(1.692708e-4 * 1000 + 0.456667, abs=1e-6)
    assert shift_of(8797) < 7
    assert shift_of(8798) == shift_of(13464) == shift_of(14040) == shift_of(10**9) == 7.0


def test_a_pyramid_counts_its_steps_over_all_sizes_and_shows_them_in_full_size() -> None:
    sizes, shown = list[int](), list[tuple[int, int, tuple[int, ...]]]()

    def denoise(x: Tensor, sigma: float) -> Tensor:
        sizes.append(x.shape[-1])
        return torch.zeros_like(x)

    stages = [
        PyramidStage(
            torch.linspace(1, 0, 1 + count), noise=None if not index else torch.zeros(1, 1, 1, side, side)
        )
        for index, (count, side) in enumerate(((2, 4), (1, 8), (3, 16)))
    ]
    sample_pyramid(
        denoise, torch.zeros(1, 1, 1, 16, 16), stages,
        on_step=lambda step, steps, x0: shown.append((step, steps, tuple(x0.shape[-2:]))),
    )  # fmt: skip
    assert sizes == [4, 4, 8, 16, 16, 16]
    assert shown == [(step, 6, (16, 16)) for step in range(1, 7)]

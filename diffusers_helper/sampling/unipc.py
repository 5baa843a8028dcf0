"""UniPC with data prediction, order 3, B(h) = h ("bh1"), in lambda = -ln sigma, as FramePack samples.

Method: Zhao et al. 2023, "UniPC: A Unified Predictor-Corrector Framework" (arXiv 2302.04867). With data
prediction and alpha = 1, the exact step from sigma_0 to sigma with h = ln(sigma_0 / sigma) is

    x = (sigma / sigma_0) x_0 + integral over l from 0 to h of exp(l - h) m(l) dl,

where m is the model's clean prediction along the path. The method approximates m by a polynomial through the
known predictions. Its moments are

    b_i = integral over u from 0 to 1 of exp((u - 1) h) u^i du = i! phi_{i+1}(-h).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from diffusers_helper.sampling import Denoise, Denoiser, OnStep

MAX_ORDER = 3


def _phi(k: int, z: float) -> float:
    """Compute phi_k(z) = sum over j >= 0 of z^j / (j + k)!, for z <= 0."""
    if z < -1:
        value = math.exp(z)
        for i in range(k):
            value = (value - 1 / math.factorial(i)) / z
        return value
    # Near 0 the recurrence above cancels; 20 terms of the series are exact to float64.
    return math.fsum(z**j / math.factorial(j + k) for j in range(20))


def _solve(nodes: Sequence[float], moments: Sequence[float]) -> list[float]:
    """Solve for the weights rho for which the sum over j of rho_j nodes_j^(i-1) is moments_i."""
    if len(nodes) == 1:
        # UniPC's first-order rule uses one half in place of the exact moment.
        return [0.5]
    powers = torch.tensor(
        [[node**i for node in nodes] for i in range(len(nodes))], dtype=torch.float64, device="cpu"
    )
    return torch.linalg.solve(powers, torch.tensor(moments, dtype=torch.float64, device="cpu")).tolist()


def step_weights(sigmas: Sequence[float]) -> tuple[list[float], list[float]]:
    """Compute the weights of the differences m_k - m_0 in one step, of predictor and corrector.

    `sigmas` are the target level, the current level, and those before it, the newest first. The weights
    have the same order, and the corrector has one more, for the prediction at the target level.
    """
    target, current, *earlier = sigmas
    h = math.log(current / target)
    nodes = [math.log(current / sigma) / h for sigma in earlier] + [1.0]
    moments = [math.factorial(i) * _phi(i + 1, -h) for i in range(1, len(nodes) + 1)]
    predictor = _solve(nodes[:-1], moments[:-1]) if earlier else []
    corrector = _solve(nodes, moments)

    def scaled(rhos: list[float]) -> list[float]:
        return [h * rho / node for rho, node in zip(rhos, nodes, strict=False)]

    return scaled(predictor), scaled(corrector)


def _add_differences(
    x: Tensor, weights: Sequence[float], predictions: Sequence[Tensor], origin: Tensor
) -> Tensor:
    for weight, prediction in zip(weights, predictions, strict=True):
        x = x + weight * (prediction - origin)
    return x


def sample_unipc(
    denoise: Denoise, x: Tensor, sigmas: Tensor | Sequence[float], *, on_step: OnStep | None = None
) -> Tensor:
    """Sample clean latents, with one model call per step that serves both predictor and corrector.

    The order is 1, 2, 3, 3, … (at most steps - 1). There is no step to sigma 0, since the last prediction is
    the result. The arguments are those of `sample_euler`.
    """
    model = Denoiser(denoise, x, sigmas, on_step)
    x = x.to(model.dtype)
    predictions = [model.predict(x, 0)]  # the newest first
    for index, (current, target) in enumerate(pairwise(model.sigmas), start=1):
        order = min(MAX_ORDER, index)
        step_sigmas = model.sigmas[index - order : index + 1][::-1]
        predictor, corrector = step_weights(step_sigmas)
        newest, *earlier = predictions[:order]
        first_order = newest + target / current * (x - newest)
        x0 = model.predict(_add_differences(first_order, predictor, earlier, newest), index)
        x = _add_differences(first_order, corrector, [*earlier, x0], newest)
        predictions = [x0, *predictions[: MAX_ORDER - 1]]
    return model.result(predictions[0])

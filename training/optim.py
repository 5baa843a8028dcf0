"""The optimisers (Muon for matrices, AdamW for other parameters), and a running mean of the weights."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from training.quick import quick_dtype


def orthogonalise(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of matrices (n, rows, columns) near 1 by the Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(quick_dtype(matrices.device))
    wide = x.shape[1] <= x.shape[2]
    if not wide:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.transpose(1, 2)).float()


class Muon(torch.optim.Optimizer):
    """An optimiser with orthogonalised momentum; its steps are as large as those of AdamW."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.0):
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    shapes.setdefault(param.flatten(1).shape, []).append(param)
            for shape, params in shapes.items():
                self._step_shape(params, shape, group)

    def _step_shape(self, params: list[nn.Parameter], shape: torch.Size, group: dict) -> None:
        grads = [param.grad for param in params]
        for param in params:
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        momenta = [self.state[param]["momentum"] for param in params]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        directions = torch._foreach_lerp(grads, momenta, group["momentum"])
        updates = orthogonalise(torch.stack([direction.flatten(1) for direction in directions]))
        if group["decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["decay"])
        scale = 0.2 * math.sqrt(max(shape))
        shaped = [update.view_as(param) for param, update in zip(params, updates, strict=True)]
        torch._foreach_add_(params, shaped, alpha=-group["lr"] * scale)


class Optimizers:
    """The two optimisers of a model, with one learning rate for both."""

    def __init__(self, model: nn.Module, lr: float, decay: float = 0.0, plain: tuple[str, ...] = ()) -> None:
        matrices, rest = [], []
        for name, param in model.named_parameters():
            if not param.requires_grad:
                continue
            is_matrix = param.ndim >= 2 and min(param.flatten(1).shape) >= 8
            (matrices if is_matrix and not name.startswith(plain or ("-",)) else rest).append(param)
        self.lr = lr
        self.params = matrices + rest
        self.muon = Muon(matrices, lr, decay=decay)
        self.adam = torch.optim.AdamW(rest, lr, betas=(0.9, 0.97), weight_decay=0.0)

    def step(self, factor: float, clip: float = 1.0) -> bool:
        """Make a step at a share of the learning rate; return False if a gradient is not finite."""
        norm = nn.utils.clip_grad_norm_(self.params, clip)
        if not torch.isfinite(norm):
            self.zero_grad()
            return False
        for optimiser in (self.muon, self.adam):
            for group in optimiser.param_groups:
                group["lr"] = self.lr * factor
            optimiser.step()
        self.zero_grad()
        return True

    def zero_grad(self) -> None:
        self.muon.zero_grad(set_to_none=True)
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


class Average:
    """A running mean of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.weights = {name: value.detach().clone().float() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the mean towards the model, faster in the first steps, so that the start is soon forgotten."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        values = [value.float() for value in model.state_dict().values()]
        torch._foreach_lerp_(list(self.weights.values()), values, 1 - decay)

    def copy_to(self, model: nn.Module) -> None:
        """Write the mean into a model."""
        model.load_state_dict(self.weights)

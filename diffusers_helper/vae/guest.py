"""A VAE that belongs to another program, driven within the memory that is free."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from diffusers_helper.memory.device import Device
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.profiles import detect
from diffusers_helper.planning.shortage import LONGTAKE, OutOfDeviceMemory, Shortage, Step
from diffusers_helper.planning.vae import Task, VaePlan, VaeSettings, Video, plan_vae, vae_plans
from diffusers_helper.vae.engine import Part
from diffusers_helper.vae.families import family_of
from diffusers_helper.vae.passes import DTYPES

_log = logging.getLogger(__name__)


class Guest:
    """The `vae.engine.Owner` of a VAE that is already on the device and stays unchanged.

    In another precision, a copy of it computes. After a shortage, neither the same plan nor one that needs as
    much memory is tried again.
    """

    def __init__(
        self,
        vae: nn.Module,
        device: Device,
        settings: VaeSettings = VaeSettings(),
        backend: Backend = Backend(),
        remedies: Mapping[Step, str] = LONGTAKE,
    ) -> None:
        """Prepare the use of a VAE that is on the device.

        Args:
            remedies: The sentences of the interface that shows the advice after a shortage.

        Raises:
            InputError: If the VAE is of an unknown kind.
        """
        family = family_of(vae)
        self.vae, self.device, self.cleanup_frequency = vae, device, settings.cleanup_frequency
        self._settings, self._backend, self._remedies = settings, backend, remedies
        self._dtype = DTYPES.get(settings.precision, family.dtype)
        self._plan: VaePlan | None = None
        self._failed: tuple[VaePlan, Shortage] | None = None
        self._smaller_plans = 0

    def plans(self, task: Task, video: Video) -> tuple[VaePlan, ...]:
        """Return the plan for the memory that is free now, and the plans to try if it does not suffice.

        Raises:
            InputError: If nothing would fit.
        """
        needs = family_of(self.vae).needs(self._dtype, self._backend)
        plans = vae_plans(needs, video, task, self._settings)
        copied = needs.weights_bytes if self._needs_copy() else 0
        return plan_vae(plans, max(0, self._free_bytes(plans[0].working_bytes) - copied), self._settings)

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        """Return the first plan that fits and needs less than the plans that failed."""
        for plan in self.plans(task, video):
            if self._failed is None or plan.working_bytes < self._failed[0].working_bytes:
                _log.info("%s: %s", task, plan.reason)
                self._smaller_plans += self._failed is not None
                self._plan = plan
                return plan
        assert self._failed is not None
        raise OutOfDeviceMemory(
            self._failed[1],
            smaller_plans=self._smaller_plans,
            is_apu=detect({}).is_apu,
            remedies=self._remedies,
        )

    @contextmanager
    def vae_on_device(self, task: Task, part: Part | None) -> Iterator[nn.Module]:
        """Yield the VAE, or a copy of it in the precision that it computes in."""
        with self.device:
            yield _copy(self.vae, self._dtype) if self._needs_copy() else _typed(self.vae, self._dtype)

    def step_down(self, shortage: Shortage) -> None:
        """Exclude all plans that need as much as the last one."""
        _log.warning("out of memory: %s", shortage.text)
        assert self._plan is not None
        self._failed = self._plan, shortage
        self.device.empty_cache()

    def use_fp32(self) -> None:
        _log.warning("values in %s are not finite; computed again in fp32", self._dtype)
        self._dtype = torch.float32

    def _free_bytes(self, wanted: int) -> int:
        """Return the free memory, of which the first plan would take `wanted` bytes."""
        return self.device.free_bytes()

    def _needs_copy(self) -> bool:
        casts: bool = getattr(self.vae, "casts", False)
        return not casts and family_of(self.vae).dtype != self._dtype


def _typed(vae: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a VAE that casts, as `HostVae` can, with this type for what it gets; others as they are."""
    if not getattr(vae, "casts", False):
        return vae
    typed = copy.copy(vae)
    typed.dtype = dtype  # type: ignore[assignment] - a plain attribute there
    return typed


def _copy(vae: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the same VAE in another type, without an intermediate copy in its present type."""
    # `deepcopy` then uses these tensors as if it had already copied them.
    memo: dict[int, Any] = {
        id(value): nn.Parameter(value.detach().to(dtype), requires_grad=False) for value in vae.parameters()
    }
    copied = copy.deepcopy(vae, memo)
    for buffer in copied.buffers():
        buffer.data = buffer.data.to(dtype) if buffer.is_floating_point() else buffer.data
    return copied

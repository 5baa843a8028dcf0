"""The ladder of 3D convolutions: one decision per case which rung computes it, made once and remembered.

The first rung is the plain call. A rung is left on a recognised error, because it was found to end the
process, or because a measurement says that another is faster; never on an error that nobody knows. What
recognises errors is given by the caller.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from cache.conv_routes import ConvCase, RouteStore, Triple, shorten
from cache.conv_rungs import RUNGS, SMALLER_RUNGS, Rung

_log = logging.getLogger(__name__)

Call = tuple[Tensor, Tensor, Tensor | None, Triple, Triple, Triple, int]
Hook = Callable[[ConvCase, str], None]


class ErrorKind(StrEnum):
    """What a recognised error means for the next try."""

    DRIVER = "driver"  # this kernel cannot be had; another one may
    MEMORY = "memory"  # only what needs less memory is worth a try
    DEVICE = "device"  # the device may be unusable until the process ends


@dataclass(frozen=True, slots=True)
class Card:
    """What a route depends on besides the convolution itself."""

    arch: str
    rocm: str
    torch: str


@functools.cache
def card_of(device: torch.device) -> Card:
    """The card that a device is; its architecture is `cpu`, `sm_90`, or as ROCm names it, `gfx1100`."""
    arch, rocm = device.type, "none"
    if device.type == "cuda":
        properties = cast(Any, torch.cuda).get_device_properties(device)
        if torch.version.hip is not None:
            arch, rocm = str(properties.gcnArchName).split(":")[0], torch.version.hip
        else:
            arch = f"sm_{properties.major}{properties.minor}"
    return Card(arch, rocm, torch.__version__)


def case_of(
    x: Tensor, weight: Tensor, stride: Triple, padding: Triple, dilation: Triple, groups: int
) -> ConvCase:
    """The case that a call is."""
    card, dtype = card_of(x.device), str(x.dtype).removeprefix("torch.")
    shapes = (tuple(x.shape), tuple(weight.shape))
    return ConvCase(card.arch, card.rocm, card.torch, dtype, *shapes, stride, padding, dilation, groups)


class ConvLadder:
    """Computes convolutions, each by the rung that works.

    Attributes:
        attempts, successes: calls by rung.
        left: recognised errors of this process, by case and rung.

    Args:
        routes: what is known, and where to keep what is learned.
        classify: the kind of an error, None for one that is not recognised.
        forced: the only rung to use, for looking for faults; its errors are raised as they are.
        on_first_call: told before a rung's first call for a case that is not known to work. If the process
            dies before `after_first_call` is told the same, that rung ended it: see `mark_deadly`.
    """

    def __init__(
        self,
        routes: RouteStore,
        classify: Callable[[BaseException], ErrorKind | None],
        *,
        forced: str | None = None,
        on_first_call: Hook | None = None,
        after_first_call: Hook | None = None,
    ) -> None:
        if forced is not None and forced not in RUNGS:
            raise ValueError(f"rung is {forced!r}; expected one of {', '.join(RUNGS)}.")
        self._routes, self._classify, self._forced = routes, classify, forced
        self._on_first_call, self._after_first_call = on_first_call, after_first_call
        self._settled: dict[Any, Rung] = {}
        self._called: set[tuple[ConvCase, str]] = set()
        self.attempts: Counter[str] = Counter()
        self.successes: Counter[str] = Counter()
        self.left: dict[tuple[ConvCase, str], str] = {}

    def conv3d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None,
        stride: Triple, padding: Triple, dilation: Triple, groups: int,
    ) -> Tensor:  # fmt: skip
        """As `torch.nn.functional.conv3d`.

        Raises:
            RuntimeError: the rung's own error, if it is not recognised or no rung is left to try.
        """
        if x.dim() != 5 or weight.dim() != 5:  # without a batch, or a mistake that torch explains
            return functional.conv3d(x, weight, bias, stride, padding, dilation, groups)
        call = (x, weight, bias, stride, padding, dilation, groups)
        key = (x.device, x.dtype, x.shape, weight.shape, stride, padding, dilation, groups)
        rung = self._settled.get(key)
        if rung is None:
            return self._climb(key, call)
        self.attempts[rung.name] += 1
        try:
            result = rung.run(*call)
        except RuntimeError as error:
            kind = self._kind(error, x.device)
            if kind is None:
                raise
            reason = shorten(str(error))
        else:
            self.successes[rung.name] += 1
            return result
        # Outside the except block, so that what the failed call allocated is freed before the next one.
        del self._settled[key]
        self._leave(case_of(x, weight, *call[3:]), rung, kind, reason, x.device)
        return self._climb(key, call)

    def mark_deadly(self, case: ConvCase | str, rung: str, reason: str) -> None:
        """Records that a rung ended a process, so that it is never used for this case again.

        Raises:
            ValueError: if `case` is no text of a case, or there is no such rung.
        """
        if rung not in RUNGS:
            raise ValueError(f"rung is {rung!r}; expected one of {', '.join(RUNGS)}.")
        self._routes.add_deadly(ConvCase.from_text(case) if isinstance(case, str) else case, rung, reason)
        self._settled.clear()

    # ---- the climb ----------------------------------------------------------------------------------------

    def _climb(self, key: Any, call: Call) -> Tensor:
        """Tries one rung after the other, and settles for the first that works."""
        case = case_of(call[0], call[1], *call[3:])
        waiting = self._order(case)
        needs_little = False
        while True:
            rung = waiting.pop(0)
            outcome = self._try(rung, case, call, waiting)
            if isinstance(outcome, Tensor):
                self._settle(key, case, rung, needs_little)
                return outcome
            kind, reason = outcome
            self._leave(case, rung, kind, reason, call[0].device)
            waiting = _rest(kind, waiting)
            needs_little |= kind is ErrorKind.MEMORY

    def _try(
        self, rung: Rung, case: ConvCase, call: Call, waiting: list[Rung]
    ) -> Tensor | tuple[ErrorKind, str]:
        """The result, or the recognised error after which another rung is worth a try."""
        is_first = not self._is_known_to_work(case, rung)
        if is_first and call[0].is_cuda:
            torch.cuda.synchronize(call[0].device)  # an earlier kernel's error is not this rung's
        if is_first and self._on_first_call is not None:
            self._on_first_call(case, rung.name)
        self.attempts[rung.name] += 1
        try:
            result = rung.run(*call)
            if is_first and result.is_cuda:
                torch.cuda.synchronize(result.device)  # so that its error is not taken for a later call's
        except RuntimeError as error:
            kind = self._kind(error, call[0].device)
            if kind is None and is_first and self._classify(error) is ErrorKind.DEVICE:
                self._routes.add_deadly(case, rung.name, str(error))
            if kind is None:
                raise
            if not _rest(kind, waiting):
                self._leave(case, rung, kind, shorten(str(error)), call[0].device)
                raise
            failure = kind, shorten(str(error))
        else:
            self._called.add((case, rung.name))
            self.successes[rung.name] += 1
            return result
        finally:
            if is_first and self._after_first_call is not None:
                self._after_first_call(case, rung.name)
        return failure

    def _is_known_to_work(self, case: ConvCase, rung: Rung) -> bool:
        route = self._routes.get(case)
        return (case, rung.name) in self._called or rung.name == route.rung or rung.name in route.measured

    def _order(self, case: ConvCase) -> list[Rung]:
        """The rungs worth a try, the best known first. There is always one."""
        able = [rung for rung in RUNGS.values() if rung.supports(case) is None]
        if self._forced is not None:
            reason = RUNGS[self._forced].supports(case)
            if reason is None:
                return [RUNGS[self._forced]]
            _log.warning("rung %s is forced but cannot do %s: %s", self._forced, case, reason)
        route = self._routes.get(case)
        alive = [rung for rung in able if rung.name not in route.deadly]
        # Where everything has failed once, trying again beats giving up.
        working = [rung for rung in alive if rung.name not in route.failed]
        chosen = [rung for rung in working if rung.name == route.rung]
        return chosen + [rung for rung in working if rung not in chosen] or alive or able

    def _kind(self, error: RuntimeError, device: torch.device) -> ErrorKind | None:
        """The kind of an error that another rung may get around, None for all others."""
        kind = self._classify(error)
        if kind is ErrorKind.DEVICE and not _works(device):
            return None
        return kind

    def _leave(self, case: ConvCase, rung: Rung, kind: ErrorKind, reason: str, device: torch.device) -> None:
        self.left[case, rung.name] = reason
        _log.warning("rung %s cannot do %s (%s)", rung.name, case, reason)
        if kind is ErrorKind.MEMORY:
            # How much was free is no property of the case, so this is not held against the rung.
            if device.type == "cuda":
                torch.cuda.empty_cache()
        elif self._forced is None:
            self._routes.add_failure(case, rung.name, reason)

    def _settle(self, key: Any, case: ConvCase, rung: Rung, needs_little: bool) -> None:
        if needs_little and rung.name == "cpu":
            return  # minutes per call: the next one tries again
        self._settled[key] = rung
        if self._forced is not None or self._routes.get(case).rung == rung.name:
            return
        reasons = [f"{name}: {text}" for (left, name), text in self.left.items() if left == case]
        if reasons:
            self._routes.choose(case, rung.name, "; ".join(reasons))
            _log.info("%s runs on rung %s from now on", case, rung.name)
        elif case.rocm != "none":
            # Off ROCm there is nothing to learn from a plain call that works.
            self._routes.choose(case, rung.name, "works")


def _rest(kind: ErrorKind, waiting: list[Rung]) -> list[Rung]:
    """What is worth a try after an error of this kind."""
    if kind is ErrorKind.MEMORY:
        return [rung for rung in waiting if rung.name in SMALLER_RUNGS]
    return waiting


def _works(device: torch.device) -> bool:
    """Whether the device still computes: after some errors nothing does until the process ends."""
    if device.type != "cuda":
        return True
    try:
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True

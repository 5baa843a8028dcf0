"""The ladder of convolutions, which decides once per case which rung computes it, and stores the decision.

A rung is one way to compute a convolution, and the ladder is the order in which the rungs are tried. The
first rung is the plain call of torch. A rung is skipped if it raised a recognised error, if it has ended a
process at this case or at several others, or if a measurement showed that another rung is faster. Unknown
errors are raised.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from cache.conv_routes import ConvCase, RouteStore, shorten
from cache.conv_rungs import RUNGS, SMALLER_RUNGS, Convolution, FlatConvolution, Rung, understood
from diffusers_helper.foreign_errors import Trouble, trouble_of

_log = logging.getLogger(__name__)

Hook = Callable[[ConvCase, str], None]


OUT_OF_MEMORY: tuple[Trouble, ...] = ("device_memory", "host_memory")
# After trouble with the device, it may be unusable until the process ends.
_KNOWN: tuple[Trouble, ...] = (*OUT_OF_MEMORY, "device", "miopen", "blas", "kernel")


def classify(error: BaseException) -> Trouble | None:
    """Return the driver, memory or device fault that an error tells, or None for others, such as our own."""
    trouble = trouble_of(error) if isinstance(error, RuntimeError) else None
    return trouble if trouble in _KNOWN else None


@functools.cache
def card_of(device: torch.device) -> tuple[str, str]:
    """Return the architecture of a device, such as `cpu`, `sm_90` or `gfx1100`, and its version of ROCm."""
    arch, rocm = device.type, "none"
    if device.type == "cuda":
        properties = cast(Any, torch.cuda).get_device_properties(device)
        if torch.version.hip is not None:
            arch, rocm = str(properties.gcnArchName).split(":")[0], torch.version.hip
        else:
            arch = f"sm_{properties.major}{properties.minor}"
    return arch, rocm


def case_of(x: Tensor, conv: Convolution) -> ConvCase:
    """Return the case of a convolution with this input."""
    dtype, shapes = str(x.dtype).removeprefix("torch."), (tuple(x.shape), tuple(conv.weight.shape))
    return ConvCase(
        *card_of(x.device), torch.__version__, dtype, *shapes,
        conv.stride, conv.padding, conv.dilation, conv.groups, isinstance(conv, FlatConvolution),
    )  # fmt: skip


class ConvLadder:
    """The ladder that computes each convolution with a rung that works for it.

    Attributes:
        left: The recognised errors in this process, by case and rung.
        avoided: The cases and rungs that were not tried, since the rung is suspected of ending the process.

    Args:
        forced: The only rung to use, for debugging. Its errors are raised unchanged.
        on_first_call: A function that is called before a rung's first call for a case, unless the rung is
            known to work for it. If the process dies before `after_first_call`, the rung has ended it, and
            the supervisor calls `block`.
        after_first_call: A function that is called with the same arguments after such a call.
    """

    def __init__(
        self,
        routes: RouteStore,
        *,
        forced: str | None = None,
        on_first_call: Hook | None = None,
        after_first_call: Hook | None = None,
    ) -> None:
        if forced is not None and forced not in RUNGS:
            raise ValueError(f"rung is {forced!r}; expected one of {', '.join(RUNGS)}.")
        self._routes, self._forced = routes, forced
        self._on_first_call, self._after_first_call = on_first_call, after_first_call
        self._settled: dict[Any, Rung] = {}
        self._called: set[tuple[ConvCase, str]] = set()
        self.attempts: Counter[str] = Counter()
        self.successes: Counter[str] = Counter()
        self.left: dict[tuple[ConvCase, str], str] = {}
        self.avoided: set[tuple[ConvCase, str]] = set()

    def _like(self, plain: Callable[..., Tensor], *call: Any, **named: Any) -> Tensor:
        """Compute the same as a function of `torch.nn.functional`.

        Raises:
            RuntimeError: If a rung raises an unknown error, or no rung is left to try.
        """
        known = understood(*call, **named)
        if known is None:
            return plain(*call, **named)
        result = self._compute(*known)
        return result.squeeze(2) if isinstance(known[1], FlatConvolution) else result

    conv2d = partialmethod(_like, functional.conv2d)
    conv3d = partialmethod(_like, functional.conv3d)

    def _compute(self, x: Tensor, conv: Convolution) -> Tensor:
        key = (
            x.device, x.dtype, x.shape, type(conv), conv.weight.shape,
            conv.stride, conv.padding, conv.dilation, conv.groups,
        )  # fmt: skip
        rung = self._settled.get(key)
        if rung is None:
            return self._climb(key, x, conv)
        outcome = self._run(rung, x, conv, RUNGS.values())
        if isinstance(outcome, Tensor):
            return outcome
        del self._settled[key]
        return self._climb(key, x, conv)

    def _run(
        self, rung: Rung, x: Tensor, conv: Convolution, waiting: Iterable[Rung], first: ConvCase | None = None
    ) -> Tensor | Trouble:
        """Return the result, or a known trouble that one of the waiting rungs may avoid.

        Args:
            first: The case, if this is its first call.
        """
        self.attempts[rung.name] += 1
        try:
            result = rung.run(x, conv)
            if first and result.is_cuda:
                torch.cuda.synchronize(result.device)  # an error of this rung must not count for a later call
        except RuntimeError as error:
            trouble, reason = classify(error), shorten(str(error))
            if trouble == "device" and not works(x.device):
                if first:
                    self._routes.block(first, rung.name, reason)
                raise
            if trouble is None:
                raise
            if not _rest(trouble, waiting):
                self._leave(case_of(x, conv), rung, trouble, reason, x.device)
                raise
        else:
            self.successes[rung.name] += 1
            return result
        # This is outside of the except block, so that the memory of the failed call is freed before the next.
        self._leave(case_of(x, conv), rung, trouble, reason, x.device)
        return trouble

    def block(self, case: ConvCase | str, rung: str, reason: str) -> None:
        """Record that a rung has ended a process at a case. The rung is not used for that case again.

        Raises:
            ValueError: If `case` is not the text of a case, or if there is no such rung.
        """
        if rung not in RUNGS:
            raise ValueError(f"rung is {rung!r}; expected one of {', '.join(RUNGS)}.")
        self._routes.block(ConvCase.from_text(case) if isinstance(case, str) else case, rung, reason)
        self._settled.clear()

    @property
    def open_routes(self) -> RouteStore | None:
        """Return the store of the routes that the ladder chooses from; None if one rung is forced."""
        return None if self._forced else self._routes

    def reload(self) -> None:
        """Use the routes that another process has stored from now on."""
        self._routes.reload()
        self._settled.clear()

    def changes(self, device: torch.device) -> str:
        """Return which rungs of the ladder are left out, or come first, for any case on a device."""
        plain = next(iter(RUNGS))
        stored = {
            text: (route.rung, sorted(route.failed), sorted(route.deadly))
            for text, route in self._routes.routes(card_of(device)[0]).items()
            if route.rung not in ("", plain) or route.failed or route.deadly
        }
        return f"{sorted(stored.items())} {len(self.left)}"

    # ---- the choice of a rung -----------------------------------------------------------------------------

    def _climb(self, key: Any, x: Tensor, conv: Convolution) -> Tensor:
        """Try one rung after the other, and keep to the first one that works."""
        case = case_of(x, conv)
        waiting = self._order(case)
        needs_little = False
        while True:
            rung = waiting.pop(0)
            outcome = self._try(rung, case, x, conv, waiting)
            if isinstance(outcome, Tensor):
                self._settle(key, case, rung, needs_little)
                return outcome
            waiting = _rest(outcome, waiting)
            needs_little |= outcome in OUT_OF_MEMORY

    def _try(
        self, rung: Rung, case: ConvCase, x: Tensor, conv: Convolution, waiting: list[Rung]
    ) -> Tensor | Trouble:
        """Return what `_run` does, with an announcement of a first call."""
        if self._is_known_to_work(case, rung):
            return self._run(rung, x, conv, waiting)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)  # an error of an earlier kernel must not count for this rung
        if self._on_first_call is not None:
            self._on_first_call(case, rung.name)
        try:
            return self._run(rung, x, conv, waiting, case)
        finally:
            if self._after_first_call is not None:
                self._after_first_call(case, rung.name)

    def _is_known_to_work(self, case: ConvCase, rung: Rung) -> bool:
        route = self._routes.get(case)
        return (case, rung.name) in self._called or rung.name == route.rung or rung.name in route.measured

    def _order(self, case: ConvCase) -> list[Rung]:
        """Return the rungs to try, with the stored choice first. There is always at least one."""
        able = [rung for rung in RUNGS.values() if rung.supports(case)]
        if self._forced is not None:
            if RUNGS[self._forced].supports(case):
                return [RUNGS[self._forced]]
            _log.warning("rung %s is forced but cannot compute %s", self._forced, case)
        route = self._routes.get(case)
        alive = [rung for rung in able if rung.name not in route.deadly]
        # If every rung has failed before, all are tried again.
        working = [rung for rung in alive if rung.name not in route.failed]
        trusted = self._trusted(case, working)
        return sorted(trusted, key=lambda rung: rung.name != route.rung) or working or alive or able

    def _trusted(self, case: ConvCase, rungs: list[Rung]) -> list[Rung]:
        """Return the rungs without those that may end the process at this case and never worked for it."""
        suspects = self._routes.suspects(case)
        doubtful = [
            rung for rung in rungs if rung.name in suspects and not self._is_known_to_work(case, rung)
        ]
        self.avoided.update((case, rung.name) for rung in doubtful)
        return [rung for rung in rungs if rung not in doubtful]

    def _leave(self, case: ConvCase, rung: Rung, trouble: Trouble, reason: str, device: torch.device) -> None:
        self.left[case, rung.name] = reason
        _log.warning("rung %s cannot compute %s (%s)", rung.name, case, reason)
        if trouble in OUT_OF_MEMORY:
            # The free memory is no property of the case, so the rung is not recorded as failed.
            if device.type == "cuda":
                torch.cuda.empty_cache()
        elif self._forced is None:
            self._routes.add_failure(case, rung.name, reason)

    def _settle(self, key: Any, case: ConvCase, rung: Rung, needs_little: bool) -> None:
        self._called.add((case, rung.name))
        if needs_little and rung.name == "cpu":
            return  # the CPU takes minutes, so the next call tries the other rungs again
        self._settled[key] = rung
        if self._forced is not None or self._routes.get(case).rung == rung.name:
            return
        reasons = [f"{name}: {text}" for (left, name), text in self.left.items() if left == case]
        if reasons:
            self._routes.choose(case, rung.name, "; ".join(reasons))
            _log.info("%s runs on rung %s from now on", case, rung.name)
        elif case.rocm != "none":
            # Without ROCm, a plain call that works is not worth a record.
            self._routes.choose(case, rung.name, "works")


def _rest(trouble: Trouble, waiting: Iterable[Rung]) -> list[Rung]:
    """Return the remaining rungs that are worth trying after some trouble."""
    return [rung for rung in waiting if rung.name in SMALLER_RUNGS or trouble not in OUT_OF_MEMORY]


def works(device: torch.device) -> bool:
    """Return whether the device still computes. Some errors stop it until the process ends."""
    if device.type != "cuda":
        return True
    try:
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False
    return True

"""The ladder of convolutions, which decides once per case which rung computes it, and stores the decision.

The first rung is comfy-kitchen's kernel on the cards that have one, and the plain call of torch elsewhere. A
rung is skipped if it raised a recognised error, ended a process at this case or at several others, or was
measured to be slower than another one.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from cache.conv_rungs import (
    KITCHEN_CARDS,
    PLAIN,
    RUNGS,
    SMALLER_RUNGS,
    ConvCase,
    Convolution,
    FlatConvolution,
    Rung,
    parse_call,
)
from diffusers_helper.library_errors import Trouble, trouble_of
from diffusers_helper.machine.packages import KITCHEN, kitchen_problem, version_of
from diffusers_helper.machine.routes import CONVOLUTION, RouteStore, shorten

_log = logging.getLogger(__name__)

CallHook = Callable[[ConvCase, str], None]
_SUSPECT_DEATHS = 2

MEMORY_TROUBLES: tuple[Trouble, ...] = ("device_memory", "host_memory")
# After trouble with the device, it may be unusable until the process ends.
_RECOGNISED: tuple[Trouble, ...] = (*MEMORY_TROUBLES, "device", "miopen", "blas", "kernel")


def classify(error: BaseException) -> Trouble | None:
    """Classify a fault of driver, memory or device; None for other errors, such as our own."""
    trouble = trouble_of(error) if isinstance(error, RuntimeError) else None
    return trouble if trouble in _RECOGNISED else None


@functools.cache
def card_of(device: torch.device) -> tuple[str, str]:
    """Look up a device's architecture, such as `cpu`, `sm_90` or `gfx1100`, and its version of ROCm.

    The version of comfy-kitchen follows where its convolution can be used, so that another one is tried anew.
    """
    arch = device.type
    rocm = "none"
    if device.type == "cuda":
        properties = cast(Any, torch.cuda).get_device_properties(device)
        if torch.version.hip is not None:
            arch, rocm = str(properties.gcnArchName).split(":")[0], torch.version.hip
            if arch.startswith(KITCHEN_CARDS) and not kitchen_problem():
                rocm += f",{KITCHEN}-{version_of(KITCHEN)}"
        else:
            arch = f"sm_{properties.major}{properties.minor}"
    return arch, rocm


def case_of(x: Tensor, conv: Convolution) -> ConvCase:
    dtype = str(x.dtype).removeprefix("torch.")
    return ConvCase(
        *card_of(x.device), torch.__version__, dtype, tuple(x.shape), tuple(conv.weight.shape),
        conv.stride, conv.padding, conv.dilation, conv.groups, isinstance(conv, FlatConvolution),
    )  # fmt: skip


class _CaseText(str):
    """The text of a case, as a supervisor has it."""

    operation = CONVOLUTION

    @property
    def table(self) -> str:
        return self.partition(" ")[0]


class ConvLadder:
    """The ladder that computes each convolution with a rung that works for it.

    A `forced` rung is the only one to use, for debugging. `on_first_call` is called before a rung's first
    call for a case, unless the rung is known to work for it: if the process dies before `after_first_call`,
    the rung has ended it, and the supervisor calls `block`.
    """

    def __init__(
        self,
        routes: RouteStore,
        *,
        forced: str | None = None,
        on_first_call: CallHook | None = None,
        after_first_call: CallHook | None = None,
    ) -> None:
        if forced is not None and forced not in RUNGS:
            raise ValueError(f"rung is {forced!r}; expected one of {', '.join(RUNGS)}.")
        self._routes = routes
        self._forced = forced
        self._on_first_call = on_first_call
        self._after_first_call = after_first_call
        self.left_out: tuple[str, ...] = ()
        self._chosen: dict[Any, Rung] = {}
        self._proven: set[tuple[ConvCase, str]] = set()
        self.attempts: Counter[str] = Counter()
        self.successes: Counter[str] = Counter()
        self.errors: dict[tuple[ConvCase, str], str] = {}
        self.avoided: set[tuple[ConvCase, str]] = set()

    def _convolve(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        parsed = parse_call(*args, **kwargs)
        if parsed is None:
            return function(*args, **kwargs)
        result = self._compute(*parsed)
        return result.squeeze(2) if isinstance(parsed[1], FlatConvolution) else result

    conv2d = partialmethod(_convolve, functional.conv2d)
    conv3d = partialmethod(_convolve, functional.conv3d)

    def _compute(self, x: Tensor, conv: Convolution) -> Tensor:
        key = (
            x.device, x.dtype, x.shape, type(conv), conv.weight.shape,
            conv.stride, conv.padding, conv.dilation, conv.groups,
        )  # fmt: skip
        rung = self._chosen.get(key)
        if rung is None:
            return self._climb(key, x, conv)
        result = self._run(rung, x, conv, RUNGS.values())
        if isinstance(result, Tensor):
            return result
        del self._chosen[key]
        return self._climb(key, x, conv)

    def _run(
        self,
        rung: Rung,
        x: Tensor,
        conv: Convolution,
        remaining: Iterable[Rung],
        first_case: ConvCase | None = None,
    ) -> Tensor | Trouble:
        """Compute the result, or classify an error that one of the remaining rungs may avoid."""
        self.attempts[rung.name] += 1
        try:
            result = rung.run(x, conv)
            if first_case and result.is_cuda:
                torch.cuda.synchronize(result.device)  # an error of this rung must not count for a later call
        except RuntimeError as error:
            trouble = classify(error)
            reason = shorten(str(error))
            if trouble == "device" and not works(x.device):
                if first_case:
                    self._routes.block(first_case, rung.name, reason)
                raise
            if trouble is None:
                raise
            if not _worth_trying(trouble, remaining):
                self._record_error(case_of(x, conv), rung, trouble, reason, x.device)
                raise
        else:
            self.successes[rung.name] += 1
            return result
        # Outside of the except block, the memory of the failed call is freed before the next one.
        self._record_error(case_of(x, conv), rung, trouble, reason, x.device)
        return trouble

    def block(self, case: ConvCase | str, rung: str, reason: str) -> None:
        if rung not in RUNGS:
            raise ValueError(f"rung is {rung!r}; expected one of {', '.join(RUNGS)}.")
        self._routes.block(_CaseText(case) if isinstance(case, str) else case, rung, reason)
        self._chosen.clear()

    @property
    def open_routes(self) -> RouteStore | None:
        """The store for measurements; None if nothing is to be chosen by them."""
        return None if self._forced or self.left_out else self._routes

    def leave_out(self, *names: str) -> None:
        """Try these rungs no longer, and those that were left out before again."""
        if self.left_out != names:
            self.left_out = names
            self._chosen.clear()

    def reload(self) -> None:
        self._routes.reload()
        self._chosen.clear()

    def changes(self, device: torch.device) -> str:
        """Describe which rungs of the ladder are left out, or come first, for any case on a device."""
        changed_routes = {
            text: (route.rung, sorted(route.failed), sorted(route.deadly))
            for text, route in self._routes.routes(card_of(device)[0]).items()
            if route.rung not in ("", PLAIN) or route.failed or route.deadly
        }
        return f"{sorted(changed_routes.items())} {len(self.errors)}"

    # ---- the choice of a rung -----------------------------------------------------------------------------

    def _climb(self, key: Any, x: Tensor, conv: Convolution) -> Tensor:
        case = case_of(x, conv)
        remaining = self._order(case)
        ran_out_of_memory = False
        while True:
            rung = remaining.pop(0)
            result = self._try(rung, case, x, conv, remaining)
            if isinstance(result, Tensor):
                self._choose(key, case, rung, ran_out_of_memory)
                return result
            remaining = _worth_trying(result, remaining)
            ran_out_of_memory |= result in MEMORY_TROUBLES

    def _try(
        self, rung: Rung, case: ConvCase, x: Tensor, conv: Convolution, remaining: list[Rung]
    ) -> Tensor | Trouble:
        if self._is_known_to_work(case, rung):
            return self._run(rung, x, conv, remaining)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)  # an error of an earlier kernel must not count for this rung
        if self._on_first_call is not None:
            self._on_first_call(case, rung.name)
        try:
            return self._run(rung, x, conv, remaining, case)
        finally:
            if self._after_first_call is not None:
                self._after_first_call(case, rung.name)

    def _is_known_to_work(self, case: ConvCase, rung: Rung) -> bool:
        route = self._routes.get(case)
        return (case, rung.name) in self._proven or rung.name == route.rung or rung.name in route.measured

    def _order(self, case: ConvCase) -> list[Rung]:
        """List the rungs to try, with the stored choice first. There is always at least one."""
        able = [rung for rung in RUNGS.values() if rung.supports(case) and rung.name not in self.left_out]
        if self._forced is not None:
            if RUNGS[self._forced].supports(case):
                return [RUNGS[self._forced]]
            _log.warning("rung %s is forced but cannot compute %s", self._forced, case)
        route = self._routes.get(case)
        not_deadly = [rung for rung in able if rung.name not in route.deadly]
        # If every rung has failed before, all are tried again.
        not_failed = [rung for rung in not_deadly if rung.name not in route.failed]
        trusted = self._trusted(case, not_failed)
        return sorted(trusted, key=lambda rung: rung.name != route.rung) or not_failed or not_deadly or able

    def _trusted(self, case: ConvCase, rungs: list[Rung]) -> list[Rung]:
        """Leave out rungs that may end the process at this case and have not worked for it.

        They are those that ended processes at cases with this software, from the second death on.
        """
        deaths = [
            rung
            for text, route in self._routes.routes(case.table).items()
            for rung in route.deadly
            if text.startswith(case.software)
        ]
        suspects = deaths if len(deaths) >= _SUSPECT_DEATHS else ()
        risky = [rung for rung in rungs if rung.name in suspects and not self._is_known_to_work(case, rung)]
        self.avoided.update((case, rung.name) for rung in risky)
        return [rung for rung in rungs if rung not in risky]

    def _record_error(
        self, case: ConvCase, rung: Rung, trouble: Trouble, reason: str, device: torch.device
    ) -> None:
        self.errors[case, rung.name] = reason
        _log.warning("rung %s cannot compute %s (%s)", rung.name, case, reason)
        if trouble in MEMORY_TROUBLES:
            # The free memory is no property of the case, so the rung is not recorded as failed.
            if device.type == "cuda":
                torch.cuda.empty_cache()
        elif self._forced is None:
            self._routes.add_failure(case, rung.name, reason)

    def _choose(self, key: Any, case: ConvCase, rung: Rung, ran_out_of_memory: bool) -> None:
        self._proven.add((case, rung.name))
        if ran_out_of_memory and rung.name == "cpu":
            return  # the CPU takes minutes, so the next call tries the other rungs again
        self._chosen[key] = rung
        if self._forced is not None or self._routes.get(case).rung == rung.name:
            return
        reasons = [f"{name}: {text}" for (key_case, name), text in self.errors.items() if key_case == case]
        if reasons:
            self._routes.choose(case, rung.name, "; ".join(reasons))
            _log.info("%s runs on rung %s from now on", case, rung.name)
        elif case.rocm != "none":
            # Without ROCm, a plain call that works is not worth a record.
            self._routes.choose(case, rung.name, "works")


def _worth_trying(trouble: Trouble, remaining: Iterable[Rung]) -> list[Rung]:
    return [rung for rung in remaining if rung.name in SMALLER_RUNGS or trouble not in MEMORY_TROUBLES]


def works(device: torch.device) -> bool:
    """Test whether the device still computes. Some errors stop it until the process ends."""
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

"""The fallback for convolutions that fail, which installs the ladder of `cache.conv` in a model's modules.

On Radeon cards MIOpen sometimes finds no algorithm for a convolution, runs out of workspace, or fails
internally. The ladder then computes it in another way. MIOPEN_FALLBACK_README.md describes the fallback.
"""

import copy
import logging
import weakref
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

from cache.conv import CallHook, ConvLadder
from cache.conv_rungs import RUNGS
from cache.replaced import ReplacedFunctions
from diffusers_helper.machine.routes import RouteStore
from diffusers_helper.memory.status import report
from diffusers_helper.planning.variables import CONV_AUTO, CONV_OFF, CONV_RUNG_VARIABLE, conv_rung
from diffusers_helper.units import count_text

_log = logging.getLogger(__name__)
_Conv = nn.Conv2d | nn.Conv3d

DEVIATION = "Each way rounds once, so pictures differ only by rounding (about 55 dB), which is invisible."


def initialize_miopen_fallback(
    *,
    folder: Path | None = None,
    rung: str = CONV_AUTO,
    on_first_call: CallHook | None = None,
    after_first_call: CallHook | None = None,
) -> "MIOpenFallbackHandler":
    """Create a handler for all models; `rung` is `auto`, `off`, or the only one to use."""
    rung = conv_rung({CONV_RUNG_VARIABLE: rung})
    ladder = None
    forced = None if rung == CONV_AUTO else rung
    if rung != CONV_OFF:
        ladder = ConvLadder(
            RouteStore(folder), forced=forced,
            on_first_call=on_first_call, after_first_call=after_first_call,
        )  # fmt: skip
    handler = MIOpenFallbackHandler(ladder, forced or " → ".join(RUNGS))
    handler.log_start()
    return handler


class MIOpenFallbackHandler:
    """The handler that installs a ladder in modules, removes it again, and reports what the ladder did."""

    def __init__(self, ladder: ConvLadder | None, strategy: str = " → ".join(RUNGS)) -> None:
        self.ladder = ladder
        self._strategy = strategy
        self._installed: weakref.WeakSet[_Conv] = weakref.WeakSet()

    def log_start(self) -> None:
        if self.ladder is None:
            report(_log, "[MIOpen Fallback] Switched off")
            return
        report(_log, "[MIOpen Fallback] Fallback system initialized")
        report(_log, "[MIOpen Fallback] Strategy: %s", self._strategy)

    @property
    def changed(self) -> int:
        """The number of times that a shape of convolution left a rung since the process started."""
        return 0 if self.ladder is None else len(self.ladder.errors)

    def strategy_on(self, device: torch.device) -> str:
        return self._strategy if self.ladder is None else f"{self._strategy} {self.ladder.changes(device)}"

    def install(self, *modules: nn.Module) -> Self:
        """Install the ladder in every Conv2d and Conv3d in `modules` that does not have it yet.

        Each module keeps its own method. While the method runs, the ladder computes the convolutions that it
        asks torch for. If it asks for none, a warning names the module.
        """
        if self.ladder is not None:
            for module in modules:
                for name, conv in module.named_modules():
                    if isinstance(conv, nn.Conv2d | nn.Conv3d):
                        self._install_in(conv, name or type(conv).__name__, self.ladder)
        return self

    def _install_in(self, conv: _Conv, name: str, ladder: ConvLadder) -> None:
        methods = [vars(conv).get(slot) for slot in _SLOTS]
        if any(isinstance(method, _MethodWithFallback) and method.ladder is ladder for method in methods):
            return
        _uninstall(conv)
        torch_class = nn.Conv3d if isinstance(conv, nn.Conv3d) else nn.Conv2d
        overrides_forward = "forward" in vars(conv) or type(conv).forward is not torch_class.forward
        # `_conv_forward` may be called directly, too.
        slot = "forward" if overrides_forward else "_conv_forward"
        setattr(conv, slot, _MethodWithFallback(conv, slot, name, ladder))
        self._installed.add(conv)

    def block(self, case: str, rung: str, reason: str) -> None:
        if self.ladder is not None:
            self.ladder.block(case, rung, reason)

    def remove(self) -> None:
        for conv in list(self._installed):
            _uninstall(conv, self.ladder)
        self._installed.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def statistics(self) -> str:
        """Report on the rungs that were left; "" if the first rung has computed everything."""
        ladder = self.ladder
        if ladder is None or not (ladder.errors or ladder.avoided or ladder.attempts["cpu"]):
            return ""
        *lines, end = _cpu_lines(ladder)
        for name in RUNGS:
            errors = [reason for (_, rung), reason in ladder.errors.items() if rung == name]
            if errors:
                lines.append(
                    f"{name} left for {count_text(len(errors), 'shape')}, last because of: {errors[-1]}"
                )
            if avoided := sum(rung == name for _, rung in ladder.avoided):
                lines.append(
                    f"{name} avoided for {count_text(avoided, 'shape')}, because it ended processes at others"
                )
            if name not in ("miopen", "cpu") and ladder.attempts[name]:
                lines.append(f"{name} attempts: {ladder.attempts[name]}, successes: {ladder.successes[name]}")
        if self.changed:
            lines.append(DEVIATION)
        return "\n".join([*lines, end])

    def print_stats(self) -> None:
        if text := self.statistics():
            for line in text.splitlines():
                _log.warning("%s", line)
        elif self.ladder is not None:
            for line in _cpu_lines(self.ladder):
                report(_log, "%s", line)


def _cpu_lines(ladder: ConvLadder) -> tuple[str, ...]:
    """Write the three lines on the CPU fallback that the memory document (docs/amd-memory.md) shows."""
    counts = f"CPU fallback attempts: {ladder.attempts['cpu']}, successes: {ladder.successes['cpu']}"
    return "=== MIOpen Fallback Statistics ===", counts, "=" * 35


class _MethodWithFallback:
    """The replacement of a module's method, which calls that method while the ladder computes."""

    def __init__(self, conv: _Conv, slot: str, name: str, ladder: ConvLadder) -> None:
        self.ladder = ladder
        self.original = vars(conv).get(slot)
        self._conv = weakref.ref(conv)
        self._slot = slot
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        conv: Any = self._conv()
        method = self.original or getattr(type(conv), self._slot).__get__(conv)
        functions = {
            **dict.fromkeys((torch.conv3d, functional.conv3d), self.ladder.conv3d),
            **dict.fromkeys((torch.conv2d, functional.conv2d), self.ladder.conv2d),
        }
        with ReplacedFunctions(functions) as convolutions:
            result = method(*args, **kwargs)
        if not convolutions.was_called and self._name:
            _log.warning(
                "[MIOpen Fallback] %s (%s) has no fallback: its code calls neither conv2d nor conv3d",
                self._name, type(conv).__name__,
            )  # fmt: skip
            self._name = ""  # once is enough
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)  # by now, `memo` contains the copy of the module that this belongs to
        copied._conv = weakref.ref(memo.get(id(self._conv()), self._conv()))
        copied.original = copy.deepcopy(self.original, memo)
        return copied


_SLOTS = ("_conv_forward", "forward")


def _uninstall(conv: _Conv, ladder: ConvLadder | None = None) -> None:
    """Restore a module as it was before `ladder` was installed, or before any ladder if that is None."""
    for slot in _SLOTS:
        replacement = vars(conv).get(slot)
        if isinstance(replacement, _MethodWithFallback) and ladder in (None, replacement.ladder):
            if replacement.original is None:
                delattr(conv, slot)
            else:
                setattr(conv, slot, replacement.original)

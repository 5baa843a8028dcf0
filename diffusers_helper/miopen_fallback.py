"""The installer of the ladder of `cache.conv` under a model's Conv3d modules, and the errors it recognises.

Symptom: on Radeon cards MIOpen at times finds no algorithm for a 3D convolution, runs out of workspace, or
fails inside, and the job dies in the VAE. Remedy: the same sum, computed in another way. Modules are changed
one by one and can be changed back; torch itself is left alone. Off ROCm the plain call is made first, and the
ladder is used after an error only. See MIOPEN_FALLBACK_README.md.
"""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from cache.conv import ConvLadder, ErrorKind, Hook
from cache.conv_routes import RouteStore, Triple
from cache.conv_rungs import RUNGS
from diffusers_helper.foreign_errors import Trouble, trouble_of

_log = logging.getLogger(__name__)

AUTO, OFF = "auto", "off"
CHOICES = (AUTO, *RUNGS, OFF)

_KINDS: dict[Trouble, ErrorKind] = {
    "device_memory": ErrorKind.MEMORY, "host_memory": ErrorKind.MEMORY, "device": ErrorKind.DEVICE,
    "driver": ErrorKind.DRIVER,
}  # fmt: skip


def classify(error: BaseException) -> ErrorKind | None:
    """Return the kind of a fault of driver, memory or device; None for all else, our mistakes included."""
    trouble = trouble_of(error) if isinstance(error, RuntimeError) else None
    return None if trouble is None else _KINDS.get(trouble)


def initialize_miopen_fallback(
    *,
    folder: Path | None = None,
    rung: str = AUTO,
    on_first_call: Hook | None = None,
    after_first_call: Hook | None = None,
) -> MIOpenFallbackHandler:
    """Return a handler for all models of a process, ready to be installed into them.

    Args:
        folder: The folder of learned routes; None forgets them with the process.
        rung: `auto`, or the only rung to use for debugging, or `off`. Any other value means `auto`.
        on_first_call: See `cache.conv.ConvLadder`.
        after_first_call: See `cache.conv.ConvLadder`.
    """
    if rung not in CHOICES:
        _log.warning("convolution rung %r is ignored; expected one of %s", rung, ", ".join(CHOICES))
        rung = AUTO
    ladder, forced = None, None if rung == AUTO else rung
    if rung != OFF:
        ladder = ConvLadder(
            RouteStore(folder), classify, forced=forced,
            on_first_call=on_first_call, after_first_call=after_first_call,
        )  # fmt: skip
    handler = MIOpenFallbackHandler(ladder, forced or " → ".join(RUNGS))
    handler.log_start()
    return handler


class MIOpenFallbackHandler:
    """A ladder that can be installed into modules and removed again, and reports what it did.

    Used with `with`, it is removed from all modules at the end.

    Attributes:
        ladder: The ladder that computes the convolutions; None if the fallback is switched off.
    """

    def __init__(self, ladder: ConvLadder | None, strategy: str = " → ".join(RUNGS)) -> None:
        self.ladder, self._strategy = ladder, strategy
        self._installed: weakref.WeakSet[nn.Conv3d] = weakref.WeakSet()

    def log_start(self) -> None:
        """Log that the fallback is there, and its ways in their order."""
        if self.ladder is None:
            _log.info("[MIOpen Fallback] Switched off")
            return
        _log.info("[MIOpen Fallback] Fallback system initialized")
        _log.info("[MIOpen Fallback] Strategy: %s", self._strategy)

    @property
    def cpu_attempts(self) -> int:
        """Return the number of convolutions that were begun on the CPU as the last resort."""
        return 0 if self.ladder is None else self.ladder.attempts["cpu"]

    @property
    def cpu_successes(self) -> int:
        """Return the number of those that gave a result."""
        return 0 if self.ladder is None else self.ladder.successes["cpu"]

    def install(self, *modules: nn.Module) -> MIOpenFallbackHandler:
        """Give the ladder to every Conv3d in `modules` that does not have it yet.

        A subclass that computes its convolution in a way of its own is left alone.
        """
        if self.ladder is not None:
            for module in modules:
                for conv in module.modules():
                    if isinstance(conv, nn.Conv3d) and type(conv)._conv_forward is nn.Conv3d._conv_forward:
                        self._install_one(conv, self.ladder)
        return self

    def _install_one(self, conv: nn.Conv3d, ladder: ConvLadder) -> None:
        before = vars(conv).get("_conv_forward")
        if isinstance(before, _LadderForward):
            if before.ladder is ladder:
                return
            before = before.before
        conv._conv_forward = _LadderForward(conv, ladder, before)
        self._installed.add(conv)

    def mark_deadly(self, case: str, rung: str, reason: str) -> None:
        """Record that a rung ended a process; see `cache.conv.ConvLadder.mark_deadly`."""
        if self.ladder is not None:
            self.ladder.mark_deadly(case, rung, reason)

    def remove(self) -> None:
        """Restore every module as it was before."""
        for conv in list(self._installed):
            forward = vars(conv).get("_conv_forward")
            if isinstance(forward, _LadderForward) and forward.ladder is self.ladder:
                if forward.before is None:
                    del conv._conv_forward
                else:
                    conv._conv_forward = forward.before
        self._installed.clear()

    def __enter__(self) -> MIOpenFallbackHandler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def statistics(self) -> str:
        """Return in lines what happened since the process started; "" if the first rung did everything."""
        ladder = self.ladder
        if ladder is None or not (ladder.left or self.cpu_attempts):
            return ""
        *lines, end = self._cpu_lines()
        for name in RUNGS:
            errors = [reason for (_, rung), reason in ladder.left.items() if rung == name]
            if errors:
                lines.append(f"{name} left for {len(errors)} shapes, last because of: {errors[-1]}")
            if name not in ("miopen", "cpu") and ladder.attempts[name]:
                lines.append(f"{name} attempts: {ladder.attempts[name]}, successes: {ladder.successes[name]}")
        return "\n".join([*lines, end])

    def _cpu_lines(self) -> tuple[str, ...]:
        """Return the lines that the memory document shows, which end the statistics of a quiet job."""
        counts = f"CPU fallback attempts: {self.cpu_attempts}, successes: {self.cpu_successes}"
        return "=== MIOpen Fallback Statistics ===", counts, "=" * 35

    def print_stats(self) -> None:
        """Log the statistics, as a warning where a way had to be left."""
        if text := self.statistics():
            _log.warning("%s", text)
        elif self.ladder is not None:
            _log.info("%s", "\n".join(self._cpu_lines()))


class _LadderForward:
    """The replacement of one module's `_conv_forward`.

    It holds neither a tensor nor the module, so a copy of the module may share it.
    """

    def __init__(self, conv: nn.Conv3d, ladder: ConvLadder, before: Any) -> None:
        self.ladder, self.before = ladder, before
        self._stride, self._dilation, self._groups = _triple(conv.stride), _triple(conv.dilation), conv.groups
        self._pad_mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        self._pad, self._padding = _paddings(conv)

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._pad is not None:
            input = functional.pad(input, self._pad, mode=self._pad_mode)
        return self.ladder.conv3d(
            input, weight, bias, self._stride, self._padding, self._dilation, self._groups
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _LadderForward:
        return self


def _triple(values: tuple[int, ...]) -> Triple:
    return values[0], values[1], values[2]


def _paddings(conv: nn.Conv3d) -> tuple[list[int] | None, Triple]:
    """Return what is padded before the convolution, and the zeros that it adds itself on both sides."""
    both_ends = list(conv._reversed_padding_repeated_twice)
    if conv.padding_mode != "zeros":
        return both_ends, (0, 0, 0)
    if not isinstance(conv.padding, str):
        return None, _triple(conv.padding)
    # "same" may need one more at the end than at the beginning; "valid" needs none.
    befores, afters = both_ends[0::2], both_ends[1::2]
    extra = [n for before, after in zip(befores, afters, strict=True) for n in (0, after - before)]
    return (extra if any(extra) else None), (befores[2], befores[1], befores[0])

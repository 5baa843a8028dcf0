"""Forward passes that were seen before are not watched again, and the figures stay what they were."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from diffusers_helper.memory.accounting import Account, AccountedOutOfMemory
from diffusers_helper.memory.device import AccountingDevice
from diffusers_helper.memory.repeats import Repeats

KB = 1024


class Counting(Account):
    """Counts how many operations it has seen."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class Grows(nn.Module):
    """Takes four times its input for a while and returns twice of it; may keep a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps = False
        self.fails = False
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, *, scale: float = 2.0) -> dict[str, list[Tensor]]:
        wide = x.repeat(4)
        if self.fails:
            raise ValueError("asked to")
        if self.keeps:
            self.kept = x * 1
        return {"results": [wide[: len(x)] * scale, x + 1]}


@pytest.fixture
def account() -> Iterator[Counting]:
    account = Counting()
    with torch.inference_mode():
        yield account


@pytest.fixture
def network() -> Grows:
    return Grows()


def kilobytes(count: int) -> Tensor:
    return torch.zeros(count * KB, dtype=torch.uint8)


def test_the_third_pass_is_not_watched_and_counts_the_same(account: Counting, network: Grows) -> None:
    repeats = Repeats(account)
    figures: list[tuple[int, int, bool]] = []
    with account, repeats.of(network):
        x = kilobytes(10)
        for _ in range(4):
            account.reset_peak()
            before = account.seen
            result = network(x, scale=1.0)
            watched = account.seen > before
            figures.append((account.peak_bytes, account.allocated_bytes, watched))
            del result
    # scale is a float: uint8 becomes fp32, four bytes each
    peak, after = (10 + 40 + 40 + 10) * KB, (10 + 40 + 10) * KB
    assert figures == [(peak, after, True)] * 2 + [(peak, after, False)] * 2
    del x
    assert account.allocated_bytes == 0


def test_another_shape_is_watched(account: Counting, network: Grows) -> None:
    with account, Repeats(account).of(network):
        for size in (10, 10, 10, 20):
            x = kilobytes(size)
            account.reset_peak()
            before = account.seen
            network(x)
    assert account.seen > before
    assert account.peak_bytes == 20 * 10 * KB


def test_a_spared_pass_that_would_pass_the_cap_is_refused_before_it_runs(
    account: Counting, network: Grows
) -> None:
    with account, Repeats(account).of(network):
        x = kilobytes(10)
        for _ in range(3):
            network(x)
        account.cap_bytes = 100 * KB
        network(x)
        other = kilobytes(1)
        network.fails = True  # it does not come to this
        with pytest.raises(AccountedOutOfMemory, match=r"Tried to allocate 90.00 KiB"):
            network(x)
        assert account.allocated_bytes == 11 * KB
        assert account.is_watching
        del other
        network.fails = False
        network(x)
    assert account.peak_bytes == 100 * KB


def test_after_an_exception_it_watches_again(account: Counting, network: Grows) -> None:
    with account, Repeats(account).of(network):
        x = kilobytes(10)
        for _ in range(3):
            network(x)
        network.fails = True
        with pytest.raises(ValueError, match="asked to"):
            network(x)
        assert account.is_watching
        gc.collect()
        y = kilobytes(1)
        assert account.allocated_bytes == 11 * KB
    del x, y


def test_a_hook_that_fails_before_the_pass_confuses_nothing(account: Counting, network: Grows) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("cancelled")

    hook = network.register_forward_pre_hook(refuse)
    with account, Repeats(account).of(network):
        x = kilobytes(10)
        for _ in range(3):
            with pytest.raises(ValueError, match="cancelled"):
                network(x)
        hook.remove()
        network(x)
        assert account.is_watching
        assert account.allocated_bytes == 10 * KB
    del x


def test_a_network_that_keeps_something_from_some_passes_is_watched(
    account: Counting, network: Grows
) -> None:
    """As a cache between steps does: what such a pass keeps would not be seen."""
    network.keeps = True
    with account, Repeats(account).of(network):
        x = kilobytes(10)
        for _ in range(6):
            network(x)
        before = account.seen
        network(x)
        assert account.seen > before
        assert account.allocated_bytes == 20 * KB
    del x


def test_parts_that_are_called_by_themselves_are_spared(account: Counting) -> None:
    parts = nn.ModuleDict({"decoder": Grows()})
    with account, Repeats(account).of(parts):
        x = kilobytes(10)
        for _ in range(3):
            before = account.seen
            parts["decoder"](x)
    assert account.seen == before


def test_nothing_happens_where_nobody_watches(account: Counting, network: Grows) -> None:
    x = kilobytes(10)
    device = AccountingDevice()
    with device.computing(network):
        for _ in range(3):
            network(x)
    assert device.peak_bytes() == 0
    assert not network._forward_hooks
    assert not network._forward_pre_hooks

"""Tests that the accounting device counts what a GPU would hold, and refuses what would exceed the cap."""

import gc
import threading
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from diffusers_helper.memory.accounting import to_host
from diffusers_helper.memory.device import Device, open_device
from tests.support.deep_model import run_pass
from tests.support.tiny_model import tiny_transformer, tiny_vae

MIB = 1024**2


@pytest.fixture
def account() -> Iterator[Device]:
    account = Device()
    with torch.inference_mode():
        yield account


def floats(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float32)


def test_a_tensor_counts_from_its_making_to_its_end(account: Device) -> None:
    with account:
        a = floats(1000)
        assert account.allocated_bytes() == 4000
        b = a + 1
        assert account.allocated_bytes() == 8000
        del a
        assert account.allocated_bytes() == 4000
    del b
    assert account.allocated_bytes() == 0
    assert account.peak_bytes() == 8000


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x[2:],
    lambda x: x.view(20, 50),
    lambda x: x.reshape(20, 50),
    lambda x: x.to(torch.float32),
    lambda x: x.to("cpu"),
    lambda x: x.contiguous(),
    lambda x: x.flatten(),
    lambda x: x.add_(1),
    lambda x: x.unflatten(0, (20, 50)).transpose(0, 1),
    lambda x: x.chunk(4)[1],
    lambda x: x.expand(100, 1000),
    lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("inference", [True, False])
def test_views_share_and_writing_in_place_takes_nothing(
    account: Device, view: Callable[[Tensor], Tensor], inference: bool
) -> None:
    with torch.inference_mode(inference), account:
        base = floats(1000)
        part = view(base)
        assert account.allocated_bytes() == account.peak_bytes() == 4000
        del base
        assert account.allocated_bytes() == 4000, "the view keeps it"
        del part
    assert account.allocated_bytes() == 0


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_what_the_host_has_is_the_hosts(account: Device, view: Callable[[Tensor], Tensor]) -> None:
    base = floats(1000)
    with account:
        part = view(base)
        assert account.allocated_bytes() == 0
    del part


def test_a_reshape_that_must_copy_counts(account: Device) -> None:
    with account:
        base = floats(1000).view(20, 50)
        copy = base.transpose(0, 1).reshape(1000)
        assert account.allocated_bytes() == 8000
        assert copy.shape == (1000,)


def test_host_tensors_count_once_they_are_adopted_or_moved(account: Device) -> None:
    host, weight = floats(1000), floats(1000)
    account.adopt([weight])
    account.adopt([weight[5:]])
    assert account.allocated_bytes() == 4000
    with account:
        copy = host.clone()
        assert account.allocated_bytes() == 4000, "a copy on the host"
        moved = host.to("cpu", torch.float16)
        assert account.allocated_bytes() == 4000 + 2000
        product = host * weight
        assert account.allocated_bytes() == 4000 + 2000 + 4000
    account.release([weight])
    assert account.allocated_bytes() == 6000
    del moved, product
    assert account.allocated_bytes() == 0
    del weight, copy


def test_what_is_written_into_a_host_tensor_stays_the_hosts(account: Device) -> None:
    host = floats(1000)
    with account:
        weight = torch.ones(1000)
        torch.add(weight, weight, out=host)
        host[:10].copy_(weight[:10])
        host += weight
        assert account.allocated_bytes() == 4000
    assert host.sum() == 3000 - 10
    del weight


def test_a_released_tensor_is_not_taken_off_twice(account: Device) -> None:
    with account:
        a, b = floats(1000), floats(10)
        account.release([a])
        account.release([a])
    del a
    assert account.allocated_bytes() == 40
    del b


def test_a_module_is_adopted_whole_and_tied_weights_count_once(account: Device) -> None:
    module = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.BatchNorm1d(10))
    module[1].weight = module[0].weight
    account.adopt(module)
    batch_norm = 4 * 40 + 8
    assert account.allocated_bytes() == 400 + 2 * 40 + batch_norm
    account.release(module)
    assert account.allocated_bytes() == 0


def test_the_peak_starts_again(account: Device) -> None:
    with account:
        kept = floats(10)
        (floats(1000) + 1).sum()
    assert account.peak_bytes() > 8000
    account.reset_peak()
    assert account.peak_bytes() == account.allocated_bytes() == 40
    del kept


def test_what_would_pass_the_cap_is_refused_and_leaves_nothing(account: Device) -> None:
    account.cap_bytes = 3 * MIB
    with account:
        a = torch.zeros(2 * MIB, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.zeros(2 * MIB, dtype=torch.uint8)
        words = str(error.value)
        assert "out of memory. Tried to allocate 2097152 bytes. " in words
        assert "capacity of 3145728 bytes of which 1048576 bytes is free" in words
        assert account.allocated_bytes() == account.peak_bytes() == 2 * MIB
        b = torch.zeros(MIB, dtype=torch.uint8)
        assert account.peak_bytes() == 3 * MIB, "exactly the cap fits"
        del a, b
        torch.zeros(3 * MIB, dtype=torch.uint8)


def test_modules_that_do_not_fit_are_adopted_not_at_all(account: Device) -> None:
    account.cap_bytes = 399
    with pytest.raises(torch.OutOfMemoryError):
        account.adopt([floats(50), floats(50)])
    assert account.allocated_bytes() == 0


def test_attention_that_keeps_its_scores_counts_them(account: Device) -> None:
    q = torch.randn(1, 2, 256, 16)
    scores = 2 * 256 * 256 * 4
    account.adopt([q])
    with account, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        attended = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert account.peak_bytes() >= scores
    assert account.allocated_bytes() == 2 * q.numel() * 4
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        assert torch.equal(attended, torch.nn.functional.scaled_dot_product_attention(q, q, q))


def test_a_refusal_inside_attention_keeps_its_kind(account: Device) -> None:
    q = torch.randn(1, 2, 256, 16)
    account.adopt([q])
    account.cap_bytes = 2 * 256 * 256 * 4
    with (
        account,
        nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
        pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 524288 bytes"),
    ):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    gc.collect()
    assert account.allocated_bytes() == q.numel() * 4


def test_entering_twice_counts_once(account: Device) -> None:
    with account, account:
        a = floats(1000)
    assert account.allocated_bytes() == 4000
    with account:
        b = floats(1000)
    outside = floats(1000)
    assert account.allocated_bytes() == 8000
    del a, b, outside


def test_other_threads_may_adopt_and_ask_but_are_not_watched(account: Device) -> None:
    seen: list[int] = []

    def work() -> None:
        made = floats(1000)
        seen.append(account.allocated_bytes())
        account.adopt([made])
        seen.append(account.allocated_bytes())
        del made
        seen.append(account.allocated_bytes())

    with account:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [0, 4000, 0]


def test_many_threads_lose_nothing(account: Device) -> None:
    def work() -> None:
        for _ in range(200):
            tensors = [floats(100) for _ in range(5)]
            account.adopt(tensors)
            account.release(tensors[:2])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert account.allocated_bytes() == 0


def test_to_host_ends_the_counting(account: Device) -> None:
    with account:
        whole = to_host(floats(1000) + 1)
        assert account.allocated_bytes() == 0
        base = floats(1000)
        part = to_host(base[:10])
        assert account.allocated_bytes() == 4000, "as of a GPU, the base stays"
        del base
        assert account.allocated_bytes() == 0
        joined = torch.cat([whole, part])
        assert account.allocated_bytes() == 0, "the host's from now on"
    assert joined.sum() == 1000
    plain = floats(3)
    assert to_host(plain) is plain


def test_the_device_interface_without_a_gpu() -> None:
    device = open_device(torch.device("cpu"))
    assert isinstance(device, Device)
    device.limit(4 * MIB)
    assert device.cap_bytes == 4 * MIB
    with device:
        weight = torch.arange(MIB // 4, dtype=torch.float32)
        assert device.allocated_bytes() == device.reserved_bytes() == MIB
        assert device.free_bytes() == 3 * MIB
        device.limit(MIB)
        with pytest.raises(torch.OutOfMemoryError):
            weight * 2
        device.limit(None)
        product = weight * 2
    assert device.peak_bytes() == 2 * MIB
    del weight, product
    device.reset_peak()
    assert device.peak_bytes() == device.allocated_bytes() == 0
    assert device.free_bytes() == device.total_bytes > 0


def test_a_repeated_computation_is_counted_twice_and_then_its_peak_is_known() -> None:
    device = Device()
    cache: list[Tensor] = []

    def compute() -> Tensor:
        cache.extend([] if cache else [torch.zeros(1000)])  # only the first time, and it stays
        return (torch.zeros(100) + 1).sum()  # 400 bytes twice, and a number

    with device:
        repeat = device.repeater()
        made = [repeat("key", compute)]
        assert device.peak_bytes() == 4000 + 2 * 400
        device.reset_peak()
        made.append(repeat("key", compute))
        assert device.peak_bytes() == 4000 + 4 + 2 * 400
        kept = torch.zeros(500)
        with patch.object(Device, "_count_result", side_effect=AssertionError):
            with pytest.raises(AssertionError):
                repeat("new", compute)
            made.append(repeat("key", compute))
        highest = 4000 + 2 * 4 + len(kept) * 4 + 2 * 400
        assert device.peak_bytes() == highest
        assert device.allocated_bytes() == 4000 + 3 * 4 + len(kept) * 4, "the results count"

        device.limit(device.allocated_bytes() + 700)
        with pytest.raises(torch.OutOfMemoryError):  # it is counted, and does not fit
            repeat("key", compute)
        assert device.peak_bytes() == highest, "an earlier peak stays"
        device.limit(None)
        made.append(repeat("other", compute))  # a computation of its own
    assert [result.item() for result in made] == [100] * 4


def test_a_second_computation_is_known_from_an_earlier_runner_that_began_alike() -> None:
    device = Device()
    sizes, kept = [100, 50, 50], dict[int, Tensor]()

    def peaks_of(left: int) -> list[int]:
        repeat, peaks = device.repeater(), list[int]()
        kept.clear()
        for size in sizes:

            def compute(size: int = size) -> Tensor:
                if not kept:
                    kept[0] = torch.zeros(left)
                return torch.zeros(size).sum()

            device.reset_peak()
            repeat("key", compute)
            peaks.append(device.peak_bytes())
        return peaks

    with device:
        first = peaks_of(1000)
        with patch.object(Device, "paused", side_effect=AssertionError), pytest.raises(AssertionError):
            peaks_of(1000)  # its second computation is not counted
        assert peaks_of(1000) == first == [4000 + 400 + 4, 4000 + 200 + 4, 4000 + 200 + 4]
        sizes[1:] = [70, 70]
        assert peaks_of(999)[1:] == [3996 + 280 + 4] * 2, "one that has left less is not taken for it"


def run_networks() -> list[Tensor]:
    noise, vae = run_pass(tiny_transformer()), tiny_vae()
    with torch.inference_mode():
        return [noise, vae.decode(noise[:, :, :3], return_dict=False)[0]]


def test_counting_changes_no_bit() -> None:
    torch.manual_seed(0)
    plain = run_networks()
    torch.manual_seed(0)
    with Device() as account:
        counted = run_networks()
    assert all(torch.equal(a, b) for a, b in zip(plain, counted, strict=True))
    del counted
    gc.collect()
    assert account.allocated_bytes() == 0

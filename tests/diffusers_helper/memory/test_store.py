"""Tests of what the store loads, unloads and flushes, in which order, and that nothing stays behind."""

import threading
from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from diffusers_helper.memory.accounting import to_host
from diffusers_helper.memory.device import Device
from diffusers_helper.memory.flush import FlushStage
from diffusers_helper.memory.store import Store
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, JobPlan, Stage, plan_job
from tests.support.moves import DOCUMENT, SECTION, moves

KB = 1024
SIDE = 64  # 16 KB a layer in fp32
# The pattern of the memory document, one model at a time: the encoders load one by one, as each is large.
USES = (
    ("text", "text_encoder"),
    ("text_2", "text_encoder_2"),
    ("vae_encode", "vae"),
    ("vision", "image_encoder"),
)
LAYERS = {"text_encoder": 6, "text_encoder_2": 1, "vae": 2, "image_encoder": 1, "transformer": 8}


class Parts:
    """Stacks of linear layers; those of the transformer and the large encoder can be streamed."""

    def __init__(self) -> None:
        self.networks = {
            name: nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(layers))).requires_grad_(
                False
            )
            for name, layers in LAYERS.items()
        }
        self.staying: list[str] = []

    def component(self, name: str) -> Any:
        return self.networks[name]

    def blocks(self, name: str) -> Sequence[nn.Module]:
        return list(self.networks[name]) if name in ("transformer", "text_encoder") else []

    def compute_dtype(self, name: str) -> torch.dtype | None:
        return None

    def stays_on_device(self, name: str) -> None:
        self.staying.append(name)


def weights() -> dict[str, Weights]:
    layer = 4 * SIDE * SIDE
    return {
        name: Weights(
            name, layers * layer, (layer,) * layers if name in ("transformer", "text_encoder") else ()
        )
        for name, layers in LAYERS.items()
    }


def plan_for(cap_kb: float, working_kb: int = 4, reserve_kb: int = 0) -> JobPlan:
    model_weights = weights()
    uses = (*USES, ("sample", "transformer"), ("decode", "vae"))
    stages = tuple(Stage(stage, model_weights[model], working_kb * KB) for stage, model in uses)
    budget = Budget(1024 * KB, int(cap_kb * KB), preserved_bytes=0, reserve_bytes=reserve_kb * KB)
    return plan_job(budget, [Demand(None, stages)])


def new_store(cap_kb: float) -> Store:
    return Store(Device(), Parts(), plan_for(cap_kb))


def use(store: Store, stage: str) -> Tensor:
    generator = torch.Generator().manual_seed(len(stage))
    with torch.inference_mode(), store.on_device(stage) as network:
        return to_host(network(torch.randn(4, SIDE, generator=generator)))


def job(store: Store, sections: int) -> list[Tensor]:
    store.flush("worker-start")
    results = [use(store, stage) for stage, _ in USES]
    for _ in range(sections):
        results += [use(store, "sample"), use(store, "decode")]
    return results


def test_one_model_at_a_time_in_the_documents_order() -> None:
    store = new_store(200)
    assert not store.plan.keep_all_resident
    job(store, sections=2)
    assert store.log == moves(DOCUMENT + SECTION + SECTION)
    flushed = {move.removeprefix("flush ") for move in store.log if move.startswith("flush ")}
    assert flushed == {*get_args(FlushStage)} - {"exception-cleanup"}
    assert store.device.allocated_bytes() == 0


def test_everything_stays_where_everything_fits() -> None:
    store = new_store(1000)
    assert store.plan.keep_all_resident
    job(store, sections=2)
    loads = "flush worker-start, load text_encoder, load text_encoder_2, load vae, load image_encoder"
    assert store.log == moves(f"{loads}, load transformer")
    assert store.device.allocated_bytes() == sum(stored.total_bytes for stored in weights().values())
    store.clear()
    assert store.device.allocated_bytes() == 0


def test_the_source_is_told_of_networks_that_stay_as_a_whole() -> None:
    for cap, expected in ((1000, list(dict(USES).values())), (200, []), (60, [])):
        parts = Parts()
        job(Store(Device(), parts, plan_for(cap)), sections=2)
        assert parts.staying == (expected and [*expected, "transformer"])


def test_caps_change_neither_results_nor_are_they_passed() -> None:
    parts = Parts()
    smallest = plan_for(1000).smallest_cap_bytes / KB
    results: list[list[Tensor]] = []
    for cap in (1000, 300, 150, 100, smallest):
        store = Store(Device(), parts, plan_for(cap))
        results.append(job(store, sections=1))
        assert 0 < store.peak_bytes <= cap * KB
        assert [record.stage for record in store.records] == [*dict(USES), "sample", "decode"]
        for record in store.records:
            assert record.measured_bytes <= record.predicted_bytes
    for other in results[1:]:
        assert all(torch.equal(result, expected) for result, expected in zip(results[0], other, strict=True))
    with pytest.raises(DoesNotFit):
        plan_for(smallest - 1 / KB)


def test_what_is_streamed_is_counted_as_the_plan_says() -> None:
    store = new_store(plan_for(1000).smallest_cap_bytes / KB)
    job(store, sections=3)
    planned = store.plan.stage("sample").streamed_bytes
    assert planned > 0
    assert store.bytes_streamed == 3 * planned + store.plan.stage("text").streamed_bytes
    assert {record.streamed_bytes for record in store.records if record.stage == "sample"} == {planned}


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (1000, [(None, 96 + 4, 96), (None, 128 + 4, 128), (3, 128 + 4, 128)]),
        (200, [(None, 96 + 4, 96), (None, 32 + 4, 32), (3, 32 + 4, 32)]),
    ],
)
def test_each_use_is_recorded_with_its_section_and_all_that_lies_on_the_device(
    cap: int, expected: list[tuple[int | None, int, int]]
) -> None:
    store = Store(Device(), Parts(), plan_for(cap, reserve_kb=8))
    assert store.device.cap_bytes == (cap - 8) * KB
    use(store, "text")
    use(store, "vae_encode")
    with store.on_device("decode", 3):
        pass
    records = [(record.section, record.predicted_bytes, record.resident_bytes) for record in store.records]
    assert records == [(section, *(KB * size for size in sizes)) for section, *sizes in expected]


class Trouble(RuntimeError):
    """An exception that ends a stage in a test."""


def use_and_fail(store: Store, others: int) -> None:
    with (
        torch.inference_mode(),
        store.on_device("sample") as network,
    ):
        assert store.device.allocated_bytes() > others
        network(torch.ones(4, SIDE))
        raise Trouble


@pytest.mark.parametrize("cap", [1000, 200, 60], ids=["all stay", "one at a time", "streamed"])
def test_nothing_of_a_stage_is_left_after_an_exception(cap: int) -> None:
    store = new_store(cap)
    others = 0
    if store.plan.keep_all_resident:
        use(store, "decode")
        others = weights()["vae"].total_bytes
    with pytest.raises(Trouble):
        use_and_fail(store, others)
    assert store.device.allocated_bytes() == others
    assert store.log[-1] == "unload transformer"
    assert not store.records[-1].is_complete
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]
    assert torch.equal(use(store, "sample"), use(new_store_of(store), "sample"))


def new_store_of(store: Store) -> Store:
    """Return another store over the same networks."""
    return Store(Device(), store._source, plan_for(1000))


def test_more_than_the_cap_is_refused_on_the_spot() -> None:
    store = new_store(200)
    with (
        pytest.raises(torch.OutOfMemoryError),
        store.on_device("decode") as network,
    ):
        network(torch.ones(4 * KB, SIDE))
    assert store.device.allocated_bytes() == 0


def test_a_smaller_plan_takes_over_from_an_empty_device() -> None:
    store = new_store(1000)
    use(store, "decode")
    store.follow(plan_for(200))
    assert store.log[-1] == "unload vae"
    assert store.device.allocated_bytes() == 0
    assert store.device.cap_bytes == 200 * KB
    use(store, "sample")
    assert store.log[-1] == "flush post-transformer-unload"


class Card(Device):
    """An accounting device that counts as a GPU, most of whose memory is held by other programs."""

    has_gpu = True

    def free_bytes(self) -> int:
        return 20 * KB


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the flush would ask the GPU")
@pytest.mark.parametrize(("device", "count"), [(Card(), 1), (Device(), 0)])
def test_too_little_free_memory_before_the_vae_decodes_is_told_once(
    device: Device, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.memory.flush._runtime", lambda: None)  # a build may have one
    reported: list[str] = []
    store = Store(device, Parts(), plan_for(200), warn=reported.append)
    job(store, sections=2)
    assert len(reported) == count
    assert all("are free before the VAE decodes" in sentence for sentence in reported)

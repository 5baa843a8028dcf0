"""Tests that streaming moves weights and changes no result: same bits, exact counts, nothing left behind."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel as Transformer
from safetensors.torch import save_file
from torch import Tensor, nn

from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.memory.streaming import Streamer
from diffusers_helper.memory.weights import Layout, Weight, weights_of
from tests.support.deep_model import run_pass as run
from tests.support.jobs import TIMEOUT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    """Return three double and five single blocks of different sizes, memory-mapped as a model's are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = Transformer(
            num_attention_heads=2, attention_head_dim=16, rope_axes_dim=(4, 6, 6), num_layers=3,
            num_single_layers=5, num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=16,
            image_proj_dim=16, has_image_proj=True, has_clean_x_embedder=True,
        )  # fmt: skip
    folder = tmp_path_factory.mktemp("streamed")
    made.save_pretrained(folder)
    loaded = Transformer.from_pretrained(folder)
    return loaded.eval().requires_grad_(False)


Place = Callable[..., Resident]


@pytest.fixture
def place(network: Transformer) -> Iterator[Place]:
    """Return what places the network on the device, after it has taken it off."""
    residents = list[Resident]()

    def place(streamed: Sequence[int] = range(8), num_slots: int = 2) -> Resident:
        while residents:
            residents.pop().close()
        blocks = blocks_of(network)
        residents.append(
            Resident(network, Staging(CPU), blocks=blocks, streamed=streamed, num_slots=num_slots)
        )
        return residents[0]

    yield place
    for resident in residents:
        resident.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]


def blocks_of(network: Transformer) -> list[nn.Module]:
    return [*network.transformer_blocks, *network.single_transformer_blocks]


def bytes_of(*modules: nn.Module) -> int:
    return sum(parameter.nbytes for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("streamed", [(6,), (0, 1), (1, 3, 5, 7), tuple(range(8))], ids=str)
@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_a_streamed_pass_gives_the_bits_of_a_resident_one_and_copies_each_block_once(
    streamed: tuple[int, ...], num_slots: int, network: Transformer, place: Place
) -> None:
    blocks = blocks_of(network)
    place(())
    resident = run(network)
    streaming = place(streamed, num_slots)
    for passes in (1, 2, 3):
        assert torch.equal(run(network), resident)
        assert streaming.bytes_streamed == passes * bytes_of(*(blocks[index] for index in streamed))


def test_weights_go_back_to_the_file_they_are_mapped_from(network: Transformer) -> None:
    before = {name: tensor.data_ptr() for name, tensor in network.state_dict().items()}
    resident = Resident(network, Staging(CPU), blocks=blocks_of(network), streamed=(0, 4))
    moved = {name: tensor.data_ptr() for name, tensor in network.state_dict().items()}
    waiting = {name for name in before if moved[name] == before[name]}
    assert waiting == {
        name for name in before if name.startswith(("transformer_blocks.0.", "single_transformer_blocks.1."))
    }
    run(network)
    resident.close()
    assert {name: tensor.data_ptr() for name, tensor in network.state_dict().items()} == before


def test_resident_weights_and_slots_are_aligned(network: Transformer, place: Place) -> None:
    assert any(parameter.data_ptr() % 64 for parameter in network.parameters())  # as they are in the file
    seen: list[int] = []
    blocks = blocks_of(network)
    place((1, 2))
    hook = (
        blocks[2]
        .get_submodule("attn")
        .register_forward_pre_hook(
            lambda *_: seen.extend(parameter.data_ptr() % 64 for parameter in blocks[2].parameters())
        )
    )
    run(network)
    hook.remove()
    assert seen
    assert not any(seen)
    assert not any(parameter.data_ptr() % 64 for parameter in blocks[0].parameters())


def test_the_ring_holds_no_more_than_its_slots(
    network: Transformer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count copies that have begun: they are never more than `slots` ahead of the blocks that have run."""
    lock, copy, release = threading.Lock(), Streamer._copy, Streamer._release_block
    held, most = 0, 0

    def count(change: int) -> None:
        nonlocal held, most
        with lock:
            held += change
            most = max(most, held)

    monkeypatch.setattr(Streamer, "_copy", lambda *given: (count(1), copy(*given)))
    monkeypatch.setattr(
        Streamer, "_release_block", lambda *given, **named: (count(-1), release(*given, **named))
    )
    place()
    run(network)
    run(network)
    assert held == 0
    assert most <= 2


def test_the_next_block_is_copied_while_one_computes(
    network: Transformer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let each block wait for the next one's copy: without overlap the test would hang."""
    copied, copy = [threading.Event() for _ in range(8)], Streamer._copy

    def watched_copy(streamer: Streamer, index: int, slot: Any) -> None:
        copy(streamer, index, slot)
        copied[index].set()

    monkeypatch.setattr(Streamer, "_copy", watched_copy)
    blocks = blocks_of(network)
    waited: list[bool] = []
    for index in range(7):
        blocks[index].register_forward_pre_hook(
            lambda *_, index=index: waited.append(copied[index + 1].wait(TIMEOUT))
        )
    place()
    try:
        run(network)
    finally:
        for block in blocks:
            block._forward_pre_hooks.clear()
    assert waited == [True] * 7


class Trouble(RuntimeError):
    """An exception that a block raises in a test."""


def failing(*_: object) -> None:
    raise Trouble


@pytest.mark.parametrize("index", [0, 3, 7])
def test_a_pass_that_fails_can_be_begun_again(index: int, network: Transformer, place: Place) -> None:
    blocks = blocks_of(network)
    place(())
    resident = run(network)
    place()
    hook = blocks[index].register_forward_pre_hook(failing)
    with pytest.raises(Trouble):
        run(network)
    hook.remove()
    assert torch.equal(run(network), resident)


def test_blocks_may_be_left_out_and_run_in_another_order(network: Transformer, place: Place) -> None:
    blocks = blocks_of(network)
    singles = {index: blocks[index] for index in range(3, 8)}
    hidden, text = torch.ones(1, 6, 32), torch.ones(1, 4, 32)

    def call(index: int) -> Tensor:
        with torch.inference_mode():
            rotary = (torch.ones(6, 16), torch.zeros(6, 16))
            return torch.cat(singles[index](hidden, text, torch.ones(1, 32), None, rotary), dim=1)

    place(())
    expected = {index: call(index) for index in singles}
    place(range(3, 8))
    for index in (3, 6, 7, 4, 4, 3, 7, 5):
        assert torch.equal(call(index), expected[index])


def test_an_error_of_the_copying_thread_reaches_the_one_that_waits(
    network: Transformer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoDisk(Staging):
        def send(self, write: Callable[[Tensor], object], target: Tensor) -> None:
            raise OSError("the disk is gone")

    monkeypatch.setattr("diffusers_helper.memory.streaming.Staging", NoDisk)
    place((2,))
    with pytest.raises(OSError, match="the disk is gone"):
        run(network)


def test_a_load_that_fails_leaves_nothing_on_the_device(
    network: Transformer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: tensor.data_ptr() for name, tensor in network.state_dict().items()}
    monkeypatch.setattr("diffusers_helper.memory.residency.Streamer", lambda *_, **__: failing())
    with pytest.raises(Trouble):
        place((2,))
    assert {name: tensor.data_ptr() for name, tensor in network.state_dict().items()} == before


def test_weights_become_another_type_on_the_device_but_for_those_kept_on_purpose(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).half()
    module[1].float()
    module.register_buffer("places", torch.arange(3))
    before = [tensor.clone() for tensor in module.state_dict().values()]
    resident = Resident(module, Staging(CPU), dtype=torch.bfloat16)
    assert [tensor.dtype for tensor in module.state_dict().values()] == [
        torch.int64, torch.bfloat16, torch.bfloat16, torch.float32, torch.float32,
    ]  # fmt: skip
    resident.close()
    after = list(module.state_dict().values())
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_layout_keeps_every_tensor_apart_and_aligned(tmp_path: Path) -> None:
    sizes: list[tuple[int, ...]] = [(3,), (16, 4), (5, 7), (64,), (1,)]
    module = nn.ParameterList([nn.Parameter(torch.randn(size), requires_grad=False) for size in sizes])
    save_file(module.state_dict(), tmp_path / "file.safetensors")
    layout = Layout.of(weights_of(module), CPU)
    spans = sorted((begin, begin + weight.num_bytes) for weight, begin in layout.placements)
    assert all(begin % 64 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] == layout.num_bytes
    storage = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    before = [parameter.clone() for parameter in module]
    for piece in layout.pieces():
        piece.write(storage[piece.start : piece.end])
    layout.use(storage)
    assert all(torch.equal(old, new) for old, new in zip(before, module, strict=True))
    read: Callable[[nn.Parameter], int] = lambda parameter: parameter.untyped_storage().data_ptr()  # noqa: E731
    assert {read(parameter) for parameter in module} == {storage.untyped_storage().data_ptr()}


def test_on_a_gpu_a_slot_is_written_after_its_release_and_told_as_copied_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run the copying for a stream of a GPU, of which there is only a stand-in here."""
    notes: list[Any] = []
    stream = SimpleNamespace(wait_event=notes.append)
    monkeypatch.setattr(torch.cuda, "stream", lambda current: nullcontext(notes.append(current)))
    layout = Layout.of([Weight.of(torch.arange(8))], CPU)
    streamer: Any = Streamer.__new__(Streamer)
    streamer._stream, streamer._layouts, streamer._pieces = stream, [layout], [[*layout.pieces()] * 2]
    streamer._staging = SimpleNamespace(send=lambda write, target: notes.append(write(target)))
    streamer.bytes_copied = 0
    copied = SimpleNamespace(record=lambda current: notes.append(("copied", current)))
    slot = SimpleNamespace(
        storage=torch.zeros(80, dtype=torch.uint8), released_event="released", copied_event=copied
    )
    streamer._copy(0, slot)
    assert notes == [stream, "released", None, None, ("copied", stream)]
    assert torch.equal(slot.storage[:64].view(torch.int64), torch.arange(8))
    assert streamer.bytes_copied == 64

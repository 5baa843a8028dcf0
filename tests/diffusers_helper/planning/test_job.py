"""Tests of what plans are made from: real tokens, the files at hand, and what the machine has learned."""

import shutil
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.conditions.prompts import HEAD_TOKENS, TEMPLATE, encoded_tokens
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.machine import local as machine_local
from diffusers_helper.machine.local import DiskSpeeds, Facts, disk_speed, store_kernel, stored_kernel
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.profiles import ATTENTION_VARIABLE, Machine, profile_for
from diffusers_helper.planning.video import known_networks, plan_video, weights_file
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.jobs import TIMEOUT
from tests.support.published import part_folder, write_published
from tests.support.threads import join_threads

FULL = find_model("framepack-i2v")
RADEON = profile_for(Machine("rocm", "gfx1100", "card", 24 * GB), {})
CPU = profile_for(Machine("cpu", "", "CPU", 32 * GB), {})


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with toy-size weights under the published model's names. Tests only read it."""
    cache = tmp_path_factory.mktemp("hub")
    write_published(cache, FULL)
    return cache


@pytest.fixture
def hub(downloaded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(downloaded))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return downloaded


def command(**settings: object) -> GenerationRequest:
    values = {"image": "none", "prompt": "the red ball moves right", "model": FULL.name, **settings}
    return GenerationRequest.from_dict(values)


@pytest.mark.parametrize(
    "text", ["", "the red ball moves right", "ein Hündchen läuft, sehr schnell!", "the " * 400]
)
def test_tokens_are_counted_as_the_encoder_gets_them(text: str, hub: Path) -> None:
    tokenizer = load_models(FULL, device="cpu").component("tokenizer")
    ids = tokenizer(TEMPLATE.format(text), max_length=HEAD_TOKENS + 256, truncation=True).input_ids
    assert encoded_tokens(text, FULL) == len(ids) - HEAD_TOKENS


def test_without_the_tokenizer_tokens_are_guessed_from_above() -> None:
    assert encoded_tokens("", FULL) < encoded_tokens("a red ball", FULL) < encoded_tokens("word " * 40, FULL)
    assert encoded_tokens("word " * 1000, FULL) == encoded_tokens("word " * 2000, FULL) == 264


def test_what_lies_in_the_hubs_cache_is_read(hub: Path) -> None:
    models = load_models(FULL, device="cpu")
    described = known_networks(FULL, CPU)
    assert described
    for name, network in described.items():
        module = models.component(name)
        sizes = sizes_of(module, models.blocks(name), models.compute_dtype(name))
        assert network.weights == Weights(name, *sizes)
    plan = plan_video(command(resolution=64), FULL, CPU)
    sample = plan.job.stage("sample")
    assert sample.resident_blocks == (0, 1)  # instead of the table's sixty
    file = weights_file(FULL)
    assert file.parent == part_folder(hub, FULL, "transformer")


def test_a_download_that_is_not_whole_counts_as_none(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incomplete_hub = tmp_path / "hub"
    shutil.copytree(hub, incomplete_hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(incomplete_hub))
    min(part_folder(incomplete_hub, FULL, "transformer").glob("*.safetensors")).unlink()
    described = known_networks(FULL, RADEON)
    assert len(described["transformer"].weights.block_bytes) == 60
    assert len(described["text_encoder"].weights.block_bytes) == 3


def test_the_kernel_that_ran_takes_the_place_of_the_belief(tmp_path: Path) -> None:
    facts = Facts(tmp_path / "attention.json")
    assert stored_kernel(facts, "gfx1100") == ""
    store_kernel(facts, "gfx1100", "1.0.0", "_scaled_dot_product_attention_math")
    assert stored_kernel(facts, "gfx1100") == ""  # another torch
    version = metadata.version("torch")
    store_kernel(facts, "gfx1100", version, "_scaled_dot_product_attention_math")
    assert stored_kernel(facts, "gfx1030") == ""  # another card
    slow = RADEON.with_kernel(stored_kernel(facts, "gfx1100"))
    assert (slow.kernel.value, slow.attention.value) == ("math", "sliced")
    assert "SDPA ran _scaled_dot_product_attention_math here" in slow.attention.reason
    assert RADEON.with_kernel("") == RADEON
    believed = profile_for(Machine("rocm", "gfx1030", "card", 24 * GB), {})
    assert (believed.kernel.value, believed.attention.value) == ("math", "sliced")
    assert believed.with_kernel("_scaled_dot_product_flash_attention").attention.value == "native"
    triton_profile = profile_for(RADEON.machine, {ATTENTION_VARIABLE: "triton"})
    assert triton_profile.with_kernel("_scaled_dot_product_attention_math").attention.value == "triton"


def test_the_disks_speed_is_that_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    file = weights_file(find_model("demo"))
    assert file is not None
    speed = disk_speed(file)
    assert speed is None or speed > 1000
    assert disk_speed(file.parent / "none") is None
    # Measuring a slow disk stops when its time is over, at most one block later.
    reads: list[int] = []
    real = machine_local.os.readv

    def count(*arguments: Any) -> int:
        reads.append(real(*arguments))
        return reads[-1]

    monkeypatch.setattr(machine_local.os, "readv", count)
    if disk_speed(file, seconds=-1.0) is not None:
        assert len(reads) == 1


def test_a_speed_is_measured_once_and_never_by_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    may_answer = threading.Event()

    def slow(file: Path) -> float:
        asked.append(threading.current_thread().name)
        assert may_answer.wait(TIMEOUT)
        return 3e9

    monkeypatch.setattr(machine_local, "disk_speed", slow)
    file, facts = tmp_path / "model" / "weights.safetensors", Facts(tmp_path / "disks.json")
    speeds = DiskSpeeds(facts)
    assert speeds.ask(file) is None
    assert speeds.ask(file) is None  # while it is being measured
    may_answer.set()
    join_threads("disk")
    assert speeds.ask(file) == 3e9
    assert asked == ["disk"]
    assert DiskSpeeds(facts).measure(file.with_name("other.safetensors")) == 3e9  # also for the next program
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 5}', '{"key": []}', "[" * 100_000])
def test_a_file_of_facts_that_is_of_no_use_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(text, encoding="utf-8")
    assert Facts(file).read("key") == {}
    Facts(file).write("other", {"a": 1})
    assert Facts(file).read("other") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


def test_facts_without_a_place_are_not_kept(tmp_path: Path) -> None:
    Facts().write("key", {"a": 1})
    assert Facts().read("key") == {}
    assert Facts().forget() == 0
    facts = Facts(tmp_path / "facts.json")
    facts.write("key", {"a": 1})
    facts.write("key", {"b": 2})
    assert facts.read("key") == {"a": 1, "b": 2}
    assert (facts.forget(), facts.all(), facts.forget()) == (1, {}, 0)
    (tmp_path / "file").write_text("")
    unwritable = Facts(tmp_path / "file" / "facts.json")
    unwritable.write("key", {"a": 1})
    assert unwritable.read("key") == {}

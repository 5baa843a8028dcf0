"""Tests of what plans are made from: real tokens, the files at hand, and what the machine has learned."""

import shutil
import threading
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.conditions.prompts import HEAD_TOKENS, TEMPLATE, encoded_tokens
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.machine import local as machine_local
from diffusers_helper.machine.local import DiskSpeeds, Facts, Local, disk_speed, store_kernel, stored_kernel
from diffusers_helper.memory.weights import sizes_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.notes import FORGET, choice_notes
from diffusers_helper.planning.profiles import ATTENTION_VARIABLE, Machine, Profile, profile_for
from diffusers_helper.planning.smaller_plans import Level, level_key
from diffusers_helper.planning.video import VideoPlan, known_networks, longest_text, plan_video, weights_file
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


def test_the_negative_prompt_counts_where_it_is_used() -> None:
    demo = find_model("demo")
    short, long = (command(model="demo", negative="red " * 99, cfg=cfg) for cfg in (1, 2))
    assert longest_text(long, demo) > longest_text(short, demo) + 90
    sample = [plan_video(request, demo, CPU).job.stage("sample").working_bytes for request in (short, long)]
    assert sample[0] < sample[1]


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


def learn(local: Local, level: Level, **settings: object) -> None:
    """Record what a job of this size records when it runs out of memory."""
    local.smaller_plans.write(level_key(command(**settings), FULL, RADEON, 640, 608), asdict(level))


def plan_with(local: Local, profile: Profile = RADEON, **settings: object) -> VideoPlan:
    return plan_video(command(**settings), FULL, profile, shape=(640, 608), local=local)


def shortages(plan: VideoPlan) -> list[str]:
    return [note for note in plan.notes if note.startswith("Memory ran out")]


def test_a_plan_knows_of_shortages_and_says_so(tmp_path: Path) -> None:
    local = Local(folder=tmp_path / "cache")
    before = plan_with(local, preserved_gb=0)
    assert shortages(before) == []
    learn(local, Level(weights=1), preserved_gb=0)
    after = plan_with(local, preserved_gb=0)
    old, new = before.job.stage("sample"), after.job.stage("sample")
    assert new.streamed_bytes > old.streamed_bytes
    assert new.peak_bytes < old.peak_bytes
    assert after.job.smallest_cap_bytes == before.job.smallest_cap_bytes
    (note,) = shortages(after)
    assert note.startswith("Memory ran out on this card before, so the plan is smaller")
    assert "GB of weights stay on the device instead of" in note
    assert FORGET in note
    # The record does not apply to another cap, another size or another card.
    assert shortages(plan_with(local, preserved_gb=0, vram_cap_gb=16)) == []
    other = plan_video(command(preserved_gb=0), FULL, RADEON, shape=(320, 320), local=local)
    assert shortages(other) == []
    smaller = profile_for(Machine("rocm", "gfx1100", "card", 20 * GB), {})
    assert shortages(plan_with(local, smaller, preserved_gb=0)) == []
    assert local.smaller_plans.forget() == 1
    assert plan_with(local, preserved_gb=0) == before


def test_a_job_tells_what_was_chosen_for_it() -> None:
    profile = profile_for(Machine("rocm", "gfx1030", "card", 16 * GB), {})
    plan = plan_video(command(weight_dtype="auto"), FULL, profile, shape=(640, 608))
    weights, attention = choice_notes(plan.first)
    assert weights.startswith("The weights keep the type of the files")
    assert attention.startswith("Attention is computed in slices, which takes longer, because AOTriton")
    limited = plan_video(command(preserved_gb=18), FULL, profile, shape=(640, 608))
    assert any("GB to preserve" in note for note in choice_notes(limited.first))


def test_smaller_tiles_are_learned_too(tmp_path: Path) -> None:
    local = Local(folder=tmp_path)
    learn(local, Level(weights=3, tile=1))
    plan = plan_with(local)
    assert plan.job.vae_tile_px == 192
    assert any("tiles of 192 pixels instead of 256" in note and FORGET in note for note in plan.notes)


def test_page_and_engine_name_a_card_alike(tmp_path: Path) -> None:
    """Compare both names: the kernel uses the maker's name, torch another, and their memory sizes differ."""
    local = Local(folder=tmp_path)
    learn(local, Level(weights=2))
    by_torch = profile_for(Machine("rocm", "gfx1100", "AMD Radeon RX 7900 XTX", 24 * GB - 25 * 1024**2), {})
    key = level_key(command(), FULL, by_torch, 640, 608)
    assert Level.read(local.smaller_plans, key) == Level(weights=2)


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


def test_where_main_memory_is_short_the_plan_says_seconds_per_step() -> None:
    request = command(cfg=2)

    def plan(free: int, speed: float | None) -> VideoPlan:
        return plan_video(request, FULL, RADEON, free_ram_bytes=free, disk_speed=lambda file: speed)

    short = plan(8 * GB, 2 * GB)
    assert short.seconds_per_step == short.copy_seconds == pytest.approx(short.waiting_bytes / GB)
    assert (short.copies.name, short.copies.source) == ("the disk", "measured")
    assert "8-bit" in short.notes[-1]
    assert "(about 8.4 s per step)" in short.notes[-1]
    unknown = plan(8 * GB, None)
    assert unknown.seconds_per_step is None
    assert "the disk's speed is not known yet" in unknown.notes[-1]
    enough = plan_video(
        request, FULL, RADEON, free_ram_bytes=64 * GB, disk_speed=lambda file: pytest.fail("nobody needs it")
    )
    assert enough.seconds_per_step is None
    assert not any("main memory" in note for note in enough.notes)


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
    (tmp_path / "file").write_text("")
    unwritable = Facts(tmp_path / "file" / "facts.json")
    unwritable.write("key", {"a": 1})
    assert unwritable.read("key") == {}


@pytest.mark.parametrize(
    ("gb", "settings", "least"),
    [
        (24, {"preserved_gb": 15}, "16 GB"), (24, {"preserved_gb": 16}, None), (24, {}, None),
        (24, {"preserved_gb": 9, "vram_cap_gb": 12}, "10 GB"), (20, {"preserved_gb": 12}, "14.5 GB"),
        (24, {"vram_cap_gb": 12}, None), (48, {"preserved_gb": 2}, None),
    ],
)  # fmt: skip
def test_less_preserved_memory_than_the_document_asks_for_is_told(
    gb: int, settings: dict[str, float], least: str | None
) -> None:
    profile = profile_for(Machine("rocm", "gfx1100", "card", gb * GB), {})
    notes = [note for note in plan_with(Local(), profile, **settings).notes if "BlockAllocator" in note]
    assert len(notes) == (least is not None)
    assert not notes or notes[0].startswith(f"At least {least} of preserved memory are advised")


def test_each_circumstance_of_a_plan_has_a_level_of_its_own() -> None:
    keys = [
        level_key(command(), FULL, RADEON, 640, 608),
        level_key(command(), FULL, RADEON, 608, 640),
        level_key(command(), FULL, replace(RADEON, helper_bytes=8 * GB), 640, 608),
        level_key(command(), FULL, replace(RADEON, helper_bytes=12 * GB), 640, 608),
    ]
    changes = {"vram_cap_gb": 9.0}, {"vae_tile": 128}, {"vae_chunk": 5}, {"step_cache": "teacache"}
    keys += [level_key(command(**change), FULL, RADEON, 640, 608) for change in changes]
    assert len(set(keys)) == len(keys)

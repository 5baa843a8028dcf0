"""Tests of the processes in which files of unknown origin are read."""

import json
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.reading.process import Limits, ReadingProcess, Unreadable, reading_elsewhere
from diffusers_helper.conditions import prompts
from diffusers_helper.conditions.picture_file import read_as_png, read_small, size_of
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.registry import ComponentSource, find_model
from diffusers_helper.models.sizes import NETWORKS, count_values, layers_of, networks
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import GenerationRequest
from diffusers_helper.untrusted.confined import CONFINEMENT
from diffusers_helper.weights import lora_files as lora_files
from diffusers_helper.weights import reading
from diffusers_helper.weights.inspection import inspect_weights
from diffusers_helper.weights.lora_files import read_lora
from tests.support.hostile import gguf, safetensors, tensor, text
from tests.support.pages import write_photo

DEMO = find_model("demo")
TRANSFORMER = Path(DEMO.components["transformer"].location)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let files be read in processes, and fail if one is read in this process."""
    lora_files._lora_or_error.cache_clear()

    def refuse(*_: object) -> None:
        raise AssertionError("read in this process")

    for name in ("read_gguf", "read_pickle", "read_safetensors"):
        monkeypatch.setattr(reading, name, refuse)
    with reading_elsewhere():
        yield
    lora_files._lora_or_error.cache_clear()


def write_lora(file: Path) -> Path:
    sides = {"lora_A": (2, 3), "lora_B": (3, 2)}
    entries = {
        f"transformer_blocks.0.attn.to_q.{kind}.weight": tensor(shape, offsets=(24 * n, 24 * n + 24))
        for n, (kind, shape) in enumerate(sides.items())
    }
    file.write_bytes(safetensors({"__metadata__": {"trigger_words": "boat"}, **entries}, 48))
    return file


def test_each_reader_gives_elsewhere_what_it_gives_here(tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "boat.safetensors")
    recipe, photo = tmp_path / "recipe.json", write_photo(tmp_path / "photo.png")
    recipe.write_text(
        json.dumps({"recipe": 1, "settings": {"steps": 7, "speed": 2}, "made_with": {"a": "1"}})
    )

    def all_of_it() -> list[object]:
        lora_files._lora_or_error.cache_clear()
        return [
            inspect_weights(TRANSFORMER), inspect_weights(TRANSFORMER / "config.json"), read_lora(lora),
            layers_of(TRANSFORMER), read_recipe(recipe), networks(DEMO, on_cpu=True),
            size_of(photo), read_as_png(photo), read_small(photo, 24, 24),
            *(count_values(name, Path(DEMO.components[name].location), None) for name in NETWORKS
              if name in DEMO.components),
        ]  # fmt: skip

    here = all_of_it()
    with reading_elsewhere():
        assert all_of_it() == here
    assert CONFINEMENT.run_reader is None


@pytest.mark.usefixtures("elsewhere")
def test_errors_come_back_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LongtakeError, match="num_attention_heads") as broken:
        networks_of(tmp_path)
    assert not isinstance(broken.value, InputError)
    (tmp_path / "no.safetensors").write_bytes(b"words")
    with pytest.raises(InputError, match=r"LoRA no\.safetensors is") as refused:
        read_lora(tmp_path / "no.safetensors")
    assert refused.value.setting == "lora"
    with pytest.raises(FileNotFoundError):
        inspect_weights(tmp_path / "gone.gguf")


def networks_of(folder: Path) -> object:
    parts = {**DEMO.components, "transformer": ComponentSource(location=str(folder))}
    return networks(type(DEMO)(name="x", title="x", components=parts, modes=DEMO.modes), on_cpu=True)


@pytest.mark.usefixtures("elsewhere")
def test_a_plan_and_a_lora_are_read_elsewhere(tmp_path: Path) -> None:
    assert networks(DEMO, on_cpu=True)["transformer"].file_bytes > 0
    assert read_lora(write_lora(tmp_path / "boat.safetensors")).triggers == ("boat",)


@pytest.mark.usefixtures("elsewhere")
def test_a_prompt_is_counted_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_load_tokenizer", None)
    words = ComponentSource(location=str(tmp_path))
    info = type(DEMO)(name="x", title="x", components={**DEMO.components, "tokenizer": words})
    request = GenerationRequest.from_dict({"image": "a.png", "prompt": "red " * 300})
    shutil.copytree(DEMO.components["tokenizer"].location, tmp_path, dirs_exist_ok=True)
    with pytest.raises(InputError, match="300 tokens"):
        prompts.check_prompt(request, info)
    (tmp_path / "tokenizer.json").write_bytes(b"[" * 2**22)
    with pytest.raises(InputError, match=r"tokenizer\.json (cannot be read|is not readable)"):
        prompts.check_prompt(request, info)


@pytest.mark.parametrize(
    ("limits", "reported"),
    [
        (Limits(memory=2**30, seconds=0, wall_seconds=600.0), "takes more than 0 s to read"),
        (Limits(memory=2**30, seconds=60, wall_seconds=0.01), "took too long"),
        (Limits(memory=85 * 2**20, seconds=60, wall_seconds=600.0), "takes more than 85 MiB of memory"),
    ],
    ids=["seconds", "wall", "memory"],
)
def test_what_exceeds_a_limit_is_not_readable_and_the_next_file_is(
    limits: Limits, reported: str, tmp_path: Path
) -> None:
    many = b"".join(text(b"%0400d" % n) + struct.pack("<IB", 0, 1) for n in range(90_000))
    (tmp_path / "many.gguf").write_bytes(gguf(text(b"a") + LIST + EMPTY * 1_400_000 + many, 90_001))
    process = ReadingProcess(limits)
    try:
        with pytest.raises(Unreadable, match=rf"many\.gguf is not readable: it .*{reported}") as refused:
            process.read(inspect_weights, tmp_path / "many.gguf")
        assert refused.value.remedy
        process.limits = Limits(limits.memory, 60, 600.0)
        assert process.read(inspect_weights, write_lora(tmp_path / "boat.safetensors")).model == "LoRA"
    finally:
        process.close()


LIST, EMPTY = struct.pack("<IIQ", 9, 9, 1_400_000), struct.pack("<IQ", 0, 0)


def test_a_process_that_has_ended_itself_is_started_again(tmp_path: Path) -> None:
    """Let the first process end without an answer, as one does that nobody has asked for a while."""
    flag = tmp_path / "ended"
    code = (
        f"import os, sys\nif not os.path.exists({str(flag)!r}):\n"
        f" open({str(flag)!r}, 'x'); sys.stdin.readline(); sys.exit()\n"
        "from app.reading.worker import main\nmain()"
    )
    process = ReadingProcess(Limits(2**30, 20, 600.0), (sys.executable, "-c", code))
    try:
        found = process.read(inspect_weights, write_lora(tmp_path / "boat.safetensors"))
        limits = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert all(limit.finished.is_set() for limit in limits)  # the process may read the next file
    finally:
        process.close()
    assert flag.exists()
    assert found.model == "LoRA"


def test_an_answer_longer_than_any_is_refused(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    code = "import sys; sys.stdin.readline(); sys.stdout.write('[' * 30_000_000)"
    code = f"open({str(starts)!r}, 'a').write('1'); {code}; sys.exit(3)"
    process = ReadingProcess(Limits(2**30, 20, 600.0), (sys.executable, "-c", code))
    with pytest.raises(Unreadable, match="crashed"):
        process.read(inspect_weights, tmp_path)
    process.close()
    assert starts.read_text() == "1"  # what ended one process is not given to another

"""Tests of conversions from the page: the offer, the progress, the copy, a cancel and a failure."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.downloads import process
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.models import present
from app.ui.models.endpoints import ModelCalls
from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.set_ups import transformer_in
from tests.support.jobs import wait_until
from tests.support.staged_engine import StagedEngine

DEMO = find_model("demo")
CARD = ".lt-model-card[data-model=demo]"
# A command that behaves as `models convert` does: it tells its progress, waits for the file `go`, and leaves
# nothing behind if it is ended.
DOUBLE = """
import json, pathlib, shutil, signal, sys, time
here = pathlib.Path(sys.argv[1])
assert sys.argv[2:5] == ["models", "convert", "demo"], sys.argv
assert sys.argv[5:] == ["--weight-dtype", "int8", "--json"], sys.argv
signal.signal(signal.SIGTERM, signal.default_int_handler)
part = here / "models" / ".demo-int8.part"
while (here / "wait").exists():
    time.sleep(0.01)
try:
    part.mkdir(parents=True)
    (part / "weights").write_bytes(bytes(1000))
    print(json.dumps({"model": "demo-int8", "done_bytes": 4_000_000, "total_bytes": 16_000_000}), flush=True)
    while not (here / "go").exists():
        time.sleep(0.01)
    words = (here / "go").read_text()
    if words:
        sys.stderr.write(words)
        sys.exit(1)
    part.rename(here / "models" / "demo-int8")
    print(json.dumps({"model": "demo-int8", "state": "converted"}), flush=True)
finally:
    shutil.rmtree(part, ignore_errors=True)
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder of the test's own, with a double of the command that converts."""
    folder = tmp_path / "data"
    monkeypatch.setattr(ADDED_MODELS, "file", folder / "models.json")
    script = tmp_path / "double.py"
    script.write_text(DOUBLE, encoding="utf-8")
    command = (sys.executable, str(script), str(folder))
    monkeypatch.setattr(process, "module_command", lambda module, environ: (command, dict(environ)))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    folder.mkdir()
    return folder


@pytest.fixture
def calls(tmp_path: Path, data: Path) -> Iterator[ModelCalls]:
    service = JobService(tmp_path / "outputs", StagedEngine())
    service.start()
    yield ModelCalls(service, Catalogue())
    service.stop()


def shown(calls: ModelCalls, name: str = "demo") -> dict[str, Any]:
    return next(one for one in calls.models_list()["models"] if one["model"] == name)


def leftovers(data: Path) -> list[str]:
    return [file.name for file in (data / "models").iterdir()]


def test_the_offer_tells_size_place_and_free_space(
    calls: ModelCalls, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=2**40)
    monkeypatch.setattr(present.shutil, "disk_usage", lambda _: free)
    offer = calls.models_copy("demo", "int8")
    assert (offer["name"], offer["refusal"]) == ("demo-int8", "")
    whole, small = (transformer_in(DEMO, dtype).file_bytes for dtype in ("bf16", "int8"))
    assert whole / 2 < small < whole
    assert present.size_text(small) in offer["words"]
    assert "1024 GB are free" in offer["words"]
    assert str(tmp_path) not in offer["words"]
    free.free = 2**10
    assert "Free some space" in calls.models_copy("demo", "int8")["refusal"]
    with pytest.raises(InputError, match="Free some space"):
        calls.models_convert("demo", "int8")
    free.free = 2**40
    assert "needs a type of its own" in calls.models_copy("demo", "auto")["refusal"]
    with pytest.raises(InputError, match="weight_dtype is 'fp4'"):
        calls.models_copy("demo", "fp4")
    assert "not completely on this machine" in calls.models_copy("framepack-i2v", "int8")["refusal"]
    part = AddedComponent(DEMO.components["transformer"].location)
    ADDED_MODELS.add(AddedModel("demo-int8", "Mine", "demo", {"transformer": part}))
    assert calls.models_copy("demo", "int8")["refusal"] == "There is already a model demo-int8."
    assert not (data / "models").exists()


def test_a_conversion_is_told_and_a_cancel_leaves_nothing(calls: ModelCalls, data: Path) -> None:
    calls.models_convert("demo", "int8")
    wait_until(lambda: shown(calls)["progress"]["total_bytes"] == 16_000_000)
    assert shown(calls)["state"] == "converting"
    assert shown(calls)["progress"]["percent"] == 25
    assert leftovers(data) == [".demo-int8.part"]
    assert calls.models_cancel("demo")["state"] == "complete"
    assert leftovers(data) == []
    assert shown(calls)["progress"]["message"] == ""
    calls.models_convert("demo", "int8")
    (data / "go").write_text("", encoding="utf-8")
    wait_until(lambda: shown(calls)["state"] == "complete")
    assert leftovers(data) == ["demo-int8"]


def test_a_failure_is_told_until_it_is_dismissed(calls: ModelCalls, data: Path) -> None:
    (data / "go").write_text("The disk is full. Free some space.\n", encoding="utf-8")
    calls.models_convert("demo", "int8")
    wait_until(lambda: shown(calls)["state"] == "complete")
    assert shown(calls)["progress"]["message"] == "It was not converted. The disk is full. Free some space."
    calls.models_cancel("demo")
    assert shown(calls)["progress"]["message"] == ""

"""Tests in Chromium of LoRAs: a user chooses them from the folder, and the page never learns a path."""

import json
from pathlib import Path

import pytest
from diffusers import HunyuanVideoFramepackTransformer3DModel
from gradio_client import Client, handle_file

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.endpoints import FormCalls
from diffusers_helper.lora_choice import MAX_LORAS
from diffusers_helper.models.registry import find_model
from tests.support.loras import write_lora
from tests.support.pages import Stand, needs_chromium
from tests.support.tiny_model import tiny_transformer

pytestmark = needs_chromium


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a LoRA, one in a folder of its own, and a web page with the name of one."""
    demo = find_model("demo").components["transformer"].location
    folder, network = tmp_path / "mine", HunyuanVideoFramepackTransformer3DModel.from_pretrained(demo)
    called = {"modelspec.trigger_phrase": "red <b>balloon"}
    write_lora(folder / "balloon.safetensors", network, "kohya", alpha=1, metadata=called)
    write_lora(folder / "styles" / "soft.safetensors", network, "original")
    write_lora(folder / "tiny.safetensors", tiny_transformer())
    (folder / "login.safetensors").write_text("<!doctype html><title>Sign in</title>")
    (tmp_path / "secret.safetensors").write_bytes((folder / "balloon.safetensors").read_bytes())
    monkeypatch.setenv("LONGTAKE_LORAS", str(folder))
    return folder


def test_a_choice_keeps_the_others_their_checksums_and_their_order() -> None:
    choose, pinned = FormCalls(JobService(Path("unused")), Catalogue()).lora_choose, f"sha256:{'ab' * 32}"
    assert choose("", "a.safetensors", 1) == "a.safetensors:1"
    assert choose(f"b:0.5 {pinned}\na", "b", -0.75) == f"b:-0.75 {pinned}\na:1"
    assert choose("b:0.5\na:2\nc", "a", None) == "b:0.5\nc:1"
    assert choose("b:0.5", "a", None) == "b:0.5"
    assert choose("b:99", "a", 99.0) == "b:99\na:10"  # what cannot be used stays, for the plan to refuse
    many = "\n".join(f"{number}:1" for number in range(MAX_LORAS + 1))
    assert choose(many, "a", -99.0) == f"{many}\na:-10"


def test_a_programs_lora_is_a_name_in_the_folder(
    stand: Stand, folder: Path, photo: Path, tmp_path: Path
) -> None:
    client = Client(stand.url, verbose=False)
    found = client.predict(api_name="/lora_list")
    assert found["folder"] == "mine"
    assert [(one["name"], one["triggers"], bool(one["problem"])) for one in found["files"]] == [
        ("balloon.safetensors", ["red <b>balloon"], False),
        ("login.safetensors", [], True),
        ("styles/soft.safetensors", [], False),
        ("tiny.safetensors", [], False),
    ]
    order = {"image": handle_file(photo), "prompt": "a red ball", "seconds": 1.0}
    made = client.predict(**order, lora="soft:0.5", api_name="/jobs_add")
    assert stand.service.job(made["id"]).request.lora == f"{folder}/styles/soft.safetensors:0.5"
    assert made["request"]["lora"] == "styles/soft.safetensors:0.5"
    shown = client.predict(made["id"], api_name="/jobs_show")
    for answer in (found, made, shown):
        assert str(tmp_path) not in json.dumps(answer)
    for name in (f"{tmp_path}/secret.safetensors", "../secret", f"{folder}/balloon.safetensors", "none"):
        with pytest.raises(Exception, match="is not in the folder for LoRAs"):
            client.predict(**order, lora=name, api_name="/jobs_add")
        with pytest.raises(Exception, match="is not in the folder for LoRAs"):
            client.predict(made["id"], {"lora": name}, api_name="/jobs_edit")
    for name, words in (("login", "is a web page"), ("tiny", r"fits this model with 0 of its \d+ keys")):
        with pytest.raises(Exception, match=words):
            client.predict(**order, lora=name, api_name="/jobs_add")
    assert len(stand.service.jobs()) == 1

"""Tests in Chromium of LoRAs: a user chooses them from the folder, and the page never learns a path."""

import json
from pathlib import Path
from typing import Any

import pytest
from diffusers import HunyuanVideoFramepackTransformer3DModel
from gradio_client import Client, handle_file

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.endpoints import FormCalls
from diffusers_helper.lora_choice import MAX_LORAS
from diffusers_helper.models.registry import find_model
from tests.app.ui.test_accessibility import violations
from tests.app.ui.test_page_form import kept
from tests.app.ui.test_page_restore import drop
from tests.support.jobs import wait_until
from tests.support.loras import write_lora
from tests.support.pages import Stand, needs_chromium, open_folds, start
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


def test_files_are_chosen_by_buttons_too(page: Any, stand: Stand, folder: Path, tmp_path: Path) -> None:
    open_folds(page)
    (folder / "balloon.safetensors").rename(tmp_path / "balloon.safetensors")
    (tmp_path / "lines.csv").write_text("prompt,seconds\na ball,1\na ring,1\n")
    for button, file in (("Add a file…", "balloon.safetensors"), ("Batch from a file…", "lines.csv")):
        with page.expect_file_chooser() as chooser:
            page.locator("#form").get_by_role("button", name=button).click()
        chooser.value.set_files(tmp_path / file)
        if file == "balloon.safetensors":
            page.wait_for_selector('#fold-look > summary[data-state$=" · 1 LoRA"]')
    page.wait_for_selector(".lt-row")
    assert {job.request.prompt for job in stand.service.jobs()} == {"a ball", "a ring"}
    assert (folder / "balloon.safetensors").is_file()


def test_a_user_chooses_loras_from_the_folder(page: Any, stand: Stand, folder: Path, photo: Path) -> None:
    open_folds(page)
    balloon = page.get_by_role("checkbox", name="balloon")
    balloon.check()
    weight = page.get_by_role("spinbutton", name="Weight of balloon")
    weight.fill("0.6")
    weight.press("Tab")
    page.get_by_role("checkbox", name="styles/soft").check()
    page.wait_for_selector('#fold-look > summary[data-state$=" · 2 LoRAs"]')
    assert page.get_by_role("checkbox", name="login").is_disabled()
    page.get_by_text('login.safetensors is a web page ("Sign in"), not weights').wait_for()
    assert not violations(page)
    start(page, photo, seconds=1)
    page.get_by_role("button", name="Add “red <b>balloon” to the prompt").click()
    page.wait_for_function(
        "document.querySelector('#set-prompt textarea').value.endsWith(', red <b>balloon')"
    )
    wait_until(stand.service.jobs)
    (job,) = stand.service.jobs()
    expected = f"{folder}/balloon.safetensors:0.6\n{folder}/styles/soft.safetensors:1"
    assert job.request.lora == expected
    restored = Client(stand.url, verbose=False).predict(job.id, api_name="/history_settings")["text"]
    assert json.loads(restored)["settings"]["lora"] == "balloon.safetensors:0.6\nstyles/soft.safetensors:1"
    assert str(folder) not in restored
    # The choice survives a reload, in a closed fold too, and a wrong number becomes a possible one.
    kept(page, "balloon.safetensors:0.6")
    page.reload()
    page.wait_for_selector('#fold-look > summary[data-state$=" · 2 LoRAs"]')
    open_folds(page)
    page.get_by_role("checkbox", name="balloon", checked=True).wait_for()
    assert weight.input_value() == "0.6"
    weight.fill("99")
    weight.press("Tab")
    page.wait_for_function("document.querySelector('[name=lora]').value.startsWith('balloon.safetensors:10')")
    page.get_by_role("checkbox", name="styles/soft").uncheck()
    page.wait_for_selector('#fold-look > summary[data-state$=" · 1 LoRA"]')
    page.get_by_role("button", name="Reset to defaults").click()
    page.wait_for_function("document.querySelector('[name=lora]').value === ''")
    page.get_by_role("checkbox", name="balloon", checked=False).wait_for()


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


def test_a_lora_that_is_dropped_is_copied_to_the_folder_and_chosen(
    page: Any, folder: Path, tmp_path: Path
) -> None:
    content = (tmp_path / "secret.safetensors").read_bytes()
    drop(page, content, "new.safetensors", "application/octet-stream")
    page.get_by_role("button", name="Leave out: LoRA: new.safetensors").wait_for()
    assert (folder / "new.safetensors").read_bytes() == content
    assert page.locator("[name=lora]").input_value() == "new.safetensors:1"
    other = (folder / "tiny.safetensors").read_bytes()
    drop(page, other, "new.safetensors", "application/octet-stream")
    page.get_by_role("alert").get_by_text("has another file named new.safetensors").wait_for()
    assert (folder / "new.safetensors").read_bytes() == content
    drop(page, b"<!doctype html>", "page.safetensors", "application/octet-stream")
    page.get_by_role("alert").get_by_text("page.safetensors").wait_for()
    assert not (folder / "page.safetensors").exists()

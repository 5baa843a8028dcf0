"""Tests of the calls, as the page and as programs make them: what is refused unread, and errors."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.web.guard import MAX_MESSAGE_BYTES
from diffusers_helper.request import FINISHING, SETTINGS
from tests.support.asking import Answer, ask
from tests.support.jobs import ROOT, wait_until
from tests.support.pages import Stand, staged_page

HEADERS = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("stand") / "named place"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        with staged_page(folder) as stand:
            yield stand


@pytest.fixture(scope="module")
def endpoints(stand: Stand) -> dict[str, list[str]]:
    info = json.loads(ask(stand.url, "/gradio_api/info").body)["named_endpoints"]
    return {
        name.strip("/"): [parameter["parameter_name"] for parameter in facts["parameters"]]
        for name, facts in info.items()
    }


def post(stand: Stand, path: str, message: object) -> Answer:
    body = (message if isinstance(message, str) else json.dumps(message)).encode()
    return ask(stand.url, path, method="POST", headers=HEADERS, body=body)


def call(stand: Stand, path: str, message: object) -> Answer:
    return post(stand, f"/gradio_api/{path}", message)


def refusal(answer: Answer) -> str:
    assert answer.status == 400, answer.text
    assert "Traceback" not in answer.text
    told = json.loads(answer.body)
    if "code" in told:
        assert told.keys() == {"code", "message", "remedy", "setting"}
        return f"{told['message']} {told['remedy']}".strip()
    return told["error"]


def test_no_web_socket_is_opened(stand: Stand) -> None:
    handshake = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    for path in ("/", "/gradio_api/queue/join", "/jobs/x/video.mp4"):
        assert ask(stand.url, path, headers=handshake).status != 101


NONE = "There is no endpoint of this name with these arguments. Compare them with /gradio_api/info."


@pytest.mark.parametrize(
    ("path", "message", "sentence"),
    [
        ("run/jobs_queue", {}, "data is missing. Pass data."),
        ("run/jobs_queue", [], "the message is []; expected a valid dictionary"),
        ("run/jobs_queue", {"data": "x"}, "data is 'x'; expected a valid list. Correct data."),
        ("run/jobs_queue", {"data": []}, "first is missing. Pass first."),
        ("api/jobs_branch", {"data": ["x", 2**63]}, "longer is missing. Pass longer."),
        ("run/generate", {"data": []}, "image is missing. Pass image."),
        ("run/generate", {"data": [None] * 60}, "prompt is None; expected text. Give prompt as text."),
        ("run/nothing", {"data": []}, NONE),
        ("run/jobs_hold", {"data": [], "fn_index": 2**63}, NONE),
        ("call/nothing", {"data": []}, NONE),
        ("call/v2/nothing", {}, NONE),
        ("call/v2/jobs_show", {}, NONE),
        ("call/v2/jobs_show", {"job": "x", "nonsense": 1}, NONE),
        ("queue/join", {"data": [], "session_hash": "x"}, "No function index provided."),
        ("queue/join", {"data": [], "fn_index": -1, "session_hash": "x"}, NONE),
        ("queue/join", {"data": [], "fn_index": 3, "session_hash": 7}, "session_hash is 7; expected a valid"),
        ("cancel", {}, "session_hash is missing."),
        ("reset", {"event_id": 2**63}, "event_id is 9223372036854775808; expected a valid string."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_call_of_a_program_that_fits_no_endpoint_is_refused_in_words(
    stand: Stand, path: str, message: object, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert refusal(call(stand, path, message)).startswith(sentence)
    assert capfd.readouterr().err == ""


def test_a_queued_call_that_fits_no_endpoint_is_refused_in_words(stand: Stand) -> None:
    for message in {"data": []}, {"data": [None] * 60}:
        event = json.loads(call(stand, "call/generate", message).body)["event_id"]
        result = ask(stand.url, f"/gradio_api/call/generate/{event}").text
        assert re.search(r'event: error\ndata: {"error": "(image is missing|prompt is None)', result), result


def test_a_mistake_of_the_server_is_answered_in_words_and_described_in_its_log(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(stand.outputs)

    monkeypatch.setattr(stand.service.queue, "jobs", fail)
    answer = post(stand, "/api/jobs_queue", {})
    assert answer.status == 500
    assert json.loads(answer.body) == {
        "code": "error",
        "message": "The server has made a mistake (ZeroDivisionError), which its log describes.",
        "remedy": "Try something else, and report it.",
        "setting": "",
    }
    wait_until(lambda: "ZeroDivisionError" in caplog.text)


def test_each_error_of_the_page_s_calls_has_one_shape(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(answer: Answer, status: int) -> str:
        assert answer.status == status, answer.text
        facts = json.loads(answer.body)
        assert facts.keys() == {"code", "message", "remedy", "setting"}
        return facts["message"]

    assert told(post(stand, "/api/history_open", {"job": "nothing"}), 404).startswith(
        "There is no job 'nothing'"
    )
    assert told(ask(stand.url, "/api/nothing"), 404) == "Not Found."
    assert told(post(stand, "/api/jobs_queue", {"first": "x"}), 400).startswith(
        "first is 'x'; expected a valid integer"
    )
    assert told(ask(stand.url, "/api/jobs_queue", headers={"Origin": "http://evil.example"}), 403)
    assert told(post(stand, "/api/jobs_pause", "x" * (MAX_MESSAGE_BYTES + 1)), 413)
    monkeypatch.setattr(stand.service.queue, "jobs", cannot_be_read(stand.outputs / "x"))
    assert told(post(stand, "/api/jobs_queue", {}), 500).endswith("cannot be used now (Permission denied).")


def test_programs_find_the_documented_endpoints_and_no_others(endpoints: dict[str, list[str]]) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `/")]
    documented = {
        name: re.findall(r"`(\w+)[=`]", arguments)
        for names, arguments in rows
        for name in re.findall(r"`/(\w+)`", names)
    }
    names = [name for name in SETTINGS if name not in FINISHING]
    settings = {name: [*names, "wait"] for name in ("generate", "jobs_add")}
    assert documented | settings == endpoints


def test_a_result_can_be_read_in_each_way_to_call(stand: Stand) -> None:
    for way, message in (("call", {"data": ["nothing"]}), ("call/v2", {"job": "nothing"})):
        event = json.loads(call(stand, f"{way}/jobs_show", message).body)["event_id"]
        result = ask(stand.url, f"/gradio_api/{way}/jobs_show/{event}").text
        assert "event: error" in result
        assert "There is no job 'nothing'" in result


@pytest.mark.parametrize("name", ["../../victim", "/x", "x" * 300, "a/b"])
def test_a_download_is_named_by_a_model_and_never_by_a_path(stand: Stand, name: str) -> None:
    victim = stand.outputs / "victim.json"
    victim.write_text("kept")
    (stand.outputs / ".longtake" / "downloads").mkdir(parents=True, exist_ok=True)
    for verb in ("cancel", "pause", "get", "verify", "remove"):
        assert "expected one of demo" in refusal(call(stand, f"run/models_{verb}", {"data": [name]}))
        assert "expected one of demo" in refusal(post(stand, f"/api/models_{verb}", {"model": name}))
    assert victim.read_text() == "kept"


def test_trouble_with_a_folder_names_no_path(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    place = stand.outputs.parent
    (place / "config").write_text("no folder")
    sentence = "The preset cannot be written to $XDG_CONFIG_HOME/longtake/presets (Not a dir"
    message = {"name": "x", "form": '{"steps": 5}'}
    assert refusal(post(stand, "/api/preset_save", message)).startswith(sentence)
    assert refusal(call(stand, "run/preset_save", {"data": [*message.values()]})).startswith(sentence)
    monkeypatch.setattr(stand.service.history, "transitions", cannot_be_read(stand.outputs / "x"))
    stand.outputs.rename(place / "moved")
    try:
        for name, data in (("jobs_hold", []), ("jobs_list", [""] + [None] * 7), ("models_list", [])):
            text = call(stand, f"run/{name}", {"data": data}).text
            assert str(place) not in text
            assert "named place" not in text
        for name in ("jobs_queue", "history_search", "models_list", "jobs_scene", "lora_list"):
            text = post(stand, f"/api/{name}", {"job": "x"}).text
            assert str(place) not in text
            assert "named place" not in text
    finally:
        (place / "moved").rename(stand.outputs)


def cannot_be_read(path: Path) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    return fail


def form(file: str) -> bytes:
    head = f'--B\r\nContent-Disposition: form-data; name="files"{file}\r\n\r\n'
    return f"{head}x\r\n--B--\r\n".encode()


def test_an_upload_that_cannot_be_stored_is_answered(stand: Stand) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}

    def upload(body: bytes) -> Answer:
        return ask(stand.url, "/gradio_api/upload", method="POST", headers=headers, body=body)

    assert upload(form('; filename="a.png"')).status == 200
    cache = stand.outputs.parent / "cache"
    cache.rename(cache.with_name("away"))
    cache.write_text("no folder")
    try:
        answer = upload(form('; filename="a.png"'))
    finally:
        cache.unlink()
        cache.with_name("away").rename(cache)
    assert answer.status == 507
    assert (
        answer.text == "The upload cannot be stored now. Free some space on the disk, or try again later.\n"
    )

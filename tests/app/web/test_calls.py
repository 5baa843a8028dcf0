"""Tests of the messages that are refused before gradio reads them, at all endpoints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import Answer, ask
from tests.support.pages import Stand, staged_page

DEEP = f'{{"job": {"[" * 600}{"]" * 600}}}'
HEADERS = {"Content-Type": "application/json"}
WAYS = ("run", "api", "call", "call/v2")


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
    """Return the names of the parameters of each endpoint."""
    info = json.loads(ask(stand.url, "/gradio_api/info").body)["named_endpoints"]
    return {
        name.strip("/"): [one["parameter_name"] for one in facts["parameters"]]
        for name, facts in info.items()
    }


def post(stand: Stand, path: str, message: object) -> Answer:
    """Send a message; text is sent as it is."""
    body = (message if isinstance(message, str) else json.dumps(message)).encode()
    return ask(stand.url, f"/gradio_api/{path}", method="POST", headers=HEADERS, body=body)


def refusal(answer: Answer) -> str:
    """Return the sentences of a refusal, which page and programs find under different names."""
    assert answer.status == 400, answer.text
    reported = json.loads(answer.body)
    assert reported["error"] == reported["detail"]
    assert "Traceback" not in answer.text
    return reported["error"]


def message_with(way: str, names: list[str], value: object) -> dict[str, Any]:
    return dict.fromkeys(names, value) if way == "call/v2" else {"data": [value] * len(names)}


@pytest.mark.parametrize(
    "value", ["\ud800", "a\0b", ["x", "\udfff"], {"a": {"\0": 1}}, {"\ud800": 1}], ids=ascii
)
def test_text_that_is_not_whole_is_refused_everywhere(
    stand: Stand, endpoints: dict[str, list[str]], value: object
) -> None:
    assert len(endpoints) > 40
    for name, parameters in endpoints.items():
        for way in WAYS if parameters else ():
            reported = refusal(post(stand, f"{way}/{name}", message_with(way, parameters, value)))
            assert reported.startswith("The message is not JSON with whole characters and finite numbers")
            assert reported.isprintable()
    for path in ("queue/join", "cancel", "reset"):
        message = {"data": [value], "fn_index": 0, "session_hash": "x", "event_id": "x"}
        assert "whole characters" in refusal(post(stand, path, message))
    for field in ("session_hash", "event_id", "trigger_id", "event_data"):
        message = {"data": [], "fn_index": 0, "session_hash": "x", field: value}
        assert "whole characters" in refusal(post(stand, "queue/join", message))
    assert not stand.service.jobs()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(stand: Stand, number: str) -> None:
    for path in ("run/jobs_queue", "call/jobs_queue", "queue/join"):
        reported = refusal(post(stand, path, f'{{"data": [{number}, 1], "fn_index": 0}}'))
        assert reported.startswith("The message is not JSON with whole characters and finite numbers")


@pytest.mark.parametrize("text", ["", "{", "\xff", "[" * 5000, DEEP, "nan", '{"data": [1]'])
def test_what_is_not_json_is_refused(stand: Stand, text: str) -> None:
    for path in ("run/jobs_list", "call/generate", "call/v2/generate", "queue/join", "cancel"):
        assert refusal(post(stand, path, text)).startswith("The message is not JSON")


def test_too_few_and_too_many_arguments_are_refused(stand: Stand, endpoints: dict[str, list[str]]) -> None:
    for name, parameters in endpoints.items():
        for way in WAYS[:3]:
            for values in ([None] * (len(parameters) + 1), [None] * (len(parameters) - 1)):
                if len(values) != len(parameters):
                    reported = refusal(post(stand, f"{way}/{name}", {"data": values}))
                    assert f"data has {len(values)} values; {name} takes {len(parameters)}." in reported
            assert "expected a list of arguments" in refusal(post(stand, f"{way}/{name}", {"data": "x"}))
        reported = refusal(post(stand, f"call/v2/{name}", {"surely_not": 1}))
        assert reported.startswith(f"{name} cannot be called (")
        assert "surely_not" in reported or "missing a required argument" in reported
    assert "(missing a required argument: 'job'); expected job." in refusal(
        post(stand, "call/v2/jobs_show", {})
    )


@pytest.mark.parametrize("number", [-1, 10**6, 10**400, 1.5, "x", True, [], None])
def test_a_function_that_does_not_exist_is_refused(stand: Stand, number: object) -> None:
    message = {"data": [], "fn_index": number, "session_hash": "x"}
    assert "expected the number of a function" in refusal(post(stand, "queue/join", message))
    for way in WAYS:
        assert "There is no endpoint 'nothing'" in refusal(post(stand, f"{way}/nothing", {"data": []}))


def test_a_refusal_of_an_endpoint_is_no_failure_of_the_server(stand: Stand) -> None:
    answer = post(stand, "run/jobs_show", {"data": ["nothing"]})
    assert answer.status == 400
    assert json.loads(answer.body)["error"].startswith("There is no job 'nothing' in this outputs folder.")
    assert post(stand, "run/jobs_hold", {"data": []}).status == 200
    assert post(stand, "run/jobs_go_on", {"data": []}).status == 200


def test_a_result_can_be_read_in_each_way_to_call(stand: Stand) -> None:
    for way, message in (("call", {"data": ["nothing"]}), ("call/v2", {"job": "nothing"})):
        event = json.loads(post(stand, f"{way}/jobs_show", message).body)["event_id"]
        result = ask(stand.url, f"/gradio_api/{way}/jobs_show/{event}").text
        assert "event: error" in result
        assert "There is no job 'nothing'" in result


@pytest.mark.parametrize("name", ["../../victim", "/x", "x" * 300, "a/b"])
def test_a_download_is_named_by_a_model_and_never_by_a_path(stand: Stand, name: str) -> None:
    victim = stand.outputs / "victim.json"
    victim.write_text("kept")
    (stand.outputs / ".longtake" / "downloads").mkdir(parents=True, exist_ok=True)
    for endpoint in ("models_cancel", "models_pause", "models_get", "models_verify", "models_remove"):
        answer = post(stand, f"run/{endpoint}", {"data": [name]})
        assert answer.status == 400
        assert "expected one of demo" in json.loads(answer.body)["error"]
    assert victim.read_text() == "kept"


def test_trouble_with_a_folder_names_no_path(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    place = stand.outputs.parent
    (place / "config").write_text("no folder")
    answer = post(stand, "run/preset_save", {"data": ["x", '{"steps": 5}']})
    assert answer.status == 400
    reported = json.loads(answer.body)["error"]
    assert reported.startswith("The preset cannot be written to $XDG_CONFIG_HOME/longtake/presets (Not a dir")
    monkeypatch.setattr(stand.service.history, "transitions", cannot_be_read(stand.outputs / "x"))
    stand.outputs.rename(place / "moved")
    try:
        for name, data in (("jobs_hold", []), ("jobs_list", [""] + [None] * 7), ("models_list", [])):
            text = post(stand, f"run/{name}", {"data": data}).text
            assert str(place) not in text
            assert "named place" not in text
    finally:
        (place / "moved").rename(stand.outputs)


def cannot_be_read(path: Path) -> Any:
    def fail(_: object) -> None:
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


@pytest.mark.parametrize("path", ["/scripts/%00", f"/scripts/{'x' * 300}", f"/jobs/{'é' * 200}/video.mp4"])
def test_a_name_that_no_file_can_have_is_not_found(stand: Stand, path: str) -> None:
    assert ask(stand.url, path.replace("é", "%C3%A9")).status == 404


def test_names_of_arguments_are_those_of_the_function(endpoints: dict[str, list[str]]) -> None:
    from app.ui.calls.jobs import JobCalls

    assert list(inspect.signature(JobCalls.jobs_list).parameters)[1:] == endpoints["jobs_list"]

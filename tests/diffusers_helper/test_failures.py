"""Tests of what a user reads when a job cannot go on."""

from pathlib import Path

import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event, Failed, from_dict
from diffusers_helper.failures import MAX_DETAIL, failed_event
from diffusers_helper.request import GenerationRequest
from diffusers_helper.runner import Runner
from tests.support.jobs import asked_in


def test_the_detail_is_the_end_of_the_traceback() -> None:
    try:
        raise ValueError("x" * 2 * MAX_DETAIL + " the end")
    except ValueError as error:
        event = failed_event(error, "a")
    assert len(event.detail) == MAX_DETAIL
    assert event.detail.endswith("the end\n")
    assert len(event.message) < 400


def test_a_failure_of_version_0_1_is_readable() -> None:
    old = {"event": "failed", "job": "a", "time": 1.0, "message": "It broke.", "remedy": "", "code": "error"}
    assert from_dict(old) == Failed(job="a", time=1.0, message="It broke.", remedy="")


@pytest.mark.parametrize("content", [None, "[]", "{", '{"prompt": 5}'])
def test_a_job_whose_request_cannot_be_read_fails_in_words(tmp_path: Path, content: str | None) -> None:
    events: list[Event] = []
    if content is not None:
        (tmp_path / "request.json").write_text(content)
    Runner().run(tmp_path, events.append, CancelToken())
    (end,) = events
    assert isinstance(end, Failed)
    assert (end.code, end.remedy) == ("bad_input", "Put the file back as it was, or remove the job.")
    assert end.message.startswith("request.json cannot be used: ")


@pytest.mark.slow
def test_a_failed_download_is_logged_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(*_: object, **__: object) -> None:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    monkeypatch.setattr("diffusers_helper.runner.load_models", load)
    events: list[Event] = []
    request = GenerationRequest(image="photo.png")
    Runner().run(asked_in(tmp_path / "job", request), events.append, CancelToken())
    (end,) = events
    assert isinstance(end, Failed)
    assert end.code == "download"
    assert "Unset ALL_PROXY" in end.remedy
    (record,) = (record for record in caplog.records if record.name == "diffusers_helper.runner")
    assert end.message in record.getMessage()
    assert not record.exc_info

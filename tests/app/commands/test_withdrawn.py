"""Tests that what was asked of a job that is being made is withdrawn by the command line, and asked again."""

from pathlib import Path

import pytest

from app.cli import main
from tests.support.shared import Sharing


def test_a_pause_is_withdrawn_as_often_as_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sharing = Sharing(tmp_path)
    service = sharing.open(start=False)
    job = sharing.add(service)
    service.queue.store.adopts = True
    assert service.queue.store.claim(lambda job: "card")  # as a program whose engine is busy

    def code(verb: str) -> int:
        return main(["jobs", verb, job.id, "--outputs", str(sharing.outputs)])

    for _ in range(2):
        assert code("pause") == code("pause") == 0
        assert service.queue.store.commands(job.id) == {"pause"}
        assert code("resume") == 0
        assert not service.queue.store.commands(job.id)
        assert "expected one that" not in capsys.readouterr().err
        assert code("resume") == 1
        assert f"Job {job.id} is running; expected one that is" in capsys.readouterr().err
    assert code("cancel") == 0
    assert code("resume") == 1  # an end is not withdrawn
    assert service.queue.store.commands(job.id) == {"cancel"}

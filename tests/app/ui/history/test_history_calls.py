"""Tests of the endpoints of the History tab, without a browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job, NoSuchJob
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.history.endpoints import HistoryCalls
from app.ui.pictures import Upload, uploaded
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import wait_until
from tests.support.shared import Sharing
from tests.support.staged_engine import FAILING_PROMPT


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    sharing = Sharing(tmp_path)
    yield sharing
    sharing.close()


@pytest.fixture
def service(sharing: Sharing) -> JobService:
    service = sharing.open()
    sharing.go(service)
    return service


@pytest.fixture
def calls(service: JobService) -> HistoryCalls:
    return HistoryCalls(service, Catalogue())


def made(sharing: Sharing, service: JobService, prompt: str = "a ball", **settings: object) -> Job:
    job = sharing.add(service, prompt, **settings)
    wait_until(lambda: service.job(job.id).is_over)
    return service.job(job.id)


def names(found: dict[str, Any]) -> list[str]:
    return [card["words"] for card in found["cards"]]


def test_cards_have_addresses_and_no_paths(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    job = made(sharing, service, "x" * 400, seconds=3.6)
    waiting = sharing.add(service, "not yet")
    wait_until(lambda: service.job(waiting.id).is_over)
    found = calls.history_search(limit=1)
    assert (names(found), found["total"]) == (["not yet"], 2)
    assert (found["say"], found["none"]) == ("2 videos", "")
    assert calls.history_search("zebra")["none"] == "No video matches this search."
    (card,) = calls.history_search(before=found["next"])["cards"]
    assert card == {
        "job": job.id, "state": "finished", "sentence": "", "percent": 100.0,
        "actions": ["remove", "duplicate", "branch"], "words": "x" * 300, "seed": "31337",
        "length": "3.63 s",
        "created": job.created, "model": "Longtake demo model", "favourite": False,
        "newest": job.created, "root": "", "versions": 1, "bytes": (job.folder / "video.mp4").stat().st_size,
        # The last section of an inverted video is its beginning.
        "still": f"jobs/{job.id}/thumbs/0003.webp", "video": f"jobs/{job.id}/video.mp4?v=109",
    }  # fmt: skip
    forward = made(sharing, service, mode="forward", seconds=3.6)
    (card, *_) = calls.history_search()["cards"]
    assert card["still"] == f"jobs/{forward.id}/thumbs/0001.webp"
    branch = calls.history_open(forward.id)["branch"]
    assert branch["keptByLonger"] == "Adds time after the end; the video stays."
    for seconds, num_kept in {1.2: 0, 2.4: 1}.items():
        branch = calls.history_open(made(sharing, service, seconds=seconds).id)["branch"]
        assert (len(branch["kept"]), not branch["whyNotLonger"]) == (num_kept, num_kept > 0)


def test_a_video_without_a_section_has_no_length(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    job = made(sharing, service, FAILING_PROMPT)
    assert job.state == "failed"
    assert calls.history_search()["cards"][0]["length"] == ""


def test_a_model_is_known_by_its_title(sharing: Sharing, service: JobService, calls: HistoryCalls) -> None:
    made(sharing, service)
    assert calls.history_search()["models"] == ["Longtake demo model"]
    assert len(calls.history_search(model="Longtake demo model")["cards"]) == 1
    assert calls.history_search(model="Another")["cards"] == []
    with pytest.raises(InputError, match="is not a state"):
        calls.history_search(states=["lost"])


def test_a_tree_is_found_from_all_ends_also_in_a_new_index(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    parent = made(sharing, service, seconds=3.6)
    child = service.queue.branch(parent.id, 2, prompt="another end")
    other = service.queue.branch(parent.id, 1)
    wait_until(lambda: service.job(other.id).is_over)
    service.queue.rebuild()
    reported = calls.history_open(parent.id)
    rows = reported["tree"]["rows"]
    assert [(row["job"], row["parent"], row["begin"]) for row in rows] == [
        (parent.id, 0, 1), (child.id, 0, 3), (other.id, 0, 2),
    ]  # fmt: skip
    assert [row["isOpened"] for row in rows] == [True, False, False]
    assert [len(row["cells"]) for row in rows] == [3, 1, 2]  # none twice
    assert rows[1]["words"].endswith("another end")
    assert f"from section 2 of seed {parent.request.seed}" in rows[1]["spoken"]
    assert (reported["tree"]["columns"], reported["tree"]["isInverted"]) == (3, True)
    assert [row["job"] for row in calls.history_open(other.id)["tree"]["rows"]] == [
        parent.id, child.id, other.id,
    ]  # fmt: skip
    assert len(reported["branch"]["kept"]) == 2
    assert reported["branch"]["longer"] == pytest.approx(116.4)
    # The section that was taken over has its picture, although no event told of it.
    lines = JobFolder(child.folder).events.read_text().splitlines()
    unreported = [line for line in lines if json.loads(line).get("thumbnail", "").find("0001") < 0]
    JobFolder(child.folder).events.write_text("\n".join(unreported) + "\n")
    thumbs = {cell["number"]: cell["thumb"] for cell in calls.history_open(child.id)["cells"]}
    assert thumbs[1] == f"jobs/{child.id}/thumbs/0001.webp"
    service.queue.remove(parent.id)
    assert calls.history_open(child.id)["tree"] is None
    with pytest.raises(NoSuchJob):
        calls.history_open(parent.id)


def test_an_opened_video_tells_its_files_and_states(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    job = made(sharing, service)
    reported = calls.history_open(job.id)
    assert [one["state"] for one in reported["states"]] == ["queued", "running", "finished"]
    assert {file["name"]: file["url"] for file in reported["files"]} == {
        "input.png": f"jobs/{job.id}/input.png", "video.mp4": f"jobs/{job.id}/video.mp4",
        "latents, segments and records": None,
    }  # fmt: skip
    assert str(sharing.outputs) not in json.dumps(reported)
    assert reported["branch"]["kept"] == []  # an inverted video of one section begins with the picture


def test_the_settings_of_a_video_come_with_its_picture(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    job = made(sharing, service, seed=2**62 + 1)
    reported = calls.history_settings(job.id)
    picture = uploaded(Upload(path=reported["pictures"]["image"]))
    assert Path(picture).read_bytes() == JobFolder(job.folder).input.read_bytes()
    settings = json.loads(reported["text"])["settings"]
    assert (settings["seed"], settings["prompt"], settings["model"]) == (2**62 + 1, "a ball", "demo")
    assert "image" not in settings

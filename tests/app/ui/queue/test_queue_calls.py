"""Tests of the calls of the queue over the real server, with an engine that waits for the test."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from app.cli import main
from app.jobs.service import JobService
from app.jobs.storage.commands import commands_of
from app.ui.catalogue import Catalogue
from app.ui.history.endpoints import card
from app.ui.queue.records import Records
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.asking import ask
from tests.support.jobs import wait_until
from tests.support.pages import Stand, write_photo

Ask = Callable[..., Any]


@pytest.fixture
def call(stand: Stand) -> Ask:
    """Return a caller of endpoints as programs in other languages call them, by the arguments in order."""

    def call(name: str, *values: object, refused: bool = False) -> Any:
        answer = ask(stand.url, f"/gradio_api/run/{name}", method="POST", data={"data": values})
        reported = json.loads(answer.body)
        if refused:
            assert answer.status == 400
            return reported["error"]
        assert answer.status == 200, reported
        assert str(stand.outputs) not in answer.text
        return reported["data"][0]

    return call


@pytest.fixture
def ids(stand: Stand, photo: Path) -> list[str]:
    """Return the ids of three jobs, a, b and c, of which the first has begun."""
    made = [GenerationRequest(image=str(photo), prompt=one, seconds=2.4) for one in "abc"]
    found = [stand.service.queue.add(one).id for one in made]
    wait_until(lambda: stand.service.job(found[0]).state == "running")
    return found


def prompts(queue: dict[str, Any]) -> str:
    return "".join(job["request"]["prompt"] for job in queue["jobs"])


def test_show_says_what_the_command_line_says(
    stand: Stand, call: Ask, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "show", ids[1], "--json", "--out", str(stand.outputs)]) == 0
    printed, shown = json.loads(capsys.readouterr().out), call("jobs_show", ids[1])
    assert printed["folder"] == str(stand.outputs / ids[1])
    assert shown["folder"] == f"jobs/{ids[1]}"
    assert shown["request"].pop("image") == f"jobs/{ids[1]}/input.png"
    for one in (printed["request"], printed, shown):
        for name in ("image", "folder"):
            one.pop(name, None)
    assert shown == printed
    assert (shown["jobs_before"], [one["state"] for one in shown["states"]]) == (1, ["queued"])


def test_a_job_is_added_with_a_picture_of_the_program(stand: Stand, tmp_path: Path) -> None:
    client = Client(stand.url, verbose=False)
    photo = write_photo(tmp_path / "own.png")
    settings = {"seconds": 1, "seed": 4, "wait": True}
    added = client.predict(handle_file(photo), "a ball [9s: b]", **settings, api_name="/jobs_add")
    assert added["state"] in ("queued", "running")
    assert added["notes"] == ["9 s is after the end of the video."]
    assert stand.service.job(added["id"]).request.seed == 4
    assert commands_of(JobFolder(stand.outputs / added["id"])) == {"wait"}
    with pytest.raises(AppError, match="There is no job 'nobody'"):
        client.predict(job="nobody", api_name="/jobs_show")


def test_a_folder_that_cannot_be_read_now_is_listed_with_the_others(
    stand: Stand, call: Ask, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = stand.service.queue.add(GenerationRequest(prompt="d"))

    def stat(path: Path, *arguments: Any, **named: Any) -> os.stat_result:
        if words.folder in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return os.stat(path, *arguments, **named)

    monkeypatch.setattr(Path, "stat", stat)
    assert prompts(call("jobs_queue", 0, 50)) == "abcd"
    assert {job["id"] for job in call("jobs_list", "", None, None, None, None, False, "", 50)["jobs"]} >= {
        words.id,
        *ids,
    }
    (paused,) = call("jobs_pause", [words.id])
    assert (paused["state"], paused["damage"]) == ("paused", "")


def test_jobs_are_deleted_for_good_and_their_space_is_told(stand: Stand, call: Ask, ids: list[str]) -> None:
    call("jobs_empty_trash")
    assert "is being made" in call("jobs_delete", ids[:1], refused=True)
    call("jobs_remove", ids[1:2])
    usage = call("jobs_usage")
    sizes = {job["id"]: job["bytes"] for job in usage["jobs"]}
    assert sizes[ids[2]] == sum(path.stat().st_size for path in (stand.outputs / ids[2]).rglob("*.*"))
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    assert usage["removed_bytes"] > 0
    assert call("jobs_empty_trash") == ids[1:2]
    assert call("jobs_usage")["removed_bytes"] == 0
    for name in (ids[1], f"../{ids[2]}", f"{ids[2]}/", f"./{ids[2]}", "", ".", "..", ".longtake"):
        assert "There is no job" in call("jobs_delete", [name], refused=True)
    assert call("jobs_delete", ids[2:]) == ids[2:]
    assert prompts(call("jobs_queue", 0, 50)) == "a"
    assert (stand.outputs / ".longtake").is_dir()


def test_what_was_removed_comes_back_to_its_place_only(stand: Stand, call: Ask, ids: list[str]) -> None:
    call("jobs_remove", [ids[2]])
    for name in (f"../{ids[2]}", f"x/../{ids[2]}", f"{ids[2]}/", f"./{ids[2]}", "", ".", ".."):
        assert "There is no job" in call("jobs_restore", [name], refused=True)
    assert not (stand.outputs.parent / ids[2]).exists()
    call("jobs_restore", [ids[2]])
    assert (stand.outputs / ids[2] / "request.json").exists()


def test_no_endpoint_opens_a_file_of_this_machine(call: Ask, ids: list[str], tmp_path: Path) -> None:
    secret = write_photo(tmp_path / "secret.png")
    for name in ("jobs_edit", "jobs_duplicate"):
        assert "cannot be changed here" in call(name, ids[1], {"image": str(secret)}, refused=True)
        assert "expected one of" in call(name, ids[1], {"model": str(tmp_path)}, refused=True)
    assert "cannot be changed here" in call("jobs_edit", ids[1], {"colour": 1}, refused=True)


def test_a_small_start_picture_is_served(stand: Stand, ids: list[str]) -> None:
    answer = ask(stand.url, f"/jobs/{quote(ids[0])}/picture.webp")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/webp")
    (stand.outputs / "picture.webp").write_bytes(answer.body)
    with (
        Image.open(stand.outputs / "picture.webp") as small,
        Image.open(stand.outputs / ids[0] / "input.png") as whole,
    ):
        assert max(small.size) <= 240
        assert small.width / small.height == pytest.approx(whole.width / whole.height, rel=0.02)
        red = small.convert("RGB").getpixel((small.width // 3, small.height // 2))
        assert red[0] > 150 > red[2]  # pyright: ignore
    (stand.outputs / ids[1] / "input.png").unlink()
    assert ask(stand.url, f"/jobs/{ids[1]}/picture.webp").status == 404


def test_no_path_of_the_machine_is_told_of_a_jobs_files(tmp_path: Path) -> None:
    service: Any = None
    films = f"{tmp_path}/a film.mp4\n{tmp_path}/b.mp4"
    request = {"video": f"{tmp_path}/v.mp4", "join": films, "sound": f"{tmp_path}/s.mp3"}
    texts = dict.fromkeys(("message", "remedy", "sentence"), f"{tmp_path}/job-a/video.mp4 is away.")
    facts = {"folder": "jobs/job-a", "request": asdict(GenerationRequest(image="x")) | request, **texts}
    outward = Records(service, Catalogue())._outward(facts, tmp_path)
    assert outward["request"]["video"] == "jobs/job-a/v.mp4"
    assert outward["request"]["join"] == "jobs/job-a/a%20film.mp4\njobs/job-a/b.mp4"
    assert outward["request"]["sound"] == "jobs/job-a/s.mp3"
    assert str(tmp_path) not in json.dumps(outward)


def test_a_card_and_a_record_tell_what_is_there_and_can_be_made_again(tmp_path: Path, photo: Path) -> None:
    class WithoutDemo(Catalogue):
        names = ("framepack-i2v",)

    service = JobService(tmp_path / "outputs")
    job = service.queue.add(GenerationRequest(image=str(photo), one_frame=9))
    assert [card(one, ())["length"] for one in (job, replace(job, frames=1))] == ["", "Picture"]
    of_folder = replace(job, request=replace(job.request, model=f"{tmp_path}/my own model"))
    assert [card(one, ())["model"] for one in (job, of_folder)] == ["Longtake demo model", "my own model"]
    records = [Records(service, catalogue).of(job) for catalogue in (Catalogue(), WithoutDemo())]
    assert [record["offered"] for record in records] == [True, False]
    assert ["Longtake demo model" in record["about"] for record in records] == [True, False]

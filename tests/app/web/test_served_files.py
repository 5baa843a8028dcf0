"""Tests of which files the page serves, and which it accepts."""

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from app.jobs.job import size_of
from app.web import served_files, serving
from app.web.served_files import ServedFiles, UploadRoom
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import SETTINGS, GenerationRequest
from tests.support.asking import ask, form
from tests.support.heic import heic
from tests.support.jobs import wait_until
from tests.support.pages import Stand, staged_page, write_photo

FILE, JOBS = "/gradio_api/file=", "/jobs/"
UPLOAD = "/gradio_api/upload"
SMALL_UPLOAD = 2**20


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Serve a page without a password that accepts only small uploads."""
    folder = tmp_path_factory.mktemp("stand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        patch.setattr(serving, "UPLOAD_BYTES", SMALL_UPLOAD)
        with staged_page(folder) as stand:
            yield stand


@pytest.fixture(scope="module")
def job(stand: Stand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    photo = write_photo(tmp_path_factory.mktemp("photo") / "photo.png")
    job = stand.service.queue.add(GenerationRequest(image=str(photo), seconds=1))
    stand.engine.go(1000)
    wait_until(lambda: stand.service.job(job.id).is_over)
    for name in (
        "sections/0001.safetensors",
        "page.html",
        "drawing.svg",
        ".hidden.png",
        "notes.txt",
        "fake.png/x",
    ):
        path = job.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"<script>alert(1)</script>")
    secret = write_photo(stand.outputs.parent / "secret.png")
    (job.folder / "link.png").symlink_to(secret)
    (job.folder / "folder").symlink_to(secret.parent)
    (job.folder / "video-0009.mp4").symlink_to(secret)
    (stand.outputs / "elsewhere").symlink_to(_other_job(stand.outputs.parent))
    write_photo(stand.outputs / "loose.png")
    (stand.outputs / "no-job").mkdir()
    write_photo(stand.outputs / "no-job" / "photo.png")
    return job.folder


def _other_job(parent: Path) -> Path:
    folder = parent / "other-outputs" / "job"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text("{}")
    write_photo(folder / "input.png")
    return folder


def test_what_a_job_shows_is_served_by_its_id(stand: Stand, job: Path) -> None:
    kinds = {
        "video.mp4": "video/mp4", "video-0001.mp4": "video/mp4", "input.png": "image/png",
        "thumbs/0001.webp": "image/webp",
    }  # fmt: skip
    for name, kind in kinds.items():
        answer = ask(stand.url, f"{JOBS}{job.name}/{name}?v=2")
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.body == (job / name).read_bytes()
    url = f"{JOBS}{job.name}/video.mp4"
    content = (job / "video.mp4").read_bytes()
    whole = ask(stand.url, url, method="HEAD")
    assert (whole.status, whole.headers["Accept-Ranges"]) == (200, "bytes")
    assert whole.headers["Content-Length"] == str(len(content))
    for ranges, expected in {"4-11": content[4:12], "-5": content[-5:], "20-": content[20:]}.items():
        part = ask(stand.url, url, headers={"Range": f"bytes={ranges}", "Cookie": "a=b"})
        assert (part.status, part.body) == (206, expected)
        assert "cookie" not in part.headers
    assert ask(stand.url, url, headers={"Range": f"bytes={len(content)}-"}).status == 416


def test_the_end_of_a_jobs_log_is_served_without_paths(stand: Stand, job: Path) -> None:
    assert ask(stand.url, f"{JOBS}{job.name}/job.log").status == 404
    lines = [f"{number} {job}/sections <b>" for number in range(5000)]
    (job / "job.log").write_text("\n".join(lines))
    answer = ask(stand.url, f"{JOBS}{job.name}/job.log")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    shown = answer.body.decode().split("\n")
    assert shown[-1] == f"4999 <outputs>/{job.name}/sections <b>"
    assert 100 < len(shown) < 5000
    assert all(line.split()[1] == f"<outputs>/{job.name}/sections" for line in shown)
    (job / "job.log").unlink()
    (job / "job.log").symlink_to(stand.outputs.parent / "secret.png")
    assert ask(stand.url, f"{JOBS}{job.name}/job.log").status == 404


@pytest.mark.parametrize(("extra", "first"), [(0, "begin"), (1, "next")])
def test_a_log_begins_with_a_whole_line(extra: int, first: str, tmp_path: Path) -> None:
    text = "begin\nnext\n"
    JobFolder(tmp_path).log.write_text(text + "x" * (served_files._LOG_BYTES - len(text) + extra))
    body = bytes(served_files._served_log(tmp_path, tmp_path).body).decode()
    assert body.split("\n")[0] == first


def test_a_job_is_served_by_its_own_name_alone(tmp_path: Path) -> None:
    files = ServedFiles(tmp_path / "outputs", tmp_path / "uploads")
    for name in ("job", ".longtake/trash/removed"):
        folder = tmp_path / "outputs" / name
        folder.mkdir(parents=True)
        (folder / "request.json").write_text("{}")
        (folder / "video.mp4").write_bytes(b"video")
    for link, name in (("same", "job"), ("gone", ".longtake/trash/removed")):
        (tmp_path / "outputs" / link).symlink_to(tmp_path / "outputs" / name)
    served = [files.of_job(f"{name}/video.mp4").status_code for name in ("job", "same", "gone", "other", "")]
    assert served == [200, 404, 404, 404, 404]
    (tmp_path / "link").symlink_to("outputs")
    linked = ServedFiles(tmp_path / "link", tmp_path / "uploads")
    assert [linked.of_job(f"{name}/video.mp4").status_code for name in ("job", "same")] == [200, 404]


def test_nothing_else_of_the_disk_is_served(stand: Stand, job: Path) -> None:
    inside = [
        "memory.json", "segments/0001.mp4", "preview-1-1.png", "video-0009.mp4", "thumbs/../input.png",
        "thumbs/", "thumbs%2F0001.webp", "thumbs%2f0001.webp", "thumbs%5C0001.webp", "./input.png",
        "//input.png", "request.json", "events.jsonl", "sections/0001.safetensors", "page.html",
        "drawing.svg", ".hidden.png",
        "notes.txt", "fake.png", "link.png", "folder/secret.png", "../loose.png", "../../secret.png",
        "..%2F..%2Fsecret.png", "%2e%2e/%2e%2e/secret.png", "video.mp4%00.png", "", "a" * 300 + ".png",
        f"../{job.name}/video.mp4",
    ]  # fmt: skip
    assert (job / "segments" / "0001.mp4").is_file()
    outside = [
        job / "video.mp4", job / "input.png",
        stand.outputs / "loose.png", stand.outputs / "no-job" / "photo.png",
        stand.outputs.parent / "secret.png",
        stand.outputs / ".longtake" / "longtake.sqlite3", "/etc/passwd", "/proc/self/environ", Path(__file__),
        Path(serving.__file__).parents[1] / "ui" / "icon.svg", "app/ui/icon.svg", stand.outputs,
        f"{stand.outputs}-other/x.png", stand.url + "config", "http://169.254.169.254/latest",
        "file:///etc/passwd",
    ]  # fmt: skip
    jobs = [f"{JOBS}{job.name}/{name}" for name in inside]
    jobs += [f"{JOBS}{name}" for name in (
        "", job.name, f"{job.name}%2Fvideo.mp4", "no-job/input.png", "elsewhere/input.png", "loose.png",
        ".longtake/longtake.sqlite3",
        f"%2e%2e/{stand.outputs.name}/{job.name}/video.mp4", "../cache/input.png",
        f"{'a' * 300}/input.png", f"{job}/video.mp4", "%00/input.png", f".\\{job.name}/input.png",
    )]  # fmt: skip
    uploads = [f"{FILE}{quote(str(path), safe='/%:')}" for path in (
        *outside, f"uploads/../{stand.outputs.name}/{job.name}/video.mp4", "uploads//etc/passwd", "uploads/",
        f"uploads/%2e%2e/{stand.outputs.name}/{job.name}/video.mp4", "uploads/x%00.png",
        "uploads/nowhere.png", f"uploads/{'a' * 300}.png",
    )]  # fmt: skip
    for path in (*jobs, *uploads):
        answer = ask(stand.url, path)
        assert answer.status == 404, path
        assert b"script" not in answer.body
        assert b"There is no" in answer.body


def cached(stand: Stand) -> set[Path]:
    return {path for path in (stand.outputs.parent / "cache").rglob("*") if path.is_file()}


def test_an_upload_is_bounded_also_when_it_does_not_say_its_length(stand: Stand) -> None:
    before = cached(stand)
    headers, body = form(b"big.png", b"x" * (3 * SMALL_UPLOAD))
    assert ask(stand.url, UPLOAD, method="POST", headers=headers, body=body).status == 413
    chunks = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    assert ask(stand.url, UPLOAD, method="POST", headers=headers, body=chunks).status == 413
    lying = {**headers, "Content-Length": "-5"}
    # The server closes the connection at once; a body that comes after that would cost the answer.
    assert ask(stand.url, UPLOAD, method="POST", headers=lying).status in (400, 413)
    many = body[: body.index(b"xxx")] + b"x\r\n"
    forms = b"".join(
        many.replace(b"big", str(number).encode()) + b"x" * 30_000 + b"\r\n" for number in range(60)
    )
    assert ask(stand.url, UPLOAD, method="POST", headers=headers, body=[forms + b"--lt--\r\n"]).status == 413
    assert cached(stand) == before


@pytest.mark.parametrize(
    "name",
    [
        b"../../evil.png", b"/etc/evil.png", b"..", b"a" * 300 + b".png", "\u202egnp.exe.png".encode(),
        b"line%0Abreak.png", b"<img src=x onerror=alert(1)>.png", b"CON", b"..\\..\\evil.png",
        b"\xff\xfe.png", b" ",
    ],
)  # fmt: skip
def test_hostile_file_names_stay_in_the_uploads_folder(stand: Stand, name: bytes) -> None:
    folder = stand.outputs.parent / "cache"
    outside = {path for path in stand.outputs.parent.rglob("*") if not path.is_relative_to(folder)}
    photo = write_photo(stand.outputs.parent / "secret.png").read_bytes()
    headers, body = form(name, photo)
    answer = ask(stand.url, UPLOAD, method="POST", headers=headers, body=body)
    assert answer.status in (200, 400)
    if answer.status == 200:
        (path,) = json.loads(answer.body)
        assert path.startswith("uploads/")
        kept = folder / path.removeprefix("uploads/")
        assert kept.resolve().is_relative_to(folder.resolve())
        assert kept.read_bytes() == photo
        assert "<" not in path
        shown = ask(stand.url, FILE + quote(path))
        assert shown.status in (200, 404)
        assert shown.status == 404 or shown.headers["Content-Type"] == "image/png"
    assert {
        path for path in stand.outputs.parent.rglob("*") if not path.is_relative_to(folder)
    } <= outside | {stand.outputs.parent / "secret.png"}


def test_an_upload_never_runs(stand: Stand) -> None:
    for name, served in ((b"page.html", 404), (b"drawing.svg", 404), (b"page.png", 200)):
        headers, body = form(name, b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
        (path,) = json.loads(ask(stand.url, UPLOAD, method="POST", headers=headers, body=body).body)
        answer = ask(stand.url, FILE + quote(path))
        assert answer.status == served
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def uploaded(stand: Stand, name: str, content: bytes) -> str:
    headers, body = form(name.encode(), content)
    (path,) = json.loads(ask(stand.url, UPLOAD, method="POST", headers=headers, body=body).body)
    return FILE + quote(path)


def test_an_upload_that_browsers_do_not_show_is_served_as_png(stand: Stand, tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 48), (200, 60, 30))
    contents = {"HEIC": heic([image])}
    for kind in ("JPEG", "PNG", "TIFF", "AVIF"):
        image.save(tmp_path / "x", kind)
        contents[kind] = (tmp_path / "x").read_bytes()
    for name, kind in (
        ("a.jfif", "JPEG"), ("a.jpe", "JPEG"), ("a", "JPEG"), (".a", "PNG"), (".b.tif", "TIFF"),
        ("a.HEIC", "HEIC"), ("heic.jpg", "HEIC"), ("tiff.png", "TIFF"),
    ):  # fmt: skip
        answer = ask(stand.url, uploaded(stand, name, contents[kind]))
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png"), name
        picture = Image.open(io.BytesIO(answer.body))
        assert (picture.format, picture.size) == ("PNG", (64, 48))
        assert picture.getpixel((9, 9)) == pytest.approx((200, 60, 30), abs=3)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(tmp_path / "x", "WEBP", exif=turned)
    answer = ask(stand.url, uploaded(stand, "a.webp", (tmp_path / "x").read_bytes()))
    assert Image.open(io.BytesIO(answer.body)).size == (48, 64)
    for name, kind in (("a.jpg", "JPEG"), (".a.PNG", "PNG"), ("a.avif", "AVIF")):
        answer = ask(stand.url, uploaded(stand, name, contents[kind]))
        assert (answer.status, answer.body) == (200, contents[kind])
    for name, content in (("a.dng", b"x" * 50), ("b", b"<script>alert(1)</script>"), ("c.heic", b"x")):
        answer = ask(stand.url, uploaded(stand, name, content))
        assert answer.status == 404
        assert b"script" not in answer.body


def test_the_server_decodes_no_picture_of_a_job_itself(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone with the outputs folder may have replaced a picture."""
    photo = write_photo(tmp_path / "photo.png")
    jobs = [stand.service.queue.add(GenerationRequest(image=str(photo), seconds=1)) for _ in range(2)]
    (jobs[1].folder / "input.png").write_bytes(photo.read_bytes()[:-900])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded in the web process")

    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", refuse)
        whole, cut = (ask(stand.url, f"{JOBS}{job.id}/picture.webp") for job in jobs)
        sizes = [size_of(job) for job in jobs]
    assert (whole.status, cut.status) == (200, 404)
    assert Image.open(io.BytesIO(whole.body)).size == (213, 160)
    assert sizes == [(144, 112)] * 2
    Image.new("RGB", (480, 480)).save(jobs[0].folder / "input.png")  # the job was edited
    edited = ask(stand.url, f"{JOBS}{jobs[0].id}/picture.webp")
    assert Image.open(io.BytesIO(edited.body)).size == (160, 160)


def messages(image: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    settings = {name: setting.default for name, setting in SETTINGS.items()} | {"image": image, "seconds": 1}
    yield "api/form_start", {"press": os.urandom(16).hex(), "settings": settings, "may_download": False}
    yield "api/picture_check", {"file": image}
    yield "api/file_read", {"file": image, "name": "x.png"}
    yield "gradio_api/run/picture_check", {"data": [image]}
    yield "gradio_api/call/v2/generate", {"image": image, "seconds": 1}


def send(stand: Stand, image: dict[str, Any]) -> int:
    before = len(stand.service.jobs(1000))
    for path, message in messages(image):
        answer = ask(stand.url, f"/{path}", method="POST", data=message)
        if "/call/" in path and answer.status == 200:
            stand.engine.go(1000)
            event = json.loads(answer.body)["event_id"]
            assert "event: " in ask(stand.url, f"/{path}/{event}").text
    return len(stand.service.jobs(1000)) - before


@pytest.mark.slow
def test_a_file_of_the_machine_cannot_be_passed_off_as_an_upload(stand: Stand, job: Path) -> None:
    secret = write_photo(stand.outputs.parent / "secret.png")
    cache = stand.outputs.parent / "cache"
    for path in (
        secret, f"{cache}/../secret.png", job / "link.png", "x" * 5000, "uploads/../secret.png",
        f"uploads/{secret}", "uploads/\0", "http://192.0.2.1/x.png",
    ):  # fmt: skip
        assert send(stand, {"path": str(path), "meta": {"_type": "gradio.FileData"}}) == 0, path
    for meta in ({}, {"meta": {"_type": "x"}}):
        assert send(stand, {"path": str(secret), **meta}) == 0, meta


def test_an_upload_becomes_the_picture_of_a_job(stand: Stand) -> None:
    headers, body = form(b"photo.png", write_photo(stand.outputs.parent / "secret.png").read_bytes())
    (path,) = json.loads(ask(stand.url, UPLOAD, method="POST", headers=headers, body=body).body)
    assert send(stand, {"path": path, "meta": {"_type": "gradio.FileData"}}) == 2


def test_old_uploads_make_room_for_the_largest_and_young_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, now = UploadRoom(tmp_path, max_bytes=100, max_total_bytes=250), time.time()
    for name in ("a/1", "b/2", "b/3", "tmpabc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(50))
        made = (tmp_path / name).stat().st_ctime
        while made == (tmp_path / name).stat().st_ctime:  # no two are of one moment
            (tmp_path / name).touch()
    names = ["a", "a/1", "b", "b/2", "b/3", "tmpabc"]
    for later, free, has_room, gone in (
        (590, 10**6, False, 0), (610, 10**6, True, 2), (86390, 10**6, True, 2), (86390, 100, False, 2),
        (86390, 101, True, 2), (86410, 10**6, True, 6),
    ):  # fmt: skip
        monkeypatch.setattr("time.time", lambda later=later: now + later)
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        made = room.make_room()
        left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
        assert (made, left) == (has_room, names[gone:]), later
    monkeypatch.setattr("time.time", lambda: now)
    for size, has_room in ((150, True), (151, False)):  # beside a young one, exactly the largest fits
        (tmp_path / "c").write_bytes(bytes(size))
        assert room.make_room() is has_room
    assert not UploadRoom(tmp_path / "gone", 100, 250).make_room()

"""Tests that unusable places end each program in one sentence that names the value and the remedy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.asking import ask
from tests.support.jobs import ROOT
from tests.support.pages import staged_page, write_photo
from tests.support.staged_engine import StagedEngine

NOBODY = "~nosuchuser/x"


def test_a_path_is_expanded_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/anna")
    assert expanded_path("~/x", "out") == Path("/homes/anna/x")
    assert expanded_path("x y", "out") == Path("x y")
    with pytest.raises(InputError, match="out is ''; expected a path"):
        expanded_path("", "out")
    with pytest.raises(InputError, match=r"out is '~nosuchuser/x'; .* Write the whole path."):
        expanded_path(NOBODY, "out")
    with pytest.raises(InputError, match=r"out is '/x\\udcff'; expected a name in UTF-8"):
        expanded_path(os.fsdecode(b"/x\xff"), "out")


def test_a_proxy_that_needs_a_missing_package_is_named(
    longtake: Longtake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    photo, out = str(write_photo(tmp_path / "photo.png")), str(tmp_path / "outputs")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    arguments = ("generate", "--image", photo, "--prompt", "a ball", "--out", out, "--model", "framepack-i2v")
    reported = longtake(*arguments, code=2)
    assert reported.startswith(
        "all_proxy is 'socks5://127.0.0.1:9'; expected an address that begins with http://"
    )
    assert "Unset all_proxy" in reported
    assert not Path(out).exists()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CACHE_HOME", "GRADIO_TEMP_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_is_told(longtake: Longtake, tmp_path: Path) -> None:
    photo, out = str(write_photo(tmp_path / "photo.png")), str(tmp_path / "outputs")
    for arguments in (
        ("plan",), ("doctor", "--out", out), ("page", "--port", "0", "--outputs", out),
        ("generate", "--image", photo, "--prompt", "a ball", "--out", out),
    ):  # fmt: skip
        reported = longtake(*arguments, code=2)
        assert "HOME is not set" in reported
        assert "Set HOME or XDG_CACHE_HOME" in reported


@pytest.mark.slow
def test_a_home_that_takes_no_files_is_told(tmp_path: Path) -> None:
    left_out = ("XDG_CACHE_HOME", "GRADIO_TEMP_DIR")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    ended = subprocess.run(
        (sys.executable, ROOT / "demo_gradio.py", "--port", "0", "--outputs", tmp_path / "outputs"),
        env={**environment, "HOME": "/proc"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "The folder for uploads, /proc/.cache/longtake/page, cannot be made" in ended.stderr


@pytest.mark.slow
def test_one_log_that_cannot_be_read_does_not_refuse_the_server(tmp_path: Path) -> None:
    photo = str(write_photo(tmp_path / "photo.png"))
    service = JobService(tmp_path / "outputs", StagedEngine())
    jobs = [service.queue.add(GenerationRequest(image=photo, seconds=1)) for _ in range(2)]
    code = (
        "import os, sys; from pathlib import Path; from app.jobs.storage.store import JobStore\n"
        "store = JobStore(Path(sys.argv[1])); store.adopts = True; store.lock_card('cpu')\n"
        "store.claim(lambda job: ''); os._exit(9)"
    )
    service.stop()
    died = subprocess.run((sys.executable, "-c", code, tmp_path / "outputs"), cwd=ROOT, check=False)
    assert died.returncode == 9
    assert JobService(tmp_path / "outputs").job(jobs[0].id).state == "running"
    log = tmp_path / "outputs" / jobs[0].id / "events.jsonl"
    log.unlink(missing_ok=True)
    log.mkdir()  # root cannot read this either
    with staged_page(tmp_path) as stand:
        assert ask(stand.url).status == 200

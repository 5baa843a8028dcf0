"""Tests of the page as a program: what it accepts, and that it leaves nothing behind."""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import httpx
import pytest
from gradio.queueing import Queue
from gradio_client import Client, handle_file
from syrupy.assertion import SnapshotAssertion

from app.jobs.service import JobService
from app.web import server
from app.web.gradio_server import share_address
from app.web.server import AUTH_VARIABLE
from app.web.serving import close_page, open_page
from diffusers_helper.errors import InputError
from diffusers_helper.events import StepDone
from diffusers_helper.planning.profiles import CAP_VARIABLE, PRESERVED_VARIABLE, Machine
from diffusers_helper.units import GB
from tests.app.conftest import Longtake
from tests.support.asking import ask
from tests.support.jobs import STAND_IN, TIMEOUT, processes_in_group, wait_until
from tests.support.pages import PageProgram, free_port, write_photo

Launch = Callable[..., PageProgram]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[PageProgram] = []

    def launch(*arguments: str, **environment: str) -> PageProgram:
        if "--model" not in arguments:  # no job is made, so the engine needs no torch
            environment = {"PYTHONPATH": STAND_IN, **environment}
        started.append(PageProgram(tmp_path, *arguments, **environment))
        return started[-1]

    yield launch
    for program in started:
        program.end()


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH_VARIABLE, raising=False)


REFUSED = """
--server 0.0.0.0
--share
--server 0.0.0.0 --auth ''
--auth user:
--auth :password
--vram-cap-gb -1
--port 70000
--port -1
--server no.such.host.invalid --auth a:b
--port 0 --outputs file
--port 0 --outputs file/below
--port 0 --outputs outputs --model nonsense
--port 0 --allowed-host video.example.org --allowed-host http://video.example.org
--port 0 --allowed-host video.example.org:80
--port 0 --allowed-host ''
"""


def test_what_cannot_be_used_is_one_sentence(
    longtake: Longtake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    for variable in (CAP_VARIABLE, PRESERVED_VARIABLE):
        monkeypatch.setenv(variable, "4")
    lines = [
        f"{arguments}: {longtake.refused(f'page {arguments}')}" for arguments in REFUSED.strip().splitlines()
    ]
    for variable, value in ((CAP_VARIABLE, "many"), (PRESERVED_VARIABLE, "few"), (AUTH_VARIABLE, "x")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            lines.append(f"{variable}: {longtake.refused('page')}")
    assert "".join(lines).replace(str(tmp_path), "TMP") == snapshot


LINES = (
    "[Before Transformer Load] Free: ", "[Before VAE Load] Free: ",
    "[MIOpen Fallback] Strategy: ", "=== MIOpen Fallback Statistics ===",
)  # fmt: skip


@pytest.mark.slow
def test_a_signal_interrupts_the_job_that_a_program_waits_for_and_memory_lines_are_shown_if_asked(
    launch: Launch, tmp_path: Path, tiny_model: Path
) -> None:
    program = launch("--model", str(tiny_model), "--verbose")
    client = Client(program.wait_until_up(), verbose=False)
    photo = handle_file(write_photo(tmp_path / "photo.png"))
    client.predict(photo, seconds=1, steps=1, resolution=64, api_name="/generate")
    (log,) = program.outputs.glob("*/job.log")
    call = client.submit(photo, seconds=4, steps=100, api_name="/generate")
    service = JobService(program.outputs)
    wait_until(lambda: len(service.jobs()) == 2)
    job = service.jobs()[0]
    wait_until(lambda: any(isinstance(event, StepDone) for event in service.events(job.id)))
    program.process.terminate()
    code, _, console = program.result()
    assert code == 0
    assert service.job(job.id).state == "interrupted"
    assert not list(program.outputs.rglob("*.tmp"))
    assert call.exception(TIMEOUT) is not None
    text = log.read_text(encoding="utf-8")
    for line in LINES:
        assert line in text
        assert line in console


def test_a_taken_port_is_named(longtake: Longtake) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        reported = longtake("page", "--port", str(port), code=2)
    assert f"Port {port} on 127.0.0.1 cannot be used" in reported
    assert f"--port {port + 1}" in reported


@pytest.mark.slow
def test_a_page_for_others_says_its_address_and_asks_for_the_password_whatever_the_proxy(
    launch: Launch,
) -> None:
    proxies = {"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "socks5://127.0.0.1:1", "HTTPS_PROXY": "::::"}
    program = launch(
        "--server", "0.0.0.0", LONGTAKE_AUTH="anna:s3cret:with:colons", no_proxy="", NO_PROXY="", **proxies
    )
    url = program.wait_until_up()
    line = program.process.stdout.readline()
    address = re.fullmatch(r"For other machines: (\S+) \(with the password, .*\)\n", line)
    assert urlsplit(address[1]).port == urlsplit(url).port
    assert urlsplit(address[1]).hostname not in ("localhost", "0.0.0.0", "127.0.0.1")
    for place in (url, address[1]):
        assert "Password" in ask(place).text
    assert ask(url, "/config").status == 401
    with pytest.raises(ValueError, match=r"[Cc]redentials|[Ll]ogin"):
        Client(url, auth=("anna", "wrong"), verbose=False)
    client = Client(url, auth=("anna", "s3cret:with:colons"), verbose=False)
    assert "/generate" in client.view_api(return_format="dict", print_info=False)["named_endpoints"]


@pytest.mark.slow
def test_starters_of_programs_find_the_address_and_only_allowed_names_are_answered(launch: Launch) -> None:
    program = launch("--allowed-host", "Video.Example", "--allowed-host", "other.example")
    line = program.process.stdout.readline()
    # StabilityMatrix looks for these words in each line, and then for an address in the same line.
    assert "running on local url" in line.lower()
    found = re.search(r"(https?://)([^:\s]+):(\d+)", line)
    url = found[0]
    for host, expected in {"video.example": 200, "other.example:443": 200, "third.example": 421}.items():
        assert ask(url, headers={"Host": host}).status == expected
    through_proxy = {"Origin": "https://video.example"}
    assert ask(url, "/config", headers=through_proxy).status == 200
    assert ask(url, "/config", headers={"Origin": "https://third.example"}).status == 403
    group = program.process.pid
    wait_until(lambda: len(processes_in_group(group)) == 2)  # the page and its engine
    os.killpg(group, signal.SIGINT)  # as a terminal sends it
    assert program.process.wait(TIMEOUT) == 0
    wait_until(lambda: not processes_in_group(group))
    assert "Traceback" not in program.result()[2]


def test_a_shared_page_answers_to_its_public_name_and_brings_its_own_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gradio.networking.setup_tunnel", lambda **_: "https://abc.share.example")
    outputs, port = tmp_path / "outputs", free_port()
    page, url = open_page(JobService(outputs), outputs, port=port, share=True, auth=("anna", "geheim"))
    try:
        assert url == "https://abc.share.example"
        local = f"http://127.0.0.1:{port}/"
        answer = ask(local, headers={"Host": "abc.share.example", "X-Forwarded-Proto": "https"})
        assert answer.status == 200
        assert "Prompt" not in answer.text  # this is the login
        assert ask(local, "/config", headers={"Host": "abc.share.example"}).status == 401
        assert ask(local, headers={"Host": "xyz.share.example"}).status == 421
    finally:
        close_page(page)


@pytest.mark.parametrize("error", [RuntimeError, OSError, ValueError])
def test_a_page_that_the_relay_does_not_share_has_no_public_address(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: Any) -> str:
        raise error("The relay is away.")

    monkeypatch.setattr("gradio.networking.setup_tunnel", refuse)
    assert share_address(7860) == ""
    assert caplog.messages == ["The page has no public address: The relay is away."]


def test_gradio_tells_its_makers_nothing_looks_for_calls_less_often_and_a_call_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    page, url = open_page(JobService(tmp_path / "outputs"), tmp_path / "outputs", port=free_port())
    with httpx.Client() as client:
        answer = client.post(f"{url}api/form_end", json={})
    close_page(page)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert answer.headers["Connection"] == "close"  # so no call meets one that uvicorn is just closing
    ours, theirs = vars(page.calls._queue), vars(Queue(False, 1, 1, None, gr.Blocks()))
    for pause in ("sleep_when_free", "progress_update_sleep_when_free"):
        assert ours[pause] >= 20 * theirs[pause]


class Program:
    """The parts of the program in the place of which it is told what they are asked to do."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.lines, self.signals, self._capsys = list[str](), list[int](), capsys
        self.crew, self.page = SimpleNamespace(is_follower=False), SimpleNamespace()
        self.stop: Any = None
        self.refusal = ""
        for name in ("close_page", "end_within", "watch_cards"):
            patch.setattr(
                server,
                name,
                lambda *values, name=name: self.note(
                    f"{name} {[value for value in values if isinstance(value, float | int)]}"
                ),
            )
        patch.setattr(server, "handle", lambda stop: setattr(self, "stop", stop))
        patch.setattr(server, "JobService", lambda *values: self.service(*values))
        patch.setattr(server, "open_page", self.open_page)
        exits = SimpleNamespace(environ=os.environ, _exit=lambda code: self.note(f"exits with {code}"))
        patch.setattr(server, "os", exits)
        patch.setattr(server, "time", SimpleNamespace(sleep=self.beat))
        patch.setattr(server, "ClusterTask", lambda *values: values)
        patch.setattr(server, "threading", SimpleNamespace(Thread=self.thread, Event=threading.Event))
        patch.setattr(server, "report_so_far", lambda: Path("/nowhere/report.json"))
        patch.setattr(server, "this_machine", lambda _: Machine("rocm", "gfx9999", "New", GB))

    def note(self, line: str) -> None:
        out, err = self._capsys.readouterr()
        self.lines += [*out.splitlines(), *(f"! {text}" for text in err.splitlines()), line]

    def service(self, outputs: Path, *engines: Any) -> Any:
        caps = [engine.card.profile.cap_bytes.value / GB for engine in engines]
        self.note(f"jobs in {outputs} on {caps}")
        return SimpleNamespace(
            crew=self.crew,
            **{name: partial(self.act, name) for name in ("jobs", "start", "stop", "expect_cards")},
        )

    def act(self, name: str, *values: object, **options: object) -> None:
        self.note(f"service: {name} {values} {options}")

    def open_page(self, service: Any, outputs: Path, *, profile: Any, **settings: Any) -> Any:
        self.note(f"page of {outputs}, {profile.cap_bytes.value / GB} GB: {settings}")
        if self.refusal:
            raise InputError(self.refusal)
        return self.page, "https://abc.share.example"

    def thread(self, *, target: Any, args: Any, name: str, daemon: bool) -> Any:
        task, _, ended = args
        return SimpleNamespace(start=lambda: self.note(f"{name} {target(task)} {daemon} {ended.is_set()}"))

    def beat(self, seconds: float) -> None:
        self.note(f"sleeps {seconds} s")
        for number in self.signals:
            self.stop(number, None)


def test_the_life_of_the_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setenv(CAP_VARIABLE, "3")
    program = Program(monkeypatch, capsys)
    local, other = "http://127.0.0.1:1/", "http://192.0.2.7:1/"
    for told, network, signals, is_follower, refusal in (
        (
            "--devices cpu=1,cpu=4 --server 0.0.0.0 --share --allowed-host Video.Example",
            other,
            [15],
            False,
            "",
        ),
        ("--inbrowser --ray 10.0.0.7:1 --ray-public --model wan-5b", "", [2, 15], True, ""),
        ("", local, [15], False, "That is enough."),
    ):
        program.page.local_url, program.page.network_url = local, network
        program.signals, program.crew.is_follower, program.refusal = signals, is_follower, refusal
        arguments = server.page_parser("page").parse_args(
            [*told.split(), "--outputs", str(tmp_path / "videos")]
        )
        with pytest.raises(InputError, match=refusal) if refusal else nullcontext():
            program.note(f"ends with {server._serve(arguments, ('anna', 'geheim'), 1234)}\n")
    assert "\n".join(program.lines).replace(str(tmp_path), "TMP") == snapshot

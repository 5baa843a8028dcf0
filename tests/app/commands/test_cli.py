"""Tests of `longtake` as a program: its output, its exit codes, its end by signals."""

import argparse
import contextlib
import json
import os
import signal
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.cli import command_parser
from app.jobs.service import JobService
from app.web.server import page_parser
from diffusers_helper import __version__
from tests.support.jobs import ROOT, TIMEOUT, processes_in_group, wait_until
from tests.support.program import Program, answer, check_contract, stream, until


@pytest.mark.parametrize("place", [[], ["--in-process"]])
def test_json_output_is_one_event_a_line_and_nothing_else(program: Program, place: list[str]) -> None:
    code, out, err = program.run("generate", "--json", *place, script="sections=2 steps=2 at=1 fault=noise")
    assert code == 0, err
    events = check_contract(out.splitlines())
    assert "from a library" in err
    assert "and from C" in err
    end = events[-1]
    assert (end["event"], end["frames"]) == ("finished", 73)
    folder = program.outputs / end["job"]
    assert end["video"] == str(folder / "video.mp4")
    assert Path(end["video"]).read_bytes() == b"video of 73 frames"
    assert json.loads((folder / "request.json").read_text())["prompt"].startswith("sections=2")
    assert [event["section"] for event in events if event["event"] == "section_finished"] == [1, 2]


def dry_run(program: Program, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = answer(
        capsys, "generate", "--dry-run", "--json", "--image", str(program.picture), "--model",
        str(program.model), "--prompt", "a ball", *arguments,
    )  # fmt: skip
    assert code == 0, err
    return json.loads(out)


def test_settings_arrive_in_the_request(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "negative": "blur", "seconds": 2.5, "seed": 9, "steps": 7, "mode": "forward", "resolution": 320,
        "guidance": 8.5, "cfg": 1.5, "cfg_rescale": 0.5, "crf": 20, "sampler": "euler", "preserved_gb": 4.0,
        "vram_cap_gb": 12.5, "weight_dtype": "bf16", "vae_tile": 192, "vae_precision": "bf16", "crop": 0.25,
        "vae_chunk": 2, "vae_threshold": 0.75, "vae_cleanup": 4, "attention": "sliced",
        "end_image": str(program.picture), "end_crop": 0.75, "end_strength": 0.5,
        "picture_shape": "9:16", "zoom": 1.5, "crop_y": 0.125,
    }  # fmt: skip
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    request = dry_run(program, capsys, *arguments)
    assert {name: request[name] for name in settings} == settings
    assert request["model"] == str(program.model)


def test_the_mode_is_the_models_first_unless_given(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    (program.model / "longtake.json").write_text('{"modes": ["forward", "inverted"]}')
    for arguments, mode in ([], "forward"), (["--mode", "inverted"], "inverted"):
        assert dry_run(program, capsys, *arguments)["mode"] == mode


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, list[argparse.Action]]]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield name, parser._actions
    for word, child in inner[0].choices.items() if inner else ():
        yield from parsers(child, f"{name} {word}".strip())


def told(action: argparse.Action) -> str:
    kind = getattr(action.type, "__name__", "") or (action.type and type(action.type).__name__)
    facts = (kind, action.nargs, action.default, action.const, [*(action.choices or ())])
    words = (f"{fact}" for fact in facts if fact not in (None, "", 0, False, []))
    return " ".join(["/".join(action.option_strings) or action.dest, *words])


def test_version_and_the_arguments_of_each_command(program: Program, snapshot: SnapshotAssertion) -> None:
    assert program.run("--version") == (0, f"Longtake {__version__}\n", "")
    commands = [*parsers(command_parser()), *parsers(page_parser("longtake page"), "page")]
    lines = [f"{name}: {', '.join(map(told, actions))}" for name, actions in commands]
    assert "\n".join(line.replace(str(ROOT), "ROOT") for line in lines) == snapshot


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [("exit", 1), ("input", 2)])
def test_a_failed_job_ends_with_its_event_and_a_sentence(program: Program, fault: str, code: int) -> None:
    script = f"sections=2 steps=2 at=3 fault={fault}"
    found, out, err = program.run("generate", "--json", script=script)
    event = check_contract(out.splitlines())[-1]
    assert (found, event["event"], event["frames"]) == (code, "failed", 37)
    assert Path(event["video"]).read_bytes() == b"video of 37 frames"
    assert f"{event['message']} {event['remedy']}" in err
    report = program.outputs / event["job"] / "report.txt"
    assert err.splitlines()[-1].endswith(str(report))
    reported = report.read_text(encoding="utf-8")
    assert event["message"] in reported
    assert "Last " in reported
    assert str(program.outputs) not in reported


@pytest.mark.slow
@pytest.mark.parametrize(("whole_group", "fault"), [(False, "hang"), (True, "gil")])
def test_ctrl_c_cancels_and_leaves_nothing_behind(program: Program, whole_group: bool, fault: str) -> None:
    process = program.start("generate", "--json", script=f"sections=2 steps=2 at=3 fault={fault}")
    job = until(process, "step_done", 3)["job"]
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    wait_until(lambda: not processes_in_group(process.pid))  # the kernel takes a moment
    end = json.loads(out.splitlines()[-1])
    assert (end["event"], end["frames"]) == ("cancelled", 37)
    assert Path(end["video"]).read_bytes() == b"video of 37 frames"
    folder = program.outputs / job
    assert json.loads((folder / "events.jsonl").read_text().splitlines()[-1]) == end
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.slow
def test_a_shutdown_interrupts_and_the_job_can_go_on(program: Program) -> None:
    process = program.start("generate", "--json", script="sections=2 steps=2 at=3 fault=hang times=1")
    job = until(process, "step_done", 3)["job"]
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not processes_in_group(process.pid))  # the kernel takes a moment
    assert f"generate --resume {job} --outputs {program.outputs}" in err.decode()
    assert not list((program.outputs / job).rglob("*.tmp"))
    assert JobService(program.outputs).job(job).state == "interrupted"

    code, out, err = program.run("generate", "--json", "--resume", job, "--out", str(program.outputs))
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["section"] for event in events if event["event"] == "section_finished"] == [2]
    assert [event["event"] in ("cancelled", "failed", "finished") for event in events].count(True) == 1
    assert Path(events[-1]["video"]).read_bytes() == b"video of 73 frames"


@pytest.mark.slow
def test_a_second_command_follows_the_first_and_then_makes_its_own_job(program: Program) -> None:
    first = program.start("generate", "--json", script="sections=2 steps=1 at=1 fault=wait")
    job = until(first, "section_finished")["job"]
    second = program.start("generate", script="steps=1")
    err = stream(second.stderr)
    lines = iter(lambda: err.readline().decode(), "")
    assert any("Another program makes the jobs of this folder" in line for line in lines)
    # A third one follows the first one's job, and ends it.
    third = program.start("generate", "--json", "--resume", job, "--out", str(program.outputs))
    wait_until(lambda: b"follows" in stream(third.stderr).readline())
    third.send_signal(signal.SIGINT)
    out, _ = third.communicate(timeout=TIMEOUT)
    assert third.returncode == 130
    assert json.loads(out.splitlines()[-1])["event"] == "cancelled"
    assert first.wait(TIMEOUT) == 130
    assert any("This one makes the job now" in line for line in lines)
    assert second.wait(TIMEOUT) == 0
    assert Path(stream(second.stdout).read().decode().strip()).read_bytes() == b"video of 73 frames"


@pytest.mark.slow
def test_native_code_that_is_still_at_work_does_not_spoil_the_end(program: Program) -> None:
    code, out, err = program.run("generate", "--in-process", script="sections=2 steps=2 at=1 fault=native")
    assert code == 0, err
    assert Path(out.splitlines()[-1]).read_bytes() == b"video of 73 frames"


def test_a_second_interrupt_quits_at_once(program: Program) -> None:
    process = program.start("generate", "--json", script="fault=hang at=1")
    job = until(process, "step_done")["job"]
    tasks = Path(f"/proc/{process.pid}/task")
    before = {one.name for one in tasks.iterdir()}
    process.send_signal(signal.SIGINT)
    # Two pending signals count as one, so wait for the thread that the first one starts.
    wait_until(lambda: not {one.name for one in tasks.iterdir()} <= before)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["event"] == "cancelled"
    wait_until(lambda: not processes_in_group(process.pid))
    # The command said that the job was cancelled, and so does the index.
    assert JobService(program.outputs).job(job).state == "cancelled"


def test_a_terminal_gets_a_line_that_moves(program: Program) -> None:
    near, far = os.openpty()
    termios.tcsetwinsize(far, (40, 120))
    process = program.start("generate", script="sections=2 steps=4", stderr=far)
    os.close(far)
    shown = b""
    with contextlib.suppress(OSError), open(near, "rb", buffering=0) as terminal:
        while part := terminal.read(4096):
            shown += part
    assert process.wait(TIMEOUT) == 0
    for words in ("step 4 of 4", " %|█", "Section 1 of 2", "Section 2 of 2", "Finished: 73 frames"):
        assert words.encode() in shown
    video = Path(stream(process.stdout).read().decode().splitlines()[-1])
    assert video.read_bytes() == b"video of 73 frames"

"""Tests of what reaches a terminal: no control character, from wherever it comes."""

import errno
import io
import json
import logging
import os
import queue
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.stdio import (
    Child,
    ErrorTail,
    close_child,
    complain,
    in_language,
    prepare_streams,
    say,
    write_whole,
)
from diffusers_helper.machine.terminal import LogLines, is_plain_text, one_line, visible
from diffusers_helper.runner import job_log
from tests.support.jobs import wait_until

HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\u2066e\x7ff\rg\x07\ud800h\x00\u2028"
SHOWN = r"a\x1b[2Jb\u009b31mc\u202ed\u2066e\u007ff\x0dg\x07\ud800h\x00\u2028"
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def test_controls_are_shown_and_other_text_stays() -> None:
    plain = "Ein Hörnchen, 日本語, עברית, 👩‍👩‍👧, a\tb\n…"
    assert (visible(HOSTILE), visible(plain), one_line("a\nb")) == (SHOWN, plain, r"a\nb")
    assert json.loads(one_line(json.dumps({"name": HOSTILE}))) == {"name": HOSTILE}
    assert [is_plain_text(text) for text in ("é\n\x1b🙂", "a\0", "\udce9")] == [True, False, False]


def test_each_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    prepare_streams()
    say("one\ntwo", "three")
    complain("error: no file x\nDone.")
    assert capsys.readouterr() == ("one\\ntwo\nthree\n", "error: no file x\\nDone.\n")


def test_a_stream_of_another_encoding_takes_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", errors="strict"))
    prepare_streams()
    say("é\udce9")
    assert buffer.getvalue() == b"\\xe9\\udce9\n"


def test_a_pipe_that_takes_a_part_at_a_time_gets_all() -> None:
    taken = list[bytes]()
    narrow: Any = SimpleNamespace(write=lambda content: taken.append(content[:3]) or len(content[:3]))
    write_whole(narrow, b"an event")
    assert taken == [b"an ", b"eve", b"nt"]


def test_a_record_of_a_log_is_one_line_besides_its_traceback(tmp_path: Path) -> None:
    try:
        raise ValueError("foreign\nlines\x1b[31m")
    except ValueError:
        message = f"{HOSTILE}\nINFO: no"
        record = logging.LogRecord("x", logging.WARNING, __file__, 1, "%s", (message,), sys.exc_info())
    first, *rest = LogLines("%(levelname)s: %(message)s").format(record).split("\n")
    assert (first, rest[-1]) == (f"WARNING: {SHOWN}\\nINFO: no", r"lines\x1b[31m")
    with job_log(tmp_path / "job.log"):
        logging.getLogger("cache").warning("%s", f"{HOSTILE}\nforged")
    assert (tmp_path / "job.log").read_text().endswith(f"WARNING {SHOWN}\\nforged\n")


def test_native_words_of_a_child_are_shown_too(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    tail = ErrorTail(os.fdopen(reader, "rb"))
    for part in (b"\r10%\rhsa \x1b[31mfault \xc2", b"\x9b \xff\n"):
        os.write(writer, part)
    os.close(writer)
    assert "fault" in tail.text()
    assert capfd.readouterr().err == "\r10%\rhsa \\x1b[31mfault \\u009b \\xff\n"


def test_the_end_of_a_childs_words_is_kept_until_the_next_job_and_a_quiet_child_shows_none(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_shown in (True, False):
        reader, writer = os.pipe()
        tail = ErrorTail(os.fdopen(reader, "rb"), is_shown=is_shown)
        os.write(writer, b"a" * 20_000 + b"b")
        wait_until(lambda tail=tail: tail._tail[-1:] == b"b")
        assert tail._tail == b"a" * 16_383 + b"b"
        tail.forget()
        os.write(writer, b"c")
        os.close(writer)
        assert tail.text() == "c"
        assert capfd.readouterr().err == ("a" * 20_000 + "bc") * is_shown


def test_what_is_no_message_of_a_child_is_passed_over_and_its_end_is_told() -> None:
    lines = ("no JSON", "{}", "[1]", "7", '{"n": 1}')
    heard = queue.SimpleQueue[Any]()

    def take(message: Any) -> None:
        heard.put(None if message is None else dict(message.items())["n"])

    child = Child((sys.executable, "-c", f"print({chr(10).join(lines)!r})"), os.environ, take)
    assert [heard.get(timeout=60), heard.get(timeout=60)] == [1, None]
    child.send({"to": "nobody"})
    close_child(child.process, 5.0)
    assert child.process.returncode == 0


def test_what_programs_read_is_not_translated_and_a_closed_stream_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANGUAGE", "de")
    texts = ('{"state": "Cancelled."}', '["Cancelled."]', "Cancelled.")
    assert [in_language(text) == text for text in texts] == [True, True, False]

    def refuse(text: str) -> None:
        raise OSError(errno.EPIPE, "closed")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=refuse, flush=lambda: None))
    complain("A word.")


def test_no_program_writes_past_these_functions() -> None:
    """Line breaks within names are only shown by `say` and `complain`; others may end a prompt or a bar."""
    root = Path(__file__).parents[3]
    found = {
        f"{file.relative_to(root)}: {line.strip()}"
        for file in (root / "app").rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"sys\.std(out|err)\.write\(", line) and file.name != "stdio.py"
    }
    assert found == {
        'app/commands/models/command.py: sys.stderr.write(one_line(f"Remove {description}? [y/N] "))',
        'app/commands/terminal.py: sys.stderr.write(f"\\r{line:<{_WIDTH}}")',
        'app/commands/terminal.py: sys.stderr.write("\\n")',
    }

"""Tests that the rows of a benchmark are on the disk as soon as they are measured."""

import json
import runpy
import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rows import EXIT_INTERRUPTED, Rows

STREAMING = Path(__file__).parents[2] / "benchmarks" / "streaming.py"


PROGRAMS = [file for file in STREAMING.parent.glob("*.py") if "__main__" in file.read_text(encoding="utf-8")]


def content(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_file_is_whole_after_each_row(tmp_path: Path) -> None:
    file, facts = tmp_path / "new" / "rows.json", {"torch": "2"}
    with Rows("some.py", file, lambda: facts) as rows:
        for number in range(3):
            rows.add({"number": number})
            done = [{"number": one} for one in range(number + 1)]
            assert content(file) == {"complete": False, "torch": "2", "rows": done}
    assert content(file) == {"complete": True, "torch": "2", "rows": list(rows)}
    assert rows.exit_code(1) == 1


def test_ctrl_c_ends_the_measurements_and_keeps_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Rows("folder/some.py") as rows:
        rows.add({"seconds": 1.5})
        raise KeyboardInterrupt
    file = tmp_path / "longtake-benchmarks" / "some.json"
    assert content(file) == {"complete": False, "rows": [{"seconds": 1.5}]}
    assert rows.exit_code() == EXIT_INTERRUPTED
    assert capsys.readouterr().err == f"Interrupted. What was measured is kept in {file}.\n"


def test_a_fault_is_raised_and_keeps_the_rows(tmp_path: Path) -> None:
    rows = Rows("some.py", tmp_path / "rows.json")
    with pytest.raises(TypeError, match="not JSON serializable"), rows:
        [rows.add(row) for row in ({"seconds": 1.5}, {"seconds": object()})]
    assert content(rows.file) == {"complete": False, "rows": [{"seconds": 1.5}]}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda file: file.stem)
def test_each_benchmark_can_be_imported_and_keeps_its_rows(program: Path) -> None:
    import_module(f"benchmarks.{program.stem}")
    text = program.read_text(encoding="utf-8")
    assert "Rows(__file__" in text
    assert ".exit_code(" in text


def test_a_benchmark_that_is_interrupted_leaves_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Rows.add
    monkeypatch.setattr(Rows, "add", lambda rows, row: (add(rows, row), signal.raise_signal(signal.SIGINT)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sizes = "--heads 1 --double 1 --single 1 --latent 16 --steps 1"
    monkeypatch.setattr("sys.argv", [str(STREAMING), *sizes.split()])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(STREAMING), run_name="__main__")
    assert end.value.code == EXIT_INTERRUPTED
    found = content(tmp_path / "longtake-benchmarks" / "streaming.json")
    assert [row["way"] for row in found["rows"]] == ["resident"]
    assert not found["complete"]

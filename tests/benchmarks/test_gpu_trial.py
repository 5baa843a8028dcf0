"""Tests of the trial on a GPU: its parts with tiny networks, and what is left of a part that ends badly."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_trial import step
from benchmarks.gpu_trial.__main__ import main
from benchmarks.gpu_trial.parts import CALLS, LOG, PARTS, facts_of, file_of, run_child
from benchmarks.gpu_trial.report import table
from benchmarks.gpu_trial.trial import NEEDS_GPU, Trial, deviation
from diffusers_helper.planning.estimates import latent_tokens
from tests.support.jobs import ROOT, wait_until

SCRIPT = ROOT / "scripts/gpu_trial"
KITCHEN = "comfy-kitchen is not installed"


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("--tiny", "A")])
def test_a_wrong_call_ends_in_one_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run((SCRIPT, *arguments), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Which parts?")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def content(part: str, out: Path) -> dict[str, Any]:
    return json.loads(file_of(part, out).read_text(encoding="utf-8"))


# A stand-in for a part: it measures one row, and then ends in its own way.
STAND_IN = """
import os, signal, sys
from pathlib import Path
from benchmarks.rows import Rows
with Rows("", Path(sys.argv[1]), lambda: {"part": "4"}) as rows:
    rows.add({"name": "first", "seconds": 1.5})
    exec(sys.argv[2])
"""


def stand_in(out: Path, ending: str) -> list[str]:
    return [sys.executable, "-c", STAND_IN, str(file_of("4", out)), ending]


ROWS = [{"name": "first", "seconds": 1.5}]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("raise ValueError('no such card')", "ValueError: no such card"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os._exit(3)", "ended with code 3"),
    ],
)
def test_a_part_that_ends_badly_leaves_its_rows_and_the_reason(
    ending: str, reason: str, tmp_path: Path
) -> None:
    assert run_child("4", stand_in(tmp_path, ending), tmp_path, 100, is_tiny=True) == reason
    expected = {"complete": False, **facts_of("4", is_tiny=True), "rows": ROWS, "failed": reason}
    assert content("4", tmp_path) == expected


def test_a_part_that_ends_well_has_no_reason(tmp_path: Path) -> None:
    assert run_child("4", stand_in(tmp_path, "print('done')"), tmp_path, 100) == ""
    assert content("4", tmp_path) == {"complete": True, "part": "4", "rows": ROWS}
    assert (tmp_path / LOG).read_text() == "done\n"


def test_a_part_that_hangs_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, wait = list[subprocess.Popen[bytes]](), subprocess.Popen.wait

    def wait_in_vain(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        started.append(process)
        wait_until(lambda: file_of("4", tmp_path).exists())
        raise subprocess.TimeoutExpired("part", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_in_vain)
    reason = run_child("4", stand_in(tmp_path, "signal.pause()"), tmp_path, 270)
    assert reason == content("4", tmp_path)["failed"] == "no end within 270 s"
    assert content("4", tmp_path)["rows"] == ROWS
    assert [process.returncode for process in started] == [-9]


def test_a_case_that_fails_is_a_row_and_the_next_one_is_measured(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise torch.OutOfMemoryError("out of memory\nat some place")

    cases = [("a", fail), ("b", NEEDS_GPU), ("c", lambda: {"seconds": 2.0})]
    Trial(tmp_path, True).run(cases, tmp_path / "rows.json", {"part": "1"})
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == [
        {"name": "a", "failed": "OutOfMemoryError: out of memory"},
        {"name": "b", "skipped": NEEDS_GPU},
        {"name": "c", "seconds": 2.0},
    ]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Trial:
    return trial_of(tiny_model, tmp_path_factory.mktemp("trial"))


def trial_of(model: Path, folder: Path) -> Trial:
    (folder / "tiny").symlink_to(model)
    return Trial(folder, True)


def measured(part: str, trial: Trial, out: Path) -> dict[str, dict[str, Any]]:
    """Run a part, and return its rows by name. None of them has failed, and none is left out in silence."""
    trial.run(PARTS[part].load()(trial), file_of(part, out), facts_of(part, is_tiny=True))
    assert content(part, out)["complete"]
    rows = content(part, out)["rows"]
    found = {row.pop("name"): row for row in rows}
    assert len(found) == len(rows)
    assert [
        row
        for row in found.values()
        if "failed" in row or row.get("skipped", KITCHEN) not in (KITCHEN, NEEDS_GPU)
    ] == []
    return {name: row for name, row in found.items() if "skipped" not in row}


def test_the_calls_have_all_parts() -> None:
    assert [*CALLS["A"], *CALLS["B"]] == [*PARTS]


@pytest.mark.slow
def test_part_1_splits_a_step(trial: Trial, tmp_path: Path) -> None:
    rows = measured("1", trial, tmp_path)
    split = rows["the same by the profiler"]
    kinds = [split[f"{kind}_seconds"] for kind in ("products", "attention", "elementwise", "idle")]
    assert min(kinds) > 0
    assert sum(kinds) == pytest.approx(split["seconds"])
    operations = rows["its operations"]
    # Two blocks of two heads of 16 values, and the refiner of the text, which has one layer. The text and the
    # picture have 16 tokens each.
    tokens = latent_tokens(*trial.shape) + 2 * 16
    assert operations["attention_operations"] == 4 * 2 * 16 * (2 * tokens**2 + 16**2)


@pytest.mark.slow
def test_part_2_gives_the_same_step_in_each_way(trial: Trial, tmp_path: Path) -> None:
    rows = measured("2", trial, tmp_path)
    assert {name: row["streamed_blocks"] for name, row in rows.items() if not name.startswith("comfy")} == {
        f"{way}, {where}": count
        for where, count in (("resident", 0), ("half streamed", 1), ("all streamed", 2))
        for way in ("plain", "compiled blocks")
    }
    assert max(row["deviation"] for row in rows.values()) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_part_3_measures_each_ceiling(trial: Trial, tmp_path: Path) -> None:
    rows = measured("3", trial, tmp_path)
    assert sum(name.startswith("product") for name in rows) == 10
    assert all(row["deviation"] < 0.02 for name, row in rows.items() if "int8" in name)
    assert {"attention, flash", "modulation, compiled", "copy, mapped for reading"} <= rows.keys()


@pytest.mark.slow
def test_part_4_samples_the_same_latents_as_diffusers(deep_model: Path, tmp_path: Path) -> None:
    rows = measured("4", trial_of(deep_model, tmp_path), tmp_path)
    assert len({tuple(row) for row in rows.values()}) == 1, "all rows have the same figures"
    ours = {name: row for name, row in rows.items() if name.startswith("longtake")}
    caps = [row["cap_bytes"] for name, row in ours.items() if "cap of" in name]
    assert caps == sorted({*caps}, reverse=True)
    assert len(caps) == 4
    assert all(row["same_bits"] for row in ours.values())
    assert ours["longtake, all streamed"]["copied_bytes"] > 0 == ours["longtake, resident"]["copied_bytes"]
    assert len(rows) - len(ours) == 5
    assert max(row["deviation"] for row in rows.values()) < 1e-5
    assert all(len(row["step_seconds"]) == 2 for row in rows.values())


@pytest.mark.slow
def test_part_5_makes_the_same_section_as_diffusers(trial: Trial, tmp_path: Path) -> None:
    rows = measured("5", trial, tmp_path)
    ours, theirs = rows["longtake"], rows["diffusers, model offload"]
    assert ours["stage_seconds"].keys() == theirs["stage_seconds"].keys()
    assert ours["stage_seconds"].keys() == {"text", "vision", "vae_encode", "sample", "decode"}
    assert len(theirs["step_seconds"]) == 7
    for row in rows.values():
        assert row.get("failed") or row["deviation"] < 0.05
    assert rows["longtake, as trials chose"]["same_bits"]  # a CPU tries nothing
    assert theirs["deviation"] < 1e-3  # each prepares the picture for the vision encoder in its own way


@pytest.mark.slow
def test_part_6_decodes_the_same_in_both_layouts(trial: Trial, tmp_path: Path) -> None:
    rows = measured("6", trial, tmp_path)
    plain, other = (
        [row["deviation"] for name, row in rows.items() if layout in name] for layout in ("plain", "last")
    )
    assert plain[0] == 0
    assert len(plain) == 4
    assert other == pytest.approx(plain, abs=1e-5)


def test_streamed_blocks_with_fused_kernels_give_the_same(trial: Trial) -> None:
    pytest.importorskip("comfy_kitchen")
    one = step.Step(trial)
    with one.placed() as run:
        expected = run()
    with step.kitchen_blocks(one.network) as backends, one.placed(2) as run:
        found = run()
    assert "eager" in backends
    assert 0 < deviation(found, expected) < 1e-6
    with one.placed() as run:
        assert torch.equal(run(), expected)


@pytest.mark.slow
def test_the_script_runs_a_part_and_reports_it(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/tiny").symlink_to(tiny_model)
    call = [str(SCRIPT), "7", "--tiny", "--out", "out", "--work", "work", "--wheels", "none"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(content("7", tmp_path / "out")["rows"]) == 5
    monkeypatch.setattr("sys.argv", ["gpu_trial", "report", str(tmp_path / "out")])
    assert main() == 0
    assert capsys.readouterr().out == table(tmp_path / "out")

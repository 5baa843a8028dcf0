"""Tests of the checks of reports, of the table that they fill, and of the command."""

import json
import math
import os
import runpy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.bench.facts import hint
from app.bench.report import checksum, published, to_bytes, to_markdown
from app.bench.runner import BenchRun
from app.bench.table import LEVELS, PARTS, parts_of
from app.commands import bench
from app.machine import this_local
from diffusers_helper.bench.cases import function_of
from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import speeds
from diffusers_helper.planning.profiles import Machine
from diffusers_helper.units import GB
from tests.app.conftest import Longtake
from tests.support.bench_runs import new_report
from tests.support.jobs import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "hardware_table.py"))
# The network has 16 GiB here, its working memory is planned as 2 GiB, and takes 2.5.
STEP = {
    "seconds_per_step": 2.0, "is_reduced": False, "stage": "sample", "working_bytes": 2 * GB,
    "planned_bytes": 18 * GB, "measured_bytes": 37 * GB // 2, "reserve_bytes": GB,
    "allocator_peak_bytes": 37 * GB // 2, "driver_start_bytes": GB // 2, "driver_peak_bytes": 20 * GB,
}  # fmt: skip


def some_report(**cases: Any) -> dict[str, Any]:
    part = {"title": "A step", "level": "quick", "reason": "", "seconds": 1.5, "is_complete": True}
    stages = {"decode": {"seconds": 10.0, "planned_bytes": 2**31, "measured_bytes": 2**30}}
    found = {
        "step": {"this card's plan": {"figures": dict(STEP)}},
        "framepack": {"section": {"figures": {"seconds_per_step": 2.0, "stages": stages}}},
        "attention": {"flash": {"failed": "killed by signal 6"}, "math": {"skipped": "not here"}, **cases},
    }
    report = new_report() | {"level": "standard", "is_complete": True}
    watts = {"clock_hz": None, "power_watts": {"median": 280.0, "most": 310.0}}
    return {
        **report, "parts": {name: {**part, "card": watts, "cases": one} for name, one in found.items()}
    }  # fmt: skip


def sealed(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"checksum": checksum(report)}


def write(file: Path, report: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report), encoding="utf-8")
    return file


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = some_report()
    (tmp_path / "a.json").write_bytes(to_bytes(report))
    assert SCRIPT["read_report"](tmp_path / "a.json") == sealed(report)


@pytest.mark.parametrize("file", sorted(ROOT.glob("docs/reports/*.json")), ids=lambda file: file.stem)
def test_reports_of_earlier_versions_are_read(file: Path) -> None:
    report = SCRIPT["read_report"](file)
    assert report["versions"]["longtake"] in ("0.1.0", "0.2.0")
    assert to_markdown(report).startswith("# ")


def test_another_format_and_an_edited_file_are_refused(tmp_path: Path) -> None:
    edited = sealed(some_report())
    edited["parts"]["step"]["cases"]["this card's plan"]["figures"]["seconds_per_step"] = 1.0
    for report, problem in (
        (sealed(some_report() | {"version": 2}), "is not of the format 'longtake-bench', version 1"),
        (edited, "was changed"),
        (sealed(some_report(mine={"figures": {"prompt": "a cat"}})), "something private: '\"prompt\":'"),
    ):
        with pytest.raises(ValueError, match=rf"card\.json .*{problem}"):
            SCRIPT["read_report"](write(tmp_path / "card.json", report))


@pytest.mark.parametrize(
    "text", ["from /srv/anne/models", "C:\\Users\\anne", "anne@example.org", "on 192.168.1.20", "token=abc"]
)
def test_what_is_private_is_left_out_and_refused(tmp_path: Path, text: str) -> None:
    assert text not in published({"error": text})["error"]
    with pytest.raises(ValueError, match="tells something private"):
        SCRIPT["read_report"](write(tmp_path / "card.json", sealed(some_report() | {"weights": text})))


def test_a_report_as_a_page_a_row_and_what_is_learned(snapshot: SnapshotAssertion) -> None:
    report = sealed(some_report(new={"figures": {"operations_per_second": 1.5e12, "bytes": 2**30}}))
    text = SCRIPT["DOCUMENT"].read_text(encoding="utf-8")
    rows = SCRIPT["documented"](text, {"xtx": report}).splitlines()
    row = next(line for line in rows if "reports/xtx" in line)
    learned = SCRIPT["reported"]({"xtx": report}).partition("CARDS")[2]
    assert "\n".join([to_markdown(report), row, learned]) == snapshot
    assert SCRIPT["video_rate"](report) == pytest.approx(60 * 1.2 / 60)
    assert checksum(report) == report["checksum"]


def test_the_table_of_the_repository_is_that_of_its_reports() -> None:
    reports, text = SCRIPT["known_reports"](), SCRIPT["DOCUMENT"].read_text(encoding="utf-8")
    assert SCRIPT["documented"](text, reports) == text, "Run scripts/hardware_table.py."
    assert SCRIPT["reported"](reports) == SCRIPT["REPORTED"].read_text(encoding="utf-8")


@pytest.mark.parametrize(("planned", "measured"), [(0, 5), (-1, 5), (100, 0), (100, 401), (100, 24)])
def test_a_figure_that_no_card_can_have_is_refused(planned: int, measured: int) -> None:
    with pytest.raises(ValueError, match=r"expected 0\.25 to 4 times the plan"):
        SCRIPT["ratio_of"]("sample", planned, measured)


def test_the_benchmark_is_offered_on_cards_without_a_report() -> None:
    known = "gfx1100", "NVIDIA H200"
    assert hint(Machine("rocm", "gfx1100", "a card", 1), known) == ""
    assert hint(Machine("cuda", "", "NVIDIA H200", 1), known) == ""
    assert hint(Machine("cpu", "", "CPU", 1), known) == ""
    assert "longtake bench --report card.json" in hint(Machine("rocm", "gfx1201", "a card", 1), known)


def test_each_part_has_a_function_and_the_levels_grow() -> None:
    for name, part in PARTS.items():
        assert callable(function_of(part.function)), name
    quick, standard, full = (set(parts_of(level)) for level in LEVELS)
    assert {"memory", "bus", "step", "products", "attention", "convolutions", "vae", "job"} == quick
    assert quick < standard < full == set(PARTS)


@pytest.mark.parametrize(
    ("options", "level", "names"),
    [
        ([], "quick", parts_of("quick")), (["--quick"], "quick", parts_of("quick")),
        (["--standard", "--again"], "standard", parts_of("standard")),
        (["--full"], "full", list(PARTS)),
        (["--full", "--only", "step-disk", "--only", "bus"], "full", ["step-disk", "bus"]),
    ],
)  # fmt: skip
def test_an_option_chooses_what_is_measured(
    tmp_path: Path,
    longtake: Longtake,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    level: str,
    names: list[str],
) -> None:
    runs = list[tuple[str, list[str], bool]]()

    def run(self: BenchRun, names: list[str], end: float) -> None:
        runs.append((self.report["level"], names, math.isfinite(end)))
        self.save(self.report)

    monkeypatch.setattr(BenchRun, "run", run)
    monkeypatch.setattr("app.commands.bench.ask_torch", lambda environ: {})
    longtake("bench", "--out", tmp_path, *options)
    assert runs == [(level, names, level == "quick")]


def test_the_quick_level_writes_little() -> None:
    from diffusers_helper.bench.kernels import _SAMPLE_BYTES
    from diffusers_helper.families.framepack import CONFIGS
    from diffusers_helper.loading.networks import empty_network

    one_of_each = {**CONFIGS["transformer"], "num_layers": 1, "num_single_layers": 1}
    values = sum(one.numel() for one in empty_network("transformer", one_of_each).parameters())
    assert 2 * values + _SAMPLE_BYTES < 2 * GB  # as the help says


def test_the_command_leaves_a_report_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    def stopped(self: BenchRun, names: list[str], end: float) -> None:
        self.report["parts"]["bus"] = {
            "title": "Copies", "level": "quick", "reason": "", "seconds": 0.5, "is_complete": False,
            "card": {}, "cases": {"copies": {"figures": {"host_to_device_bytes_per_second": 1e9}}},
        }  # fmt: skip
        self.save(self.report)
        raise KeyboardInterrupt

    monkeypatch.setattr(BenchRun, "run", stopped)
    monkeypatch.setattr("app.commands.bench.ask_torch", lambda environ: {})
    target = tmp_path / "mine.json"
    shown = longtake("bench", "--out", tmp_path / "out", "--report", target, "--json", code=130)
    report, sentence = shown.splitlines()
    assert json.loads(report) == SCRIPT["read_report"](target)
    assert sentence == "Stopped. The report holds what was measured."
    assert speeds(this_local(os.environ).speeds, "cpu").host_to_device_bytes_per_second == 1e9
    assert "host to device per second 954 MB" in (tmp_path / "mine.json.md").read_text(encoding="utf-8")
    assert [line.split()[0] for line in longtake("bench", "--list").splitlines()] == list(PARTS)
    listed = map(json.loads, longtake("bench", "--list", "--json").splitlines())
    assert [facts["part"] for facts in listed] == list(PARTS)


def test_what_the_command_tells_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    def run(self: BenchRun, names: list[str], end: float) -> None:
        speed = {"copies": {"figures": {"host_copy_bytes_per_second": 2e9}}}
        memory = {**some_report()["parts"]["step"], "title": "Memory", "cases": speed}
        self.report["parts"] = {**some_report()["parts"], "memory": memory}
        self.save(self.report)

    monkeypatch.setattr(BenchRun, "run", run)
    monkeypatch.setattr("app.commands.bench.ask_torch", lambda environ: {})
    monkeypatch.setattr("app.commands.bench._model", lambda name: name or "")
    target = tmp_path / "a.json"
    for options, weights in ((["--report", target], "random"), (["--model", "framepack-f1"], "real")):
        *_, off, failed, kept = longtake("bench", "--out", tmp_path / "out", *options).splitlines()
        assert off == "Planned 2.00 times what was measured: framepack, section, decode"
        assert failed == "Failed: attention: flash: killed by signal 6"
        file = tmp_path / "out" / "report.json"
        assert kept == (f"Kept in {target} and a.json.md" if weights == "random" else f"Kept in {file}")
        assert json.loads(file.read_text())["weights"] == weights
    assert speeds(this_local(os.environ).speeds, "cpu").host_copy_bytes_per_second == 2e9


def test_the_weights_are_those_of_the_first_framepack_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, name, expected in (
        (("framepack-f1",), None, "framepack-f1"), (("framepack-i2v", "framepack-f1"), None, "framepack-i2v"),
        (("helios-base", "demo", "wan-5b"), None, ""), (("demo",), "demo", "demo"),
        ((), "framepack-f1", None),
    ):  # fmt: skip
        monkeypatch.setattr(bench, "absence_of", lambda info, here=here: None if info.name in here else info)
        monkeypatch.setattr(bench, "NotHere", lambda absence: InputError("It is not here.", ""))
        with pytest.raises(InputError, match="not here") if expected is None else nullcontext():
            assert bench._model(name) == expected


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    monkeypatch.setattr(BenchRun, "_run_part", lambda self, name, end: pytest.fail("it was measured"))
    monkeypatch.setattr("app.commands.bench.ask_torch", lambda environ: {})
    for target in (tmp_path / "gone" / "a.json", tmp_path):
        (line,) = longtake("bench", "--out", tmp_path / "out", "--report", target, code=2).splitlines()
        assert line == f"{target} is no file in a folder; expected one for the report. Name one."
    assert tmp_path.is_dir()

"""A script that writes what the reports in docs/reports say: for people in docs/hardware.md, and for plans.

    python scripts/hardware_table.py [--check] [--root FOLDER]

With --check nothing is written; the exit code is 1 if the table is not that of the reports, and 2 if a report
cannot be used: of another format, changed by hand, or with something private in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from app.bench.facts import card_key
from app.bench.report import Report, read_report, table_of
from diffusers_helper.errors import InputError
from diffusers_helper.planning.backend import MeasuredStage
from diffusers_helper.units import GB

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- The reports begin. scripts/hardware_table.py writes them. -->", "<!-- The reports end. -->"
REPORTED = "diffusers_helper/planning/cards/reported.py"


def measured_stages(report: Report) -> Iterator[MeasuredStage]:
    """Yield what the estimates of stages, and the reserve, came to on a report's card at full size."""
    card, versions = report["card"], report["versions"]
    runtime = f"ROCm {versions['rocm']}" if versions["rocm"] else f"CUDA {versions['cuda']}"
    place = card["arch"] or card["kind"], versions["torch"], runtime
    cases = [case.get("figures", {}) for part in report["parts"].values() for case in part["cases"].values()]
    for one in cases:
        if card["kind"] == "cpu" or "working_bytes" not in one or one["is_reduced"]:
            continue
        weights = one["planned_bytes"] - one["working_bytes"]
        yield MeasuredStage(*place, one["stage"], one["working_bytes"], one["measured_bytes"] - weights)
        # A card on which other programs have memory does not show what this one holds beside torch.
        if one.get("reserve_bytes") and one["driver_start_bytes"] < GB:
            beside = one["driver_peak_bytes"] - one["allocator_peak_bytes"]
            yield MeasuredStage(*place, "reserve", one["reserve_bytes"], beside)


def reported(reports: dict[str, Report]) -> str:
    """Return the module with the known cards, and the largest ratio of each card, version and stage.

    Raises:
        ValueError: If a figure of a report is too far from its plan to be right.
    """
    found = [row for one in reports.values() for row in measured_stages(one)]
    largest = {row[:4]: row for row in map(astuple, sorted(found, key=lambda row: row.ratio))}
    cards = sorted({card_key(one["card"]) for one in reports.values() if one["card"]["kind"] != "cpu"})
    return (
        '"""What reports of the benchmark say of cards, as scripts/hardware_table.py writes it."""\n\n'
        f"CARDS: tuple[str, ...] = {_literal(cards)}\n"
        f"STAGES: tuple[tuple[str, str, str, str, int, int], ...] = {_literal(sorted(largest.values()))}\n"
    )


def _literal(values: Sequence[object]) -> str:
    lines = "".join(f"    {value!r},\n".replace("'", '"') for value in values)
    return f"(\n{lines})" if lines else "()"


def main() -> int:
    """Write or check the files, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; tell whether the files are right"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        reports = {
            file.stem: read_report(file) for file in sorted(arguments.root.glob("docs/reports/*.json"))
        }
    except InputError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    page = arguments.root / "docs" / "hardware.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.stderr.write("docs/hardware.md lacks the two comments between which the table stands\n")
        return 2
    try:
        learned = reported(reports)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    wanted = {
        page: f"{before}{BEGIN}\n\n{table_of(reports)}\n\n{END}{after}", arguments.root / REPORTED: learned,
    }  # fmt: skip
    for file, text in wanted.items():
        if arguments.check and (not file.exists() or file.read_text(encoding="utf-8") != text):
            sys.stderr.write(f"{file.name} is not that of the reports; run scripts/hardware_table.py\n")
            return 1
        if not arguments.check:
            file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

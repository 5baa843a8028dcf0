"""A script that writes what the reports in docs/reports say: for people in docs/hardware.md, and for plans.

A report that cannot be used is named: of another format, or changed by hand.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from app.bench.report import (
    FORMAT,
    PRIVATE,
    VERSION,
    Report,
    card_words,
    checksum,
    failures,
    planned_peaks,
    version_words,
)  # fmt: skip
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.units import GB, gb_text

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- The reports begin. scripts/hardware_table.py writes them. -->", "<!-- The reports end. -->"
DOCUMENT, REPORTED = ROOT / "docs/hardware.md", ROOT / "diffusers_helper/planning/cards/reported.py"
_STEPS = 25  # of FramePack's default
_NOT_MEASURED, _MOST_FAILURES = "not measured", 3
# A ratio outside of these is a mistake in a report, rather than a property of a card.
_LEAST, _MOST = 0.25, 4.0


def measured_stages(report: Report) -> Iterator[tuple[str, int, int]]:
    """Yield the planned and measured bytes of stages, and of the reserve, on a report's card at full size.

    Those of a stage are its working memory: the peak of the allocator, less the plan's weights and ring.
    """
    cases = [case.get("figures", {}) for part in report["parts"].values() for case in part["cases"].values()]
    for one in cases:
        if report["card"]["kind"] == "cpu" or "working_bytes" not in one or one["is_reduced"]:
            continue
        weights = one["planned_bytes"] - one["working_bytes"]
        yield one["stage"], one["working_bytes"], one["measured_bytes"] - weights
        # A card on which other programs have memory does not show what this one holds beside torch.
        if one.get("reserve_bytes") and one["driver_start_bytes"] < GB:
            yield "reserve", one["reserve_bytes"], one["driver_peak_bytes"] - one["allocator_peak_bytes"]


def ratio_of(stage: str, planned: int, measured: int) -> float:
    """Return measured memory as a multiple of the planned one.

    Raises:
        ValueError: If no card can have it.
    """
    if not (planned > 0 and _LEAST <= measured / planned <= _MOST):
        raise ValueError(
            f"{stage}: {measured} of {planned} planned bytes; expected {_LEAST:g} to {_MOST:g} times the plan"
        )
    return measured / planned


def reported(reports: dict[str, Report]) -> str:
    """Return the module with the known cards, and the largest ratio of each card and stage.

    The largest, since a plan has to hold for every version of torch and for every video.

    Raises:
        ValueError: If a figure of a report is too far from its plan to be right.
    """
    ratios: dict[str, dict[str, float]] = {}
    for one in reports.values():
        for stage, wanted, measured in measured_stages(one):
            found = ratios.setdefault(one["card"]["arch"] or one["card"]["kind"], {})
            found[stage] = max(found.get(stage, 0.0), ratio_of(stage, wanted, measured))
    seen = [one["card"] for one in reports.values() if one["card"]["kind"] != "cpu"]
    cards = sorted({card["arch"] or card["name"] for card in seen})
    rows = (f"{card!r}: {ratios[card]!r}" for card in sorted(ratios))
    return (
        '"""What reports of the benchmark say of cards, as scripts/hardware_table.py writes it."""\n\n'
        "# fmt: off\n"
        f"CARDS: tuple[str, ...] = {_literal(map(repr, cards), '()')}\n"
        "# Measured memory as a multiple of the estimate, by card and stage, or the reserve\n"
        f"RATIOS: dict[str, dict[str, float]] = {_literal(rows, '{}')}\n"
    )


def _figure_of(report: Report, part: str, label: str, name: str) -> Any:
    """Return one figure of a case, or None if it was not measured."""
    cases = report["parts"].get(part, {}).get("cases", {})
    return cases.get(label, {}).get("figures", {}).get(name)


def step_seconds(report: Report) -> float | None:
    """Return the time of a step of FramePack at 640 pixels by this card's plan; None if not measured."""
    found = _figure_of(report, "framepack", "section", "seconds_per_step")
    return found or _figure_of(report, "step", "this card's plan", "seconds_per_step")


def video_rate(report: Report) -> float | None:
    """Return the seconds of video per minute with FramePack at its full size; None if not measured.

    It counts the steps and the decoding of a section, and not the encoding of picture and prompt.
    """
    stages = _figure_of(report, "framepack", "section", "stages") or {}
    step, decode = step_seconds(report), stages.get("decode", {}).get("seconds")
    if step is None or decode is None:
        return None
    return 60 * FRAMEPACK.plan(1.2, "inverted").section_seconds / (_STEPS * step + decode)


def peak_bytes(report: Report) -> int | None:
    """Return the highest measured peak of FramePack by this card's plan; None if not measured."""
    at_full_size = [row for row in planned_peaks(report) if _is_of_framepack(row)]
    return max((row["measured_bytes"] for row in at_full_size), default=None)


def _is_of_framepack(row: Mapping[str, Any]) -> bool:
    part, case = row["part"], row["case"]
    is_section = part == "framepack" and case.startswith("section, ")
    return is_section or (part, case) == ("step", "this card's plan")


def table_of(reports: Mapping[str, Report]) -> str:
    """Return a table with a row for each report, by the names of their files."""
    head = (
        "card", "FramePack at 640 pixels: s per step", "s of video per minute", "peak GB",
        "demo model: s per step", "plans wrong", "failed", "level and versions",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, report in reports.items():
        rows, failed, peak = planned_peaks(report), failures(report), peak_bytes(report)
        cells = (
            f"[{card_words(report)}](reports/{name}.json)",
            _cell(step_seconds(report)), _cell(video_rate(report)),
            gb_text(peak) if peak else _NOT_MEASURED,
            _cell(_figure_of(report, "job", "section", "seconds_per_step")),
            f"{sum(row['is_off'] for row in rows)} of {len(rows)}",
            "; ".join(failed[:_MOST_FAILURES]) + ("; …" if len(failed) > _MOST_FAILURES else "") or "nothing",
            f"{report['level']}{'' if report['is_complete'] else ', not complete'}; {version_words(report)}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return _NOT_MEASURED if value is None else f"{value:.3g}"


def _literal(entries: Iterable[str], brackets: str) -> str:
    lines = "".join(f"    {entry},\n".replace("'", '"') for entry in entries)
    return f"{brackets[0]}\n{lines}{brackets[1]}" if lines else brackets


def documented(text: str, reports: Mapping[str, Report]) -> str:
    """Return the document's text with the table of the reports."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table_of(reports)}\n\n{END}{rest.partition(END)[2]}"


def read_report(file: Path) -> Report:
    """Read a report as `bench --report` wrote it.

    Raises:
        ValueError: If it is of another format, was changed, or holds something private.
    """
    text = file.read_text(encoding="utf-8")
    report: Report = json.loads(text)
    if (report.get("format"), report.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{file.name} is not of the format {FORMAT!r}, version {VERSION}")
    if private := PRIVATE.search(text):
        raise ValueError(f"{file.name} tells something private: {private[0]!r}")
    if report["checksum"] != checksum(report):
        raise ValueError(f"{file.name} was changed: its checksum is that of another content")
    return report


def known_reports() -> dict[str, Report]:
    """Return the reports in the repository by the names of their files."""
    return {file.stem: read_report(file) for file in sorted(ROOT.glob("docs/reports/*.json"))}


if __name__ == "__main__":
    found = known_reports()
    REPORTED.write_text(reported(found), encoding="utf-8")
    DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")

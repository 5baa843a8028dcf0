"""A report as a page of Markdown, with bars of text that every viewer shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from app.bench.report import TOLERANCE, Report, failures, figure, planned
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.units import duration, gb_text, size_text

_BAR = 24
_STEPS = 25  # of FramePack's default
_NOT_MEASURED, _MOST_FAILURES = "not measured", 3
# The figure of a case by which its bar is drawn, the first that it has.
_DRAWN = ("operations_per_second", "seconds_per_step", "seconds")


def card_words(report: Report) -> str:
    """Return the card with its memory, or the processor if there is no card."""
    card = report["card"]
    if card["kind"] == "cpu":
        return f"no card; {report['processor']['name']}, {report['processor']['cores']} cores"
    name = f"{card['name']} ({card['arch']})" if card["arch"] else card["name"]
    return f"{name}, {gb_text(card['memory_bytes'] or 0)} GB"


def version_words(report: Report) -> str:
    """Return the versions that matter for speed."""
    names = {"longtake": "Longtake", "torch": "torch", "rocm": "ROCm", "cuda": "CUDA", "driver": "driver"}
    found = ((title, report["versions"][name]) for name, title in names.items())
    return ", ".join(f"{title} {version}" for title, version in found if version)


def step_seconds(report: Report) -> float | None:
    """Return the time of a step of FramePack at 640 pixels by this card's plan; None if not measured."""
    found = figure(report, "framepack", "section", "seconds_per_step")
    return found or figure(report, "step", "this card's plan", "seconds_per_step")


def video_rate(report: Report) -> float | None:
    """Return the seconds of video per minute with FramePack at its full size; None if not measured.

    It counts the steps and the decoding of a section, and not the encoding of picture and prompt.
    """
    stages = figure(report, "framepack", "section", "stages") or {}
    step, decode = step_seconds(report), stages.get("decode", {}).get("seconds")
    if step is None or decode is None:
        return None
    return 60 * FRAMEPACK.section_seconds / (_STEPS * step + decode)


def peak_bytes(report: Report) -> int | None:
    """Return the highest measured peak of FramePack by this card's plan; None if not measured."""
    at_full_size = [row for row in planned(report) if _is_of_framepack(row)]
    return max((row["measured_bytes"] for row in at_full_size), default=None)


def _is_of_framepack(row: Mapping[str, Any]) -> bool:
    return row["part"] == "framepack" or (row["part"], row["case"]) == ("step", "this card's plan")


def table_of(reports: Mapping[str, Report]) -> str:
    """Return a table with a row for each report, by the names of their files."""
    head = (
        "card", "FramePack at 640 pixels: s per step", "s of video per minute", "peak GB",
        "demo model: s per step", "plans wrong", "failed", "level and versions",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, report in reports.items():
        rows, failed, peak = planned(report), failures(report), peak_bytes(report)
        cells = (
            f"[{card_words(report)}](reports/{name}.json)",
            _cell(step_seconds(report)), _cell(video_rate(report)),
            gb_text(peak) if peak else _NOT_MEASURED,
            _cell(figure(report, "job", "section", "seconds_per_step")),
            f"{sum(row['is_off'] for row in rows)} of {len(rows)}",
            "; ".join(failed[:_MOST_FAILURES]) + ("; …" if len(failed) > _MOST_FAILURES else "") or "nothing",
            f"{report['level']}{'' if report['is_complete'] else ', not complete'}; {version_words(report)}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return _NOT_MEASURED if value is None else f"{value:.3g}"


def to_markdown(report: Report) -> str:
    """Return the page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    complete = "" if report["is_complete"] else " It is not complete."
    yield f"# {card_words(report)}"
    yield f"\nLevel {report['level']}, {report['weights']} weights, {version_words(report)}.{complete}"
    yield (
        f"{report['processor']['name']}, {report['processor']['cores']} cores, "
        f"{gb_text(report['ram_bytes'])} GB of main memory, kernel {report['versions']['kernel']}"
        f"{', ' + link if (link := report['card']['link']) else ''}."
    )
    wrong = [row for row in planned(report) if row["is_off"]]
    if rows := planned(report):
        share = f"{len(wrong)} of {len(rows)} plans were wrong by more than {TOLERANCE:.0%}"
        yield f"\n## Planned and measured memory\n\n{share}.\n"
        yield "| part | case | planned GB | measured GB | ratio | |\n| --- | --- | --- | --- | --- | --- |"
        for row in rows:
            sizes = f"{gb_text(row['planned_bytes'])} | {gb_text(row['measured_bytes'])}"
            mark = "wrong" if row["is_off"] else ""
            yield f"| {row['part']} | {row['case']} | {sizes} | {row['ratio']:.2f} | {mark} |"
    for part in report["parts"].values():
        yield from _part_lines(part)
    if found := failures(report):
        yield "\n## What failed\n"
        yield from (f"- {one}" for one in found)


def _part_lines(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {part['title']}\n"
    if part["reason"]:
        yield f"{part['reason'][0].upper()}{part['reason'][1:]}.\n"
    readings = {name: value for name, value in part["card"].items() if value}
    if readings:
        words = (f"{name} {value['median']:g}, at most {value['most']:g}" for name, value in readings.items())
        yield f"The card's sensors: {'; '.join(words)}.\n"
    if not part["cases"]:
        return
    found = {label: case.get("figures", {}) for label, case in part["cases"].items()}
    drawn = next((name for name in _DRAWN for one in found.values() if one.get(name)), "")
    most = max((one.get(drawn) or 0 for one in found.values()), default=0)
    yield f"| case | {drawn.replace('_', ' ')} | figures |\n| --- | --- | --- |"
    for label, case in part["cases"].items():
        bar = "█" * max(1, round(_BAR * value / most)) if (value := found[label].get(drawn)) else ""
        reason = f"**{case['failed']}**" if "failed" in case else case.get("skipped", "")
        yield f"| {label} | {bar} | {_words(found[label]) or reason} |"


def _words(figures: Mapping[str, Any]) -> str:
    """Return figures in words. What could not be measured and what is not so is left out."""
    found: list[str] = []
    for name, value in figures.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            inner = _words(cast(dict[str, Any], value))
            found += [f"{title} ({inner})"] if inner else []
        elif value is True:
            found.append(title.removeprefix("is "))
        elif value not in (None, False, ""):
            found.append(f"{title.replace(' bytes', '')} {_figure(name, value)}")
    return "; ".join(found).replace("|", "/")


def _figure(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name == "operations_per_second":
        return f"{value / 1e12:.3g} T"
    if "bytes" in name:
        return size_text(value)
    if name.endswith("seconds") and value > 1:
        return duration(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)

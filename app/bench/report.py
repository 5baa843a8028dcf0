"""The benchmark's report, a JSON file with a checksum and without anything private, and its page."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from app.redact import without_names, without_paths
from diffusers_helper.files import sha256_of
from diffusers_helper.units import duration, gb_text, size_text

FORMAT, VERSION = "longtake-bench", 1
# The share and the bytes by which a plan may be wrong before the report names it. BLAS keeps 32 MiB.
TOLERANCE, SLACK_BYTES = 0.1, 64 * 2**20
_MOST_TEXT = 400
_DIGITS = 5  # of figures; more would be noise
Report = dict[str, Any]

PRIVATE = re.compile(
    r"(?<![\w<>.])(?:~\w*)?/[\w.+-]+/|\b[A-Za-z]:\\"  # a path
    r"|[\w.+-]+@[\w-]+\.\w+|\w+://|\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.)"  # an address
    r"|\b(?i:hf|sk|ghp|gho|github_pat)_\w{8,}|\b(?i:password|passwd|token|secret|api_?key)\s*[:=]"  # a secret
    r'|"(?i:user|host|hostname|home|path|folder|prompt|token|password|email|image)":'  # a field
)


def published(value: Any) -> Any:
    """Make figures and texts such as a report may hold: finite, rounded, short, and nothing private."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return {str(name): published(entry) for name, entry in entries.items()}
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):
        text = without_names(without_paths(value))[:_MOST_TEXT]
        return "<left out>" if PRIVATE.search(text) else text
    return value


def to_bytes(report: Report) -> bytes:
    return json.dumps({**report, "checksum": checksum(report)}, indent=1, allow_nan=False).encode() + b"\n"


def checksum(report: Mapping[str, Any]) -> str:
    """The SHA-256 of a report without its checksum, as JSON with sorted names and without blanks."""
    content = {name: value for name, value in report.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return sha256_of([text.encode("ascii")])


def cases_of(report: Report) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, part in report["parts"].items():
        for label, case in part["cases"].items():
            yield name, label, case


def planned_peaks(report: Report) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add_peaks(value: Any, part: str, label: str) -> None:
        if not isinstance(value, dict):
            return
        value = cast(dict[str, Any], value)
        plan = value.get("planned_bytes")
        measured = value.get("measured_bytes")
        if plan and measured:
            rows.append({
                "part": part, "case": label, "planned_bytes": plan, "measured_bytes": measured,
                "ratio": plan / measured,
                "is_off": abs(plan - measured) > max(TOLERANCE * measured, SLACK_BYTES),
            })  # fmt: skip
        for name, entry in value.items():
            add_peaks(entry, part, f"{label}, {name}" if name not in ("figures", "stages") else label)

    for part, label, case in cases_of(report):
        add_peaks(case, part, label)
    return rows


def failures(report: Report) -> list[str]:
    reasons: list[str] = []
    for part, label, case in cases_of(report):
        if "failed" in case:
            reasons.append(f"{part}: {label}: {case['failed']}")
        for backend, reason in case.get("figures", {}).get("failed_ways", {}).items():
            reasons.append(f"{part}: {label}: {backend}: {reason}")
    return reasons


def card_words(report: Report) -> str:
    card = report["card"]
    if card["kind"] == "cpu":
        return f"no card; {report['processor']['name']}, {report['processor']['cores']} cores"
    name = f"{card['name']} ({card['arch']})" if card["arch"] else card["name"]
    return f"{name}, {gb_text(card['memory_bytes'] or 0)} GB"


def version_words(report: Report) -> str:
    titles = {"longtake": "Longtake", "torch": "torch", "rocm": "ROCm", "cuda": "CUDA", "driver": "driver"}
    versions = ((title, report["versions"][name]) for name, title in titles.items())
    return ", ".join(f"{title} {version}" for title, version in versions if version)


def to_markdown(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    complete = "" if report["is_complete"] else " It is not complete."
    link = f", {report['card']['link']}" if report["card"]["link"] else ""
    yield f"# {card_words(report)}"
    yield f"\nLevel {report['level']}, {report['weights']} weights, {version_words(report)}.{complete}"
    yield (
        f"{report['processor']['name']}, {report['processor']['cores']} cores, "
        f"{gb_text(report['ram_bytes'])} GB of main memory, kernel {report['versions']['kernel']}{link}."
    )
    if rows := planned_peaks(report):
        share = f"{sum(row['is_off'] for row in rows)} of {len(rows)} plans"
        yield f"\n## Planned and measured memory\n\n{share} were wrong by more than {TOLERANCE:.0%}.\n"
        yield "| part | case | planned GB | measured GB | ratio | |\n| --- | --- | --- | --- | --- | --- |"
        for row in rows:
            sizes = f"{gb_text(row['planned_bytes'])} | {gb_text(row['measured_bytes'])}"
            mark = "wrong" if row["is_off"] else ""
            yield f"| {row['part']} | {row['case']} | {sizes} | {row['ratio']:.2f} | {mark} |"
    for part in report["parts"].values():
        yield from _part_lines(part)
    if reasons := failures(report):
        yield "\n## What failed\n"
        yield from (f"- {reason}" for reason in reasons)


def _part_lines(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {part['title']}\n"
    if part["reason"]:
        yield f"{part['reason'][0].upper()}{part['reason'][1:]}.\n"
    sensors = {name: value for name, value in part["card"].items() if value}
    if sensors:
        words = (f"{name} {value['median']:g}, at most {value['most']:g}" for name, value in sensors.items())
        yield f"The card's sensors: {'; '.join(words)}.\n"
    if part["cases"]:
        yield "| case | figures |\n| --- | --- |"
    for label, case in part["cases"].items():
        reason = f"**{case['failed']}**" if "failed" in case else case.get("skipped", "")
        yield f"| {label} | {_figures_text(case.get('figures', {})) or reason} |"


def _figures_text(figures: Mapping[str, Any]) -> str:
    """Tell figures in words. What could not be measured and what is not so is left out."""
    phrases: list[str] = []
    for name, value in figures.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            if words := _figures_text(cast(dict[str, Any], value)):
                phrases.append(f"{title} ({words})")
        elif value is True:
            phrases.append(title.removeprefix("is "))
        elif value not in (None, False, ""):
            phrases.append(f"{title.replace(' bytes', '')} {_figure(name, value)}")
    return "; ".join(phrases).replace("|", "/")


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

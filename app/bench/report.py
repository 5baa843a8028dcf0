"""The benchmark's report: one JSON file with a checksum and without anything private, and its page.

The same checks hold for the reports that people send. The page is Markdown, with bars of text that every
viewer shows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from app.bench.parts import PARTS
from app.redact import without_names, without_paths
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import read_file, sha256_of
from diffusers_helper.units import duration, gb_text, size_text

FORMAT, VERSION = "longtake-bench", 1
TOLERANCE, SLACK_BYTES = 0.1, 64 * 2**20
"""The share and the bytes by which a plan may be wrong before the report names it. BLAS keeps 32 MiB."""
_MOST_BYTES, _MOST_TEXT = 4 * 2**20, 400
_DIGITS = 5  # of figures; more would be noise
Report = dict[str, Any]

_PRIVATE = re.compile(
    r"(?<![\w<>.])(?:~\w*)?/[\w.+-]+/|\b[A-Za-z]:\\"  # a path
    r"|[\w.+-]+@[\w-]+\.\w+|\w+://|\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.)"  # an address
    r"|\b(?i:hf|sk|ghp|gho|github_pat)_\w{8,}|\b(?i:password|passwd|token|secret|api_?key)\s*[:=]"  # a secret
    r'|"(?i:user|host|hostname|home|path|folder|prompt|token|password|email|image)":'  # a field
)
# The fields of a report, and of the objects in it that are the same in all.
_FIELDS = {
    "": "format version level weights is_complete versions card processor ram_bytes parts checksum",
    "versions": "longtake python torch rocm cuda driver kernel", "processor": "name cores",
    "card": "kind arch name memory_bytes link",
}  # fmt: skip
_PART_FIELDS = "title level reason seconds is_complete card cases"


def published(value: Any) -> Any:
    """Return figures and texts as a report may hold them: finite, rounded, short, and nothing private."""
    if isinstance(value, Mapping):
        found = cast(Mapping[Any, Any], value)
        return {str(name): published(one) for name, one in found.items()}
    if isinstance(value, list | tuple):
        return [published(one) for one in cast(list[Any], value)]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):
        text = without_names(without_paths(value))[:_MOST_TEXT]
        return "<left out>" if _PRIVATE.search(text) else text
    return value


def sealed(report: Report) -> Report:
    """Return a report with its checksum, which covers everything else in it."""
    return {**report, "checksum": checksum(report)}


def checksum(report: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a report without its checksum, as JSON with sorted names and without blanks."""
    rest = {name: value for name, value in report.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return sha256_of([text.encode("ascii")])


def to_bytes(report: Report) -> bytes:
    """Return a report as the content of its file."""
    return json.dumps(report, indent=1, allow_nan=False).encode() + b"\n"


def read_report(file: Path) -> Report:
    """Return the report in a file.

    Raises:
        InputError: If it is no report of this version, was changed, or holds something private.
    """
    try:
        text = read_file(file, _MOST_BYTES).decode()
        found: Report = json.loads(text)
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {found['format']!r} of version {found['version']!r}")
        if private := _PRIVATE.search(text):
            raise ValueError(f"it tells something private: {short_repr(private[0])}")
        for place, names in _FIELDS.items():
            _check_fields(found[place] if place else found, names, place)
        for name, part in found["parts"].items():
            _check_fields(part, _PART_FIELDS, f"part {PARTS[name].name}")
        if found["checksum"] != checksum(found):
            raise ValueError("its checksum is that of another content, so the file was changed")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f"{file.name} cannot be read ({first_line(error)}); expected {FORMAT!r} of version {VERSION}, as "
            "`bench --report` wrote it.",
            "Run the benchmark again.",
        ) from error
    return found


def _check_fields(found: Report, names: str, place: str) -> None:
    if found.keys() ^ set(names.split()):
        raise ValueError(f"{place or 'it'} has other fields than {names}")


def planned(report: Report) -> list[dict[str, Any]]:
    """Return all planned and measured peaks, with the part and the case that they belong to."""
    found: list[dict[str, Any]] = []

    def look(value: Any, part: str, place: str) -> None:
        if not isinstance(value, dict):
            return
        value = cast(dict[str, Any], value)
        plan, measured = value.get("planned_bytes"), value.get("measured_bytes")
        if plan and measured:
            ratio = plan / measured
            found.append({
                "part": part, "case": place, "planned_bytes": plan, "measured_bytes": measured,
                "ratio": ratio, "is_off": abs(plan - measured) > max(TOLERANCE * measured, SLACK_BYTES),
            })  # fmt: skip
        for name, one in value.items():
            look(one, part, f"{place}, {name}" if name not in ("figures", "stages") else place)

    for name, part in report["parts"].items():
        for label, case in part["cases"].items():
            look(case, name, label)
    return found


def failures(report: Report) -> list[str]:
    """Return what failed: parts, cases, and ways to compute convolutions, each with its reason."""
    found: list[str] = []
    for name, part in report["parts"].items():
        for label, case in part["cases"].items():
            if "failed" in case:
                found.append(f"{name}: {label}: {case['failed']}")
            for way, reason in case.get("figures", {}).get("failed_ways", {}).items():
                found.append(f"{name}: {label}: {way}: {reason}")
    return found


_BAR = 24
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

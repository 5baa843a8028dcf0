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

from app.bench.parts import LEVELS, PARTS
from app.redact import without_names, without_paths
from diffusers_helper.errors import InputError
from diffusers_helper.files import read_file, sha256_of
from diffusers_helper.units import duration, gb_text, size_text

FORMAT, VERSION = "longtake-bench", 1
TOLERANCE, SLACK_BYTES = 0.1, 64 * 2**20
"""The share and the bytes by which a plan may be wrong before the report names it. BLAS keeps 32 MiB."""
_MOST_BYTES, _MOST_TEXT = 4 * 2**20, 400
_DIGITS = 5  # of figures; more would be noise
Report = dict[str, Any]

_TEXT, _NUMBER, _MAYBE_TEXT = (str,), (int, float), (str, type(None))
# The types of all fields. A figure is a number, a truth value, None, a short text or a table of figures.
_SCHEMA: dict[str, Any] = {
    "format": _TEXT, "version": (int,), "level": _TEXT, "weights": _TEXT, "is_complete": (bool,),
    "versions": {
        "longtake": _TEXT, "python": _TEXT, "torch": _TEXT, "rocm": _MAYBE_TEXT, "cuda": _MAYBE_TEXT,
        "driver": _MAYBE_TEXT, "kernel": _TEXT,
    },
    "card": {
        "kind": _TEXT, "arch": _TEXT, "name": _TEXT, "memory_bytes": (int, type(None)), "link": _MAYBE_TEXT,
    },
    "processor": {"name": _TEXT, "cores": (int,)}, "ram_bytes": (int,), "parts": (dict,), "checksum": _TEXT,
}  # fmt: skip
_PART: dict[str, Any] = {
    "title": _TEXT, "level": _TEXT, "reason": _TEXT, "seconds": _NUMBER, "is_complete": (bool,),
    "card": (dict,), "cases": (dict,),
}  # fmt: skip
_CASES = ({"figures"}, {"failed"}, {"skipped"})
_SECRET = r"(?i)\b(?:hf|sk|ghp|gho|github_pat)_\w{8,}|\b(?:password|passwd|token|secret|api_?key)\s*[:=]"
_PRIVATE = (
    ("a path", re.compile(r"(?<![\w<>.])(?:~\w*)?/[\w.+-]+/|\b[A-Za-z]:\\")),
    ("an address", re.compile(r"[\w.+-]+@[\w-]+\.\w+|\w+://|\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.)")),
    ("a secret", re.compile(_SECRET)),
)
_PRIVATE_FIELDS = re.compile(r"(?i)^(user|host|hostname|home|path|folder|prompt|token|password|email|image)$")


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
        return "<left out>" if any(pattern.search(text) for _, pattern in _PRIVATE) else text
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
        InputError: If it is no report, was changed, or holds something private. The field is named.
    """
    try:
        found: Any = json.loads(read_file(file, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(file, "cannot be read as JSON", "a report that `bench --report` wrote") from error
    for problem, expected in problems(found):
        raise _refusal(file, problem, expected)
    return cast(Report, found)


def _refusal(file: Path, problem: str, expected: str) -> InputError:
    return InputError(f"{file.name}: {problem}; expected {expected}.", "Run the benchmark again.")


def problems(report: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a report, naming the field, and what was expected; only the first is sure."""
    if not isinstance(report, dict):
        yield "it is no object", "a JSON object"
        return
    report = cast(Report, report)
    yield from _misfits(report, _SCHEMA, "")
    for name, part in report["parts"].items():
        yield from _part_problems(name, part)
    yield from _bad_values(report, "")
    yield from _seal_problems(report)


def _seal_problems(report: Report) -> Iterator[tuple[str, str]]:
    if report.get("format") != FORMAT or report.get("version") != VERSION:
        found = f"format is {report.get('format')!r} of version {report.get('version')!r}"
        yield found, f"{FORMAT!r} of version {VERSION}"
    elif report.get("level") not in LEVELS:
        yield f"level is {report.get('level')!r}", " or ".join(LEVELS)
    elif report.get("checksum") != checksum(report):
        yield "checksum is that of another content, so the file was changed", checksum(report)


def _part_problems(name: str, part: Any) -> Iterator[tuple[str, str]]:
    where = f"parts.{name}"
    if name not in PARTS:
        yield f"{where} is unknown", f"one of {', '.join(PARTS)}"
        return
    yield from _misfits(part, _PART, f"{where}.")
    for label, case in part["cases"].items():
        if not isinstance(case, dict) or set(cast(Report, case)) not in _CASES:
            yield f"{where}.{label} has other fields", "figures, failed or skipped"


def _misfits(found: Any, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(found, dict):
        yield f"{where.rstrip('.')} is no object", "an object"
        return
    found = cast(Report, found)
    for name in found.keys() - schema.keys():
        yield f"{where}{name} is unknown", f"only {', '.join(schema)}"
    for name, kinds in schema.items():
        if name not in found:
            yield f"{where}{name} is missing", "a value"
        elif isinstance(kinds, dict):
            yield from _misfits(found[name], cast(dict[str, Any], kinds), f"{where}{name}.")
        elif type(found[name]) not in kinds:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            yield f"{where}{name} is {type(found[name]).__name__}", wanted


def _bad_values(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield values of types that no report has, and what tells something about a user or a machine."""
    if isinstance(value, dict):
        for name, one in cast(dict[str, Any], value).items():
            place = f"{where}.{name}" if where else name
            if _PRIVATE_FIELDS.search(name):
                yield f"{place} is private", "no such field"
            yield from _bad_values(name, f"the name {place[:60]!r}")
            yield from _bad_values(one, place)
    elif not isinstance(value, str | int | float | None):
        yield f"{where} is {type(value).__name__}", "a number, a text or a table of them"
    elif isinstance(value, str):
        if len(value) > _MOST_TEXT:
            yield f"{where} has {len(value)} characters", f"at most {_MOST_TEXT}"
        for what, pattern in _PRIVATE:
            if pattern.search(value):
                yield f"{where} contains {what}", "nothing private"


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

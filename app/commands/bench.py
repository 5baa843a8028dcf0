"""The command `bench`, which measures this machine at FramePack's real sizes and writes a report to send."""

import argparse
import json
import math
import os
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

from app.bench.facts import machine_facts, report_so_far, sensors
from app.bench.report import (
    FORMAT,
    VERSION,
    Report,
    cases_of,
    checksum,
    failures,
    planned_peaks,
    published,
    to_bytes,
    to_markdown,
)
from app.bench.runner import BenchRun, summary_line
from app.bench.table import LEVELS, PARTS, QUICK_SECONDS, parts_of
from app.commands.arguments import Commands, add_command, argument, single_run, switch
from app.commands.doctor import ask_torch
from app.jobs.stdio import complain, say
from app.machine import this_local, this_machine, this_profile
from app.starting import EXIT_CANCELLED
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.files import expanded_path, write_atomic
from diffusers_helper.machine.local import Speeds, store_speeds
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import built_in_names, find_model
from diffusers_helper.planning.variables import engine_environment

_DESCRIPTION = """\
Measure this machine with the real sizes of FramePack: copies, matrix products, attention, convolutions, the
VAE, steps under caps, and whole sections. Nothing is downloaded. Ctrl-C stops, and the report holds what was
measured. The report names no user, no machine and no folder.
"""


def add_bench(commands: Commands) -> None:
    helps = {
        "quick": "the most important figures, in at most 3 minutes and with at most 2 GB written (default)",
        "standard": "with caps of 8 to 24 GB and a whole section, in parts of at most 10 minutes each",
        "full": "everything, with the whole transformer (26 GB) read from the disk",
    }
    levels = (
        argument(f"--{level}", dest="level", action="store_const", const=level, help=helps[level])
        for level in LEVELS
    )
    parser = add_command(
        commands, "bench", bench, *levels,
        argument(
            "--only", action="append", choices=tuple(PARTS), metavar="PART",
            help="only this part; may be repeated",
        ),
        switch("--list", "list the parts, and measure nothing"),
        switch("--again", "has no effect: everything is always measured anew"),
        argument(
            "--report", metavar="FILE",
            help="write the report to this file, and a page beside it as FILE.md",
        ),
        argument(
            "--out", metavar="DIR",
            help="folder for the report and for files (default: Longtake's cache)",
        ),
        argument(
            "--model", metavar="NAME|DIR",
            help="FramePack model with real weights (default: a published one if here, else random weights)",
        ),
        switch("--json", "print only the report as one JSON object"),
        description=_DESCRIPTION,
    )  # fmt: skip
    parser.set_defaults(level="quick")


def bench(arguments: argparse.Namespace) -> int:
    if arguments.list:
        for name, part in PARTS.items():
            facts = {"part": name, "level": part.level, "title": part.title}
            say(json.dumps(facts) if arguments.json else f"{name:<22}{part.level:<10}{part.title}")
        return 0
    begin = time.monotonic()
    folder = expanded_path(arguments.out, "out") if arguments.out is not None else report_so_far().parent
    targets = [folder / "report.json"]
    if arguments.report is not None:
        targets.append(expanded_path(arguments.report, "report"))
        if targets[1].is_dir() or not targets[1].parent.is_dir():  # a folder would be moved out of the way
            raise InputError(
                f"{targets[1]} is no file in a folder; expected one for the report.", "Name one."
            )
    model = _model(arguments.model)
    end = begin + QUICK_SECONDS if arguments.level == "quick" else math.inf
    code = 0
    with single_run("bench", folder, "Choose another one with --out."):
        environ = {**os.environ, **engine_environment(this_profile(os.environ).environment, os.environ)}
        report: Report = {
            "format": FORMAT, "version": VERSION, "level": arguments.level,
            "weights": "real" if model else "random", "is_complete": False,
            **published(machine_facts(os.environ, ask_torch(environ))), "parts": {},
        }  # fmt: skip
        run = BenchRun(folder, model, environ, report, partial(_write, targets), sensors(os.environ))
        try:
            run.run(arguments.only or parts_of(arguments.level), end)
        except KeyboardInterrupt:
            code = EXIT_CANCELLED
            complain("Stopped. The report holds what was measured.")
        _keep_speeds(report)
        _end(report, targets, as_json=arguments.json)
    return code


def _model(name: str | None) -> str:
    if name is not None:
        if absence := absence_of(find_model(name, allow_folder=True)):
            raise NotHere(absence)
        return name
    published_models = (find_model(name) for name in built_in_names()[1:])
    of_framepack = (info for info in published_models if info.family is FRAMEPACK)
    return next((info.name for info in of_framepack if absence_of(info) is None), "")


def _write(targets: list[Path], report: Report) -> None:
    for target in targets:
        write_atomic(target, to_bytes(report))


def _keep_speeds(report: Report) -> None:
    figures = {
        name: value
        for part, _, case in cases_of(report)
        if part in ("memory", "bus")
        for name, value in case.get("figures", {}).items()
    }
    speeds = {field.name: figures.get(field.name) for field in fields(Speeds)}
    if any(speeds.values()):
        store_speeds(this_local(os.environ).speeds, this_machine(os.environ).card, Speeds(**speeds))


def _end(report: Report, targets: list[Path], *, as_json: bool) -> None:
    for target in targets[1:]:
        write_atomic(target.with_name(f"{target.name}.md"), to_markdown(report).encode())
    if as_json:
        say(json.dumps({**report, "checksum": checksum(report)}))
        return
    for entry in report["parts"].values():
        say(f"{entry['title']}: {summary_line(entry)}")
    for row in planned_peaks(report):
        if row["is_off"]:
            say(f"Planned {row['ratio']:.2f} times what was measured: {row['part']}, {row['case']}")
    say(*(f"Failed: {reason}" for reason in failures(report)))
    say(f"Kept in {targets[-1]}" + (f" and {targets[-1].name}.md" if len(targets) > 1 else ""))

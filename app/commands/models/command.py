"""The command `models`, which lists, adds, gets, checks and removes the models of this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from app.commands.arguments import EXIT_FAILED, Parser, Verb, add_verbs, check_proxies
from app.commands.inspect import add_inspect_arguments, print_inspection
from app.commands.models.add import add_model_arguments, take_model
from app.commands.models.convert import add_convert_arguments, convert
from app.commands.models.downloading import download
from app.commands.models.plans import add_plan_arguments, print_card_plans
from app.jobs.stdio import say
from app.starting import EXIT_CANCELLED
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.terminal import one_line
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.installed import (
    InstalledPart,
    check_own_files,
    installed_parts,
    plan_removal,
    remove,
    verify,
)
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.units import count_text, gb_text
from diffusers_helper.weights.folders import weight_files

_EXIT_CODES = (
    "exit codes: 0 done, 1 failed or incomplete, 2 the command is invalid, 130 interrupted (the next\n"
    "`models get` continues the download)."
)


def add_models(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command to the program's commands."""
    for verb, one in add_verbs(
        commands,
        "models",
        summary="list, add, get, convert, check and remove models",
        description="List, add, get, convert, check and remove the models of this machine.",
        exit_codes=_EXIT_CODES,
        verbs=VERBS,
    ):
        one.add_argument("--json", action="store_true", help="print JSON, one object per line")
        named = {"model": "--base" if verb.name == "add" else "MODEL"}
        one.set_defaults(run=verb.run, verbose=False, named=named)


def _report(arguments: argparse.Namespace, *lines: str, **facts: Any) -> None:
    """Print facts as one line of JSON, if the arguments ask for it, and otherwise as lines of text."""
    say(*([json.dumps(facts)] if arguments.json else lines))


def _list(arguments: argparse.Namespace) -> int:
    names = [arguments.model] if arguments.model else model_names()
    for name in names:
        info = find_model(name, allow_folder=True)
        parts = installed_parts(info)
        here, missing = sum(one.here_bytes for one in parts), sum(one.missing_bytes for one in parts)
        complete = all(one.is_complete for one in parts)
        state = "complete" if complete else "incomplete" if here else "not on this machine"
        size = f"{gb_text(here)} GB here" + ("" if complete else f", about {gb_text(missing)} GB missing")
        lines = [f"{name}: {info.title}, {state}, {size}", *(f"  {_part_line(one)}" for one in parts)]
        _report(
            arguments, *lines, model=name, title=info.title, state=state, here_bytes=here,
            missing_bytes=missing, parts=[_part_facts(one) for one in parts],
        )  # fmt: skip
    return 0


def _part_line(one: InstalledPart) -> str:
    origin = f", from {one.source}" if one.source != str(one.folder) else ""
    shared = f", shared with {', '.join(one.shared_with)}" if one.shared_with else ""
    if not one.here_bytes:
        size = f"missing, about {gb_text(one.missing_bytes)} GB"
    elif one.is_complete:
        size = f"{gb_text(one.here_bytes)} GB in {one.folder}"
    else:
        size = f"incomplete, {gb_text(one.here_bytes)} GB in {one.folder}"
    return f"{one.part}: {size}{origin}{shared}"


def _part_facts(one: InstalledPart) -> dict[str, Any]:
    return {
        "part": one.part, "source": one.source, "folder": str(one.folder), "here_bytes": one.here_bytes,
        "missing_bytes": one.missing_bytes, "complete": one.is_complete, "shared_with": one.shared_with,
    }  # fmt: skip


def _get(arguments: argparse.Namespace) -> int:
    check_proxies(os.environ)
    info = find_model(arguments.model)
    absence = absence_of(info)
    if absence is None:
        check_own_files(info)
        _report(arguments, f"{info.name}: complete", model=info.name, state="complete")
        return 0
    if not absence.has_room:
        raise NotHere(absence)
    if not arguments.json:
        say(f"{info.name}: {absence.sizes} in {absence.folder}")
    download(info, as_json=arguments.json)
    _report(arguments, f"{info.name}: complete", model=info.name, state="complete")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    whole = True
    for verdict in verify(find_model(arguments.model, allow_folder=True)):
        how = (
            f"{count_text(verdict.checked, 'checksum')} correct"
            if verdict.checked
            else "headers and sizes correct"
        )
        lines = verdict.problems or [f"{verdict.part}: {how}"]
        _report(
            arguments, *lines, model=arguments.model, part=verdict.part, checksums=verdict.checked,
            problems=verdict.problems,
        )  # fmt: skip
        whole = whole and not verdict.problems
    return 0 if whole else EXIT_FAILED


def _remove(arguments: argparse.Namespace) -> int:
    added = ADDED_MODELS.find(arguments.model)
    if added is not None and not added.copy:
        ADDED_MODELS.remove(added.name)  # even if its base is gone, so that it cannot be found any more
        text = f"Removed {added.name} from the list; its files stay where they are."
        _report(arguments, text, model=added.name, removed_bytes=0, parts=[], kept={})
        return 0
    info = find_model(arguments.model, allow_folder=True)
    removal = plan_removal(info)
    if not (removal.files or added):
        raise InputError(f"Model {info.name} has no files of its own on this machine.", setting="model")
    size, parts = gb_text(removal.num_bytes), list(removal.files)
    what = f"{size} GB of {info.name}" + (f" in {added.copy}" if added else f": {', '.join(parts)}")
    if not _is_agreed(arguments, what):
        return EXIT_CANCELLED
    try:
        remove(info)
    except OSError as error:
        raise LongtakeError(
            f"{error.filename} cannot be removed ({error.strerror}).",
            "Check the rights of its folder." if added else "Check the hub folder's permissions.",
        ) from error
    kept = [f"{part} stays because it is used by {', '.join(u)}." for part, u in removal.kept.items()]
    _report(
        arguments, f"Removed {what}.", *kept, model=info.name, removed_bytes=removal.num_bytes,
        parts=["transformer"] if added else parts, kept=removal.kept,
    )  # fmt: skip
    return 0


def _is_agreed(arguments: argparse.Namespace, what: str) -> bool:
    """Ask whether to remove something, unless the arguments have agreed to it, and return the answer."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(f"This would remove {what}.", "Add --yes to do so.")
    sys.stderr.write(one_line(f"Remove {what}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _convert(arguments: argparse.Namespace) -> int:
    name, folder, is_new = convert(arguments)
    done, size = (
        "converted" if is_new else "already converted",
        sum(file.stat().st_size for file in weight_files(folder)),
    )
    text = f"{name}: {done}, {gb_text(size)} GB in {folder}"
    _report(arguments, text, model=name, state=done, folder=str(folder), bytes=size)
    return 0


def _add(arguments: argparse.Namespace) -> int:
    info, parts = take_model(arguments)
    reported = [f"  {part}: {found.words}" for part, found in parts.items()]
    absence = absence_of(info)
    lacking = f"; {absence.sizes}: get them with models get {info.name}" if absence else ""
    example = f"Make a video with: python -m app generate --model {info.name} --image PICTURE --prompt TEXT"
    lines = [f"{info.name}: {info.title}, added{lacking}", *reported, *([] if absence else [example])]
    facts = {part: {"path": found.path, "inspection": asdict(found.facts)} for part, found in parts.items()}
    _report(arguments, *lines, model=info.name, title=info.title, state="added", parts=facts)
    return 0


def _one_model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"{', '.join(model_names())}, or a folder")


def _any_model(parser: Parser) -> None:
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="only this model, or a folder")


def _hub_model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", choices=model_names(), help=", ".join(model_names()))


def _remove_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=", ".join(model_names()))
    parser.add_argument("--yes", action="store_true", help="remove without asking")


VERBS = (
    Verb("list", "list the parts of models with their places, sizes and missing bytes", _any_model, _list),
    Verb("get", "download the missing files of a model, or continue a download", _hub_model, _get),
    Verb("verify", "check the sizes and checksums of a model's files", _one_model, _verify),
    Verb(
        "add",
        "add a model of your own files: folders of parts, or a single file for each",
        add_model_arguments,
        _add,
    ),
    Verb(
        "convert",
        "write a copy of a model's transformer in another type, as a model of its own",
        add_convert_arguments,
        _convert,
    ),
    Verb(
        "remove",
        "remove a downloaded model, except for parts that another one uses, or a converted one, or forget an "
        "added one",
        _remove_arguments,
        _remove,
    ),
    Verb(
        "plan",
        "show what cards of 8 to 24 GB do with a model's weights",
        add_plan_arguments,
        print_card_plans,
    ),
    Verb("inspect", "show what is in a file or folder with weights", add_inspect_arguments, print_inspection),
)

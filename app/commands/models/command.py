"""The command `models`, which lists, adds, gets, checks and removes the models of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from app.commands.arguments import (
    EXIT_FAILED,
    Adder,
    Parser,
    add_setting,
    add_verbs,
    aligned,
    as_typed,
    check_proxies,
    one_of,
    switch,
)
from app.commands.inspect import INSPECTED, print_inspection
from app.commands.models.add import add_convert_arguments, add_model_arguments, convert, take_model
from app.commands.terminal import download
from app.jobs.stdio import say
from app.starting import EXIT_CANCELLED
from diffusers_helper.errors import InputError
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
from diffusers_helper.models.registry import ModelInfo, find_model, model_names
from diffusers_helper.planning.set_ups import (
    ARCH,
    CARDS_GB,
    CardPlan,
    FormatPlans,
    plans_by_card,
    plans_by_format,
)
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import count_text, gb_text
from diffusers_helper.weights.reading import weight_files

_HEADER = (
    "card", "cap", "preserved", "resident", "streamed per step", "in about", "main memory", "disk per step",
    "peak", "weights",
)  # fmt: skip
_NOTE = (
    "The time of the copies is computed for a main memory of two channels of DDR4-3200, which is slower\n"
    "than the link of such a card, PCIe 4.0. The card computes meanwhile.\n"
    "Streamed weights should fit into the main memory that is free. The disk is only read if they do not.\n"
    "The second line of a card shows the plan if --preserved-gb is as low as the estimates allow.\n"
    "docs/amd-memory.md explains why the automatic value is larger."
)
_FORMATS_NOTE = (
    "1.7 + 22.3 means that 1.7 GB of the transformer stay on the device, and each step streams 22.3 GB.\n"
    "That much main memory should be free; otherwise, each step reads as much from the disk. (5.1) means\n"
    "that the video does not fit; a cap of 5.1 GB would be enough. Names like Q4_K are types of GGUF files.\n"
    "The file's format counts here: --weight-dtype changes the type on the device, while main memory and\n"
    "disk hold the files as they are."
)
_EXIT_CODES = (
    "exit codes: 0 done, 1 failed or incomplete, 2 the command is invalid, 130 interrupted (the next\n"
    "`models get` continues the download)."
)


def print_card_plans(arguments: argparse.Namespace) -> int:
    """Print the plans of a video with the model's own settings, and return the exit code."""
    info = find_model(arguments.model, allow_folder=True)
    dtype = arguments.weight_dtype or SETTINGS["weight_dtype"].default
    request = GenerationRequest(
        image="none", model=info.name, mode=info.modes[0], steps=info.steps, weight_dtype=dtype
    )
    plans = plans_by_format(request, info) if arguments.formats else plans_by_card(request, info)
    if arguments.json:
        for plan in plans:
            facts = asdict(plan)
            for card in facts.get("cards", [facts]):
                card["automatic"] = card["fewest_copies"]  # the name in earlier versions
            say(json.dumps({"model": info.name, **facts}))
    elif arguments.formats:
        say(*_formats_lines(info, cast(list[FormatPlans], plans)))
    else:
        say(*_cards_lines(info, dtype, cast(list[CardPlan], plans)))
    return 0


def _cards_lines(info: ModelInfo, dtype: str, plans: Sequence[CardPlan]) -> list[str]:
    kinds = {SETTINGS["weight_dtype"].default: "as they are stored", AUTO: "in the type that suits each card"}
    kind = kinds.get(dtype, f"in {dtype} on the device")
    title = f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), weights {kind}; sizes in GB."
    table = aligned([_HEADER, *(row for plan in plans for row in _rows(plan))])
    return [title, "", *table, "", *_NOTE.splitlines()]


def _rows(plan: CardPlan) -> list[tuple[str, ...]]:
    card = f"{plan.card_gb} GB"
    if not plan.fits:
        least = gb_text(plan.smallest_cap_bytes, up=True)
        return [(card, gb_text(plan.cap_bytes), f"does not fit; a cap of {least} GB would be enough")]
    default, *less = plan.fits
    return [(card, *default.cells), *(("", "", *fit.cells[1:]) for fit in less)]


def _formats_lines(info: ModelInfo, plans: Sequence[FormatPlans]) -> list[str]:
    title = (
        f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), by the format of the transformer's "
        "file; sizes in GB."
    )
    header = ("format", "file", *(f"{size} GB card" for size in CARDS_GB))
    lines = [title]
    tables = {
        "the automatic preserved memory": [[card.short(card.default) for card in one.cards] for one in plans],
        "as little preserved memory as the estimates allow": [
            [card.short(card.fewest_copies) for card in one.cards] for one in plans
        ],
    }
    for kind, cells in tables.items():
        rows = [
            (", ".join(one.formats), gb_text(one.file_bytes), *texts)
            for one, texts in zip(plans, cells, strict=True)
        ]
        lines += ["", f"With {kind}:", "", *aligned([header, *rows])]
    return [*lines, "", *_FORMATS_NOTE.splitlines()]


def add_models(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command to the program's commands."""
    add_verbs(
        commands, "models", VERBS, switch("--json", "print JSON, one object per line"),
        help="list, add, get, convert, check and remove the models of this machine", epilog=_EXIT_CODES,
    )  # fmt: skip


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
        lines = [f"{name}: {info.title}, {state}, {size}", *([f"  {info.licence}"] if info.licence else [])]
        lines += (f"  {_part_line(one)}" for one in parts)
        _report(
            arguments, *lines, model=name, title=info.title, licence=info.licence, state=state,
            here_bytes=here, missing_bytes=missing, parts=[_part_facts(one) for one in parts],
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
    check_proxies()
    info = find_model(arguments.model)
    absence = absence_of(info)
    if absence is None:
        check_own_files(info)
    elif not absence.has_room:
        raise NotHere(absence)
    elif not arguments.json:
        say(f"{info.name}: {absence.sizes} in {absence.folder}")
    decoder = info.small_decoder_file
    if absence or (decoder and not decoder.is_file()):
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
    remove(info)
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
    done = "converted" if is_new else "already converted"
    size = sum(file.stat().st_size for file in weight_files(folder))
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
    facts = {name: {"path": one.part.path, "inspection": asdict(one.facts)} for name, one in parts.items()}
    _report(
        arguments, *map(as_typed, lines), model=info.name, title=info.title, state="added", parts=facts
    )  # fmt: skip
    return 0


def _model(help: str = "{}, or a folder", *, is_known: bool = False, **facts: Any) -> Adder:
    """Return what adds the argument of a model, whose names are only known when the program has started."""

    def add(parser: argparse._ActionsContainer) -> None:
        names = model_names()
        if is_known:
            facts["choices"] = names
        parser.add_argument("model", metavar="MODEL", help=help.format(", ".join(names)), **facts)
        parser.set_defaults(named={"model": "MODEL"})

    return add


_ANY = _model("only this model, or a folder", nargs="?", default="")
_LISTED = _model("{}", is_known=True)
_REMOVED = (_model("{}"), switch("--yes", "remove without asking"))
_PLAN = (
    _model(),
    one_of(
        lambda group: add_setting(group, "weight_dtype"),
        switch("--formats", "compare formats of the transformer's file"),
        required=False,
    ),
)
VERBS = (
    ("list", "list the parts of models with their places, sizes and missing bytes", _list, _ANY),
    ("get", "download the missing files of a model, or continue a download", _get, _LISTED),
    ("verify", "check the sizes and checksums of a model's files", _verify, _model()),
    (
        "add", "add a model of your own files: folders of parts, or a single file for each", _add,
        add_model_arguments,
    ),
    (
        "convert", "write a copy of a model's transformer in another type, as a model of its own", _convert,
        add_convert_arguments,
    ),
    (
        "remove",
        "remove a downloaded model, except for parts that another one uses, or a converted one, or forget an "
        "added one",
        _remove, *_REMOVED,
    ),
    ("plan", "show what cards of 8 to 24 GB do with a model's weights", print_card_plans, *_PLAN),
    ("inspect", "show what is in a file or folder with weights", print_inspection, *INSPECTED),
)  # fmt: skip

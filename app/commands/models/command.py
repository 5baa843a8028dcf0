"""The command `models`, which lists, adds, gets, checks and removes the models of this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from app.commands.arguments import (
    EXIT_FAILED,
    Argument,
    Commands,
    add_setting,
    add_verbs,
    aligned,
    check_proxies,
    exclusive,
    switch,
)
from app.commands.inspect import INSPECTED, print_inspection
from app.commands.models.add import add_convert_arguments, add_model, add_model_arguments, convert
from app.commands.terminal import download
from app.jobs.stdio import say
from app.starting import EXIT_CANCELLED
from diffusers_helper.errors import InputError
from diffusers_helper.machine.terminal import one_line
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.installed import (
    InstalledComponent,
    check_own_files,
    installed_components,
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
from diffusers_helper.units import compared_gb, count_text, gb_text
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
    info = find_model(arguments.model, allow_folder=True)
    dtype = arguments.weight_dtype or SETTINGS["weight_dtype"].default
    settings = {"mode": info.modes[0], "steps": info.steps, "weight_dtype": dtype}
    request = GenerationRequest(image="none", model=info.name, **settings)
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
    weights = f"in {dtype} on the device"
    if dtype in (AUTO, SETTINGS["weight_dtype"].default):
        weights = "in the type that suits each card" if dtype == AUTO else "as they are stored"
    title = f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), weights {weights}; sizes in GB."
    table = aligned([_HEADER, *(row for plan in plans for row in _rows(plan))])
    return [title, "", *table, "", *_NOTE.splitlines()]


def _rows(plan: CardPlan) -> list[tuple[str, ...]]:
    card = f"{plan.card_gb} GB"
    if not plan.fits:
        cap, smallest_cap = compared_gb(plan.cap_bytes, plan.smallest_cap_bytes)
        return [(card, cap, f"does not fit; a cap of {smallest_cap} GB would be enough")]
    default, *alternatives = plan.fits
    return [(card, *default.cells), *(("", "", *fit.cells[1:]) for fit in alternatives)]


def _formats_lines(info: ModelInfo, plans: Sequence[FormatPlans]) -> list[str]:
    title = (
        f"{info.title} at {info.side} pixels on Radeon cards ({ARCH}), by the format of the transformer's "
        "file; sizes in GB."
    )
    header = ("format", "file", *(f"{size} GB card" for size in CARDS_GB))
    lines = [title]
    tables = {
        "the automatic preserved memory": [
            [card.short(card.default) for card in plan.cards] for plan in plans
        ],
        "as little preserved memory as the estimates allow": [
            [card.short(card.fewest_copies) for card in plan.cards] for plan in plans
        ],
    }
    for caption, cells in tables.items():
        heads = [(", ".join(plan.formats), gb_text(plan.file_bytes)) for plan in plans]
        rows = [(*head, *texts) for head, texts in zip(heads, cells, strict=True)]
        lines += ["", f"With {caption}:", "", *aligned([header, *rows])]
    return [*lines, "", *_FORMATS_NOTE.splitlines()]


def add_models(commands: Commands) -> None:
    add_verbs(
        commands, "models", VERBS, switch("--json", "print JSON, one object per line"),
        description="List, add, get, convert, verify and remove the models of this machine.",
        epilog=_EXIT_CODES,
    )  # fmt: skip


def _report(arguments: argparse.Namespace, *lines: str, **facts: Any) -> None:
    say(*([json.dumps(facts)] if arguments.json else lines))


def _list(arguments: argparse.Namespace) -> int:
    names = [arguments.model] if arguments.model else model_names()
    for name in names:
        info = find_model(name, allow_folder=True)
        components = installed_components(info)
        here_bytes = sum(component.here_bytes for component in components)
        missing_bytes = sum(component.missing_bytes for component in components)
        label = state = "incomplete" if here_bytes else "not on this machine"
        size = f"{gb_text(here_bytes)} GB here, about {gb_text(missing_bytes)} GB missing"
        if all(component.is_complete for component in components):
            state, label = "complete", "on this machine"
            size = f"{gb_text(here_bytes)} GB here"
        lines = [f"{name}: {info.title}, {label}, {size}", *([f"  {info.licence}"] if info.licence else [])]
        lines += (f"  {_component_line(component)}" for component in components)
        _report(
            arguments, *lines, model=name, title=info.title, licence=info.licence, state=state,
            here_bytes=here_bytes, missing_bytes=missing_bytes, parts=[*map(_component_facts, components)],
        )  # fmt: skip
    return 0


def _component_line(component: InstalledComponent) -> str:
    origin = f", from {component.source}" if component.source != str(component.folder) else ""
    shared = f", shared with {', '.join(component.shared_with)}" if component.shared_with else ""
    if not component.here_bytes:
        size = f"missing, about {gb_text(component.missing_bytes)} GB"
    elif component.is_complete:
        size = f"{gb_text(component.here_bytes)} GB in {component.folder}"
    else:
        size = f"incomplete, {gb_text(component.here_bytes)} GB in {component.folder}"
    return f"{component.component}: {size}{origin}{shared}"


def _component_facts(component: InstalledComponent) -> dict[str, Any]:
    return {
        "part": component.component, "source": component.source, "folder": str(component.folder),
        "here_bytes": component.here_bytes, "missing_bytes": component.missing_bytes,
        "complete": component.is_complete, "shared_with": component.shared_with,
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
    all_correct = True
    for verdict in verify(find_model(arguments.model, allow_folder=True)):
        checked = count_text(verdict.checked, "checksum") if verdict.checked else "headers and sizes"
        lines = verdict.problems or [f"{verdict.component}: {checked} correct"]
        _report(
            arguments, *lines, model=arguments.model, part=verdict.component, checksums=verdict.checked,
            problems=verdict.problems,
        )  # fmt: skip
        all_correct = all_correct and not verdict.problems
    return 0 if all_correct else EXIT_FAILED


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
    size = gb_text(removal.num_bytes)
    names = list(removal.files)
    description = f"{size} GB of {info.name}" + (f" in {added.copy}" if added else f": {', '.join(names)}")
    if not _is_agreed(arguments, description):
        return EXIT_CANCELLED
    remove(info)
    shared = removal.kept.items()
    kept_lines = [f"{name} stays because it is used by {', '.join(users)}." for name, users in shared]
    _report(
        arguments, f"Removed {description}.", *kept_lines, model=info.name, removed_bytes=removal.num_bytes,
        parts=["transformer"] if added else names, kept=removal.kept,
    )  # fmt: skip
    return 0


def _is_agreed(arguments: argparse.Namespace, description: str) -> bool:
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(f"This would remove {description}.", "Add --yes to do so.")
    sys.stderr.write(one_line(f"Remove {description}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _convert(arguments: argparse.Namespace) -> int:
    name, folder, is_new = convert(arguments)
    state = "converted" if is_new else "already converted"
    size = sum(file.stat().st_size for file in weight_files(folder))
    text = f"{name}: {state}, {gb_text(size)} GB in {folder}"
    _report(arguments, text, model=name, state=state, folder=str(folder), bytes=size)
    return 0


def _add(arguments: argparse.Namespace) -> int:
    info, components = add_model(arguments)
    part_lines = [f"  {name}: {component.summary}" for name, component in components.items()]
    absence = absence_of(info)
    missing = f"; {absence.sizes}: get them with models get {info.name}" if absence else ""
    example = f"Make a video with: longtake generate --model {info.name} --image PICTURE --prompt TEXT"
    lines = [f"{info.name}: {info.title}, added{missing}", *part_lines, *([] if absence else [example])]
    parts = {
        name: {"path": component.component.path, "inspection": asdict(component.facts)}
        for name, component in components.items()
    }
    _report(arguments, *lines, model=info.name, title=info.title, state="added", parts=parts)
    return 0


def _model(help: str = "{}, or a folder", *, is_known: bool = False, **options: Any) -> Argument:
    """Make the `Argument` of a model, whose names are only known when the program has started."""

    def add(parser: argparse._ActionsContainer) -> None:
        names = model_names()
        if is_known:
            options["choices"] = names
        parser.add_argument("model", metavar="MODEL", help=help.format(", ".join(names)), **options)
        parser.set_defaults(named={"model": "MODEL"})

    return add


_ANY = _model("only this model, or a folder", nargs="?", default="")
_LISTED = _model("{}", is_known=True)
_REMOVED = (_model("{}"), switch("--yes", "remove without asking"))
_PLAN = (
    _model(),
    exclusive(
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

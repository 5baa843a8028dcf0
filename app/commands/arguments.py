"""The parts that the commands share: arguments, exit codes and the texts of errors."""

import argparse
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, get_args

from app.jobs.stdio import complain, in_language, start_log
from app.languages.translation import LANGUAGES
from app.machine import load_added_models, this_machine, this_profile
from app.starting import EXIT_CANCELLED, prepare
from diffusers_helper.errors import INPUT_CODES, InputError, LongtakeError, default_name, in_words, short_repr
from diffusers_helper.events import Failed
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.lora_choice import lora_folder, with_absolute_paths
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.machine.terminal import is_plain_text, width_of
from diffusers_helper.models.registry import model_names
from diffusers_helper.planning.variables import FIND_MODE_VARIABLE, FIND_MODES, engine_environment
from diffusers_helper.request import FINISHING, SETTINGS
from diffusers_helper.setting import Section, number_or_text, text_of

_log = logging.getLogger(__name__)

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2


class Help(argparse.RawDescriptionHelpFormatter):
    """Help that keeps the lines of its texts, in the language of the terminal."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return in_language(action.help) if action.help else action.help

    def start_section(self, heading: str | None) -> None:
        super().start_section(in_language(heading) if heading else heading)

    def add_text(self, text: str | None) -> None:
        super().add_text(in_language(text) if text else text)


class Parser(argparse.ArgumentParser):
    """A parser of whole names that reports an error in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        defaults = {"formatter_class": Help, "allow_abbrev": False}
        super().__init__(*args, **{**defaults, **kwargs})

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f": {action.metavar}"):
                message = f"the {action.metavar} is missing; expected one of {', '.join(action.choices)}"
        complain(f"{message[:1].upper()}{message[1:]}. See: {self.prog} --help")
        raise SystemExit(EXIT_BAD_INPUT)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, so that the error refers to the help of the given command."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            is_bare = not unknown[0].startswith("-") and "--image" in self._option_string_actions
            hint = "; a picture is given with --image, a sentence with --prompt" if is_bare else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        for action in self._actions:
            _check_text(action, getattr(parsed, action.dest, None))
        return parsed, unknown


def _check_text(action: argparse.Action, value: object) -> None:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not is_plain_text(text):
            name = next(iter(action.option_strings), action.metavar)
            raise InputError(
                f"{name} is {short_repr(text)}; expected text in UTF-8.",
                "Write it in UTF-8. If it is the name of a file, rename the file.",
            )


def command_for(outputs: str, *words: str) -> str:
    return shlex.join(("longtake", *words, "--outputs", outputs))


def queue_paused(outputs: str) -> str:
    command = command_for(outputs, "jobs", "resume", "--all")
    return f"The queue of this folder is paused. Continue it with: {command}"


def command_words(text: str, flags: Mapping[str, str] = MappingProxyType({})) -> str:
    """Name the command line's arguments, first those of `flags`, where an error's text names settings."""

    def name(setting: str) -> str:
        if setting in flags:
            return flags[setting]
        return flag(setting) if setting in SETTINGS or setting == "outputs" else default_name(setting)

    return in_words(text, name)


def error_line(error: LongtakeError | Failed, flags: Mapping[str, str] = MappingProxyType({})) -> str:
    return command_words(f"{error.message} {error.remedy}".strip(), flags)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the columns of a table; the last cell of a shorter row may be wider than its column."""
    rows = [[*map(in_language, row)] for row in rows]
    full_rows = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(map(width_of, column)) for column in zip(*full_rows, strict=True)]
    return [
        "  ".join(cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths)).rstrip()  # noqa: B905
        for row in rows
    ]


def add_outputs(parser: argparse._ActionsContainer, addition: str = "") -> None:
    parser.add_argument(
        "--outputs",
        "--out",
        default="outputs",
        metavar="DIR",
        help=f"folder that holds one folder per job{addition} (default: outputs)",
    )


def add_settings(parser: argparse._ActionsContainer, *, excluded: Collection[str] = ()) -> None:
    for section in get_args(Section):
        group = parser.add_argument_group(section.lower())
        for name, setting in SETTINGS.items():
            if setting.section == section and name not in excluded:
                add_setting(group, name)


def add_request(parser: argparse._ActionsContainer) -> None:
    add_settings(parser, excluded=FINISHING)
    parser.add_argument("--yes", action="store_true", help="download the model if it is not on this machine")
    parser.add_argument(
        "--wait", action="store_true",
        help="wait for you after each section, with the device free, until `jobs resume`",
    )  # fmt: skip


def add_setting(group: argparse._ActionsContainer, name: str) -> None:
    """Add the argument for a setting. Without it, its value is None, except for the model."""
    setting = SETTINGS[name]
    unit = setting.unit.upper() or "N"
    takes = setting.possible_values_clause
    if setting.is_optional:
        unit, takes = f"auto|{unit}", f"{takes}, or auto"
    if name == "model":
        takes = f"It is {', '.join(model_names())}, or a folder with a model's parts"
    help = setting.help
    if setting.parse_lines:
        help = help.replace(", one on each line", "").replace("Each line", "Each one")
        takes = "Give it once for each"
    if name == "lora":
        takes += f", with a path or a name in the folder {lora_folder(os.environ).name}"
    end = f" (default: {setting.default_text})" if setting.default_text else ""
    group.add_argument(
        flag(name),
        type=number_or_text if setting.is_number else str,
        action="append" if setting.parse_lines else "store",
        metavar="|".join(setting.choices) or unit,
        default=setting.default if name == "model" else None,
        help=f"{command_words(help)} {takes}{end}{'.' if takes else ''}".replace("%", "%%"),
    )


def settings_from(arguments: argparse.Namespace) -> dict[str, Any]:
    values = vars(arguments).items()
    settings = {name: value for name, value in values if name in SETTINGS and value is not None}
    lists = {name: text_of(value) for name, value in settings.items() if SETTINGS[name].parse_lines}
    return with_lora_paths(settings | lists)


def with_lora_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not settings.get("lora"):
        return dict(settings)
    return {**settings, "lora": with_absolute_paths(settings["lora"], lora_folder(os.environ))}


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_find_mode(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--miopen-find-mode",
        type=str.upper,
        choices=tuple(FIND_MODES),
        metavar="|".join(FIND_MODES),
        help="how MIOpen picks a kernel for a new shape: FAST starts at once; NORMAL makes a long search "
        f"first and may be faster afterwards (default: {FIND_MODE_VARIABLE}, or by the card; see doctor)",
    )


def find_mode_variables(arguments: argparse.Namespace) -> dict[str, str]:
    mode: str | None = arguments.miopen_find_mode
    return {} if mode is None else {FIND_MODE_VARIABLE: mode}


def apply_find_mode(arguments: argparse.Namespace) -> None:
    variables = find_mode_variables(arguments)
    if variables and this_machine(os.environ).kind != "rocm":
        complain("--miopen-find-mode has no effect here: MIOpen runs on AMD cards only.")
    os.environ.update(variables)


def apply_engine_environment() -> None:
    """Call this before torch is imported, because torch reads its environment only once."""
    os.environ.update(engine_environment(this_profile(os.environ).environment, os.environ))


def check_proxies() -> None:
    """Refuse SOCKS proxies, with which the page and downloads fail unless a further package is installed."""
    from urllib.request import getproxies  # a tenth of a second

    for name, value in getproxies().items():
        if value.startswith("socks") and importlib.util.find_spec("socksio") is None:
            raise InputError(
                f"{name}_proxy is {short_repr(value)}; expected an address that begins with http://, as the "
                "package for SOCKS is not installed.",
                f"Unset {name}_proxy, or install socksio beside Longtake.",
            )


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

Argument = Callable[[argparse._ActionsContainer], object]
"""A function that adds an argument, or several, to a parser or to a group of it."""


def argument(*names: str, **options: Any) -> Argument:
    return lambda group: group.add_argument(*names, **options)


def switch(name: str, help: str) -> Argument:
    return argument(name, action="store_true", help=help)


def exclusive(*arguments: Argument, required: bool = True) -> Argument:
    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for add_argument in arguments:
            add_argument(group)

    return add


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int],
    *arguments: Argument, help: str = "", description: str | None = None, epilog: str | None = None,
) -> Parser:  # fmt: skip
    parser = commands.add_parser(name, help=help, description=description, epilog=epilog)
    parser.set_defaults(run=run, verbose=False)
    for add_argument in arguments:
        add_argument(parser)
    return parser


Verb = tuple[Any, ...]
"""A verb of a command: its name, its help, what runs it, and its arguments, as `add_command` takes them."""


def add_verbs(
    commands: Commands, name: str, verbs: Iterable[Verb], *common: Argument,
    description: str, epilog: str,
) -> None:  # fmt: skip
    parser = commands.add_parser(name, description=description)
    parsers = parser.add_subparsers(metavar="verb", required=True, parser_class=Parser)
    for verb, verb_help, run, *arguments in verbs:
        add_command(
            parsers, verb, run, *arguments, *common,
            help=verb_help, description=f"{verb_help[:1].upper()}{verb_help[1:]}.", epilog=epilog,
        )  # fmt: skip


def run_parsed(build: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> int:
    arguments = argparse.Namespace()
    try:
        prepare(os.environ)
        load_added_models()
        words = sys.argv[1:] if argv is None else list(argv)
        arguments = build().parse_args(_without_language(words))
        start_log(logging.INFO if arguments.verbose else logging.WARNING)
        return arguments.run(arguments)
    except LongtakeError as error:
        complain(error_line(error, getattr(arguments, "named", {})))
        return EXIT_BAD_INPUT if error.code in INPUT_CODES else EXIT_FAILED
    except BrokenPipeError:
        # The reader of standard output has gone, so the rest of the buffer is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_CANCELLED
    except OSError as error:
        if error.filename is None and not is_storage_trouble(error):
            raise
        _log.info("where it happened", exc_info=True)
        name = error.filename or "A file, or the standard output,"
        complain(f"{name} cannot be used ({error.strerror}). Check its folder's rights and the disk's space.")
        return EXIT_FAILED


def add_language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang",
        metavar="|".join(LANGUAGES),
        help="language of the texts; before or after the command (default: LANG)",
    )


def _without_language(words: list[str]) -> list[str]:
    """Take the language out of a command's words, and set it for this process."""
    for index, word in enumerate(words):
        if word == "--lang" or word.startswith("--lang="):
            language = word.partition("=")[2] or "".join(words[index + 1 : index + 2])
            if language not in LANGUAGES:
                raise InputError(
                    f"lang is {short_repr(language)}; expected one of {', '.join(LANGUAGES)}.",
                    "Choose one of them.",
                )
            os.environ["LANGUAGE"] = language
            return words[:index] + words[index + (1 if "=" in word else 2) :]
    return words


@contextmanager
def single_run(command: str, folder: Path, remedy: str) -> Generator[None]:
    """Keep a second run of a command out, because two would distort each other's figures."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder / f".{command}.lock")
    except BlockingIOError as error:
        raise InputError(
            f"Another `{command}` is running; only one can run at a time.", "Wait until it has ended."
        ) from error
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}); expected a folder for what is measured.", remedy
        ) from error
    try:
        yield
    finally:
        lock.release()

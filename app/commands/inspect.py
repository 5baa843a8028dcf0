"""The command `inspect`, which shows what is in a file or folder with weights without loading it."""

import argparse

from app.commands.arguments import EXIT_BAD_INPUT, Commands, add_command, argument, switch
from app.jobs.stdio import complain, say
from diffusers_helper.errors import InputError
from diffusers_helper.families.registry import all_components
from diffusers_helper.files import expanded_path
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.units import count_text, gb_text
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint

_ABOUT = (
    "Read the headers of a file or folder with weights: format, model, names, types and problems.\n"
    "PATH is a file (safetensors, GGUF, .ckpt, .pt), the index of several files, a part's folder, or a\n"
    "folder with a model's parts. No tensor is read, and no code of a pickle is run."
)
_EXIT_CODES = "exit codes: 0 the weights can be used, 2 they are damaged, unsuitable or cannot be read."
INSPECTED = (
    argument("path", metavar="PATH", help="the file or folder"),
    argument(
        "--as", dest="place", choices=all_components(), default="", metavar="PART",
        help=f"check that it can be used as this part of a model: {', '.join(all_components())}",
    ),
)  # fmt: skip


def add_inspect(commands: Commands) -> None:
    add_command(
        commands, "inspect", print_inspection, *INSPECTED,
        switch("--json", "print the facts as one JSON object"),
        description=_ABOUT, epilog=_EXIT_CODES,
    )  # fmt: skip


def print_inspection(arguments: argparse.Namespace) -> int:
    path = expanded_path(arguments.path, "path")
    try:
        with limited_memory():
            inspection = inspect_checkpoint(path if path.name else path.absolute(), arguments.place)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); expected a file or folder with weights.",
            "Check the path.",
        ) from error
    if arguments.json:
        say(inspection.to_json())
    elif inspection.tensors or inspection.parts or not inspection.problems:
        say(*_lines(inspection))
    if not inspection.problems:
        return 0
    complain(inspection.problems[0])
    return EXIT_BAD_INPUT


def _lines(inspection: Inspection) -> list[str]:
    shares = ", ".join(f"{share:.1%} {name}" for name, share in inspection.dtypes.items())
    size = f"{count_text(inspection.tensors, 'tensor')}, {gb_text(inspection.bytes)} GB"
    model = " ".join(filter(None, (inspection.model or "not known", inspection.variant)))
    lines = [f"holds: {model}"]
    if inspection.tensors:
        lines = [
            f"model: {model}, with the names of {STYLE_WORDS[inspection.key_style]}",
            f"weights: {size}; {shares}",
            f"quantised: {inspection.quantised or 'no'}",
        ]
    return [
        f"{inspection.path}: {inspection.format or 'no known format'}, {gb_text(inspection.file_bytes)} GB",
        *lines,
        *(f"{name}: {_component_line(component)}" for name, component in inspection.parts.items()),
        *inspection.hints,
        *inspection.problems[1:],  # the first one goes to standard error
    ]


def _component_line(inspection: Inspection) -> str:
    if not inspection.tensors:
        return f"{gb_text(inspection.file_bytes)} GB"
    size = f"{count_text(inspection.tensors, 'tensor')}, {gb_text(inspection.bytes)} GB"
    return f"{inspection.model or 'not known'}, {size}; {', '.join(inspection.dtypes)}"


STYLE_WORDS = {
    "checkpoint": "a whole checkpoint",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "original": "its authors",
    "llama.cpp": "llama.cpp",
    "comfyui": "ComfyUI",
    "lora": "a LoRA",
    "unknown": "an unknown layout",
}

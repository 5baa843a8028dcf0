"""Requests for several videos: variants of one request, and batch files with one video per line."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from app.reading.tables import Row, decoded, table_rows
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.picture_file import size_of
from diffusers_helper.conditions.pictures import picture_paths, with_paths
from diffusers_helper.conditions.prompts import check_prompt
from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.files import expanded_path
from diffusers_helper.lora_choice import lora_folder, with_absolute_paths
from diffusers_helper.models.registry import DEFAULT_MODEL, find_model
from diffusers_helper.models.sizes import check_loras
from diffusers_helper.request import MAX_SEED, SETTINGS, GenerationRequest

_TABLES = (".csv", ".tsv", ".txt")
MAX_BYTES, MAX_VIDEOS, MAX_VARIANTS = 16 * 2**20, 10_000, 1000


def random_seed() -> int:
    return secrets.randbelow(2**31)


def variants(request: GenerationRequest, count: int) -> tuple[GenerationRequest, ...]:
    """Make `count` requests that differ only in their seeds, which count up, or raise InputError."""
    if not 1 <= count <= MAX_VARIANTS:
        raise InputError(
            f"The number of variants is {count}; expected a whole number from 1 to {MAX_VARIANTS}.",
            "Choose another number.",
        )
    return tuple(replace(request, seed=(request.seed + n) % (MAX_SEED + 1)) for n in range(count))


def read_batch(
    file: Path,
    common: Mapping[str, Any],
    check: Callable[[GenerationRequest], None] = lambda request: None,
    *,
    allow_folder: bool = False,
) -> dict[int, GenerationRequest | str]:
    """Read a batch file, which holds JSON lines, or a table with the names of settings in the first line.

    The paths of pictures and LoRAs are relative to the file; a LoRA may also be a name in the folder for
    LoRAs. In a table, an empty field means that the setting is not given, and "auto" that the program chooses
    it. Empty lines, and lines of JSON that begin with #, are skipped.

    Args:
        file: The file; it is read as a table if its name ends as one of `_TABLES`.
        common: The settings for all videos; those in a line take precedence.
        check: Refuses a request that cannot be carried out, with an InputError.
        allow_folder: Whether a model may be a local folder.

    Returns:
        The request of each line with a video, by its number from 1, or the reason why it cannot be used, in
        which settings are in back quotes.

    Raises:
        InputError: If the file as a whole cannot be used.
    """
    entries = dict[int, GenerationRequest | str]()
    read = set[str]()
    for line, settings in batch_lines(file):
        if isinstance(settings, str):
            entries[line] = settings
            continue
        try:
            request = _request({**common, **settings}, file.parent, allow_folder)
            paths = picture_paths(request).values()
            for path in paths:
                if path not in read:
                    (read_footage if path == request.video else size_of)(Path(path))
                    read.add(path)
            check(request)
            entries[line] = request
        except LongtakeError as error:
            entries[line] = f"{error.message} {error.remedy}"
    return entries


def batch_lines(file: Path) -> Iterator[Row]:
    """Yield the number of each line with a video, and its settings, or else the reason why it has none."""
    text = _text_of(file)
    count = 0
    is_json = not is_table(file) or text.lstrip()[:1] in ("{", "#")
    for entry in _json_lines(text) if is_json else table_rows(text):
        if (count := count + 1) > MAX_VIDEOS:
            raise InputError(
                f"{file.name} has more than {MAX_VIDEOS} lines with videos; expected at most that many.",
                "Split it.",
            )
        yield entry
    if not count:
        raise InputError(f"{file.name} has no line with a video; expected at least one.", "Write one.")


def is_table(file: Path) -> bool:
    return file.suffix.lower() in _TABLES


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(
                f"{file.name} is larger than {MAX_BYTES // 2**20} MiB; expected a batch file.", "Split it."
            )
    except OSError as error:
        problem = f"{file.name} cannot be read ({error.strerror}); expected a text file."
        raise InputError(problem, "Check the file.") from error
    return decoded(content, file.name)


def _json_lines(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            data: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"It is not JSON ({str(error)[:100]}). Write one JSON object per line."
            continue
        if isinstance(data, dict):
            yield number, cast(dict[str, Any], data)
        else:
            yield number, f"It is {short_repr(data)}; expected a JSON object of settings. Write one per line."


def _request(settings: dict[str, Any], folder: Path, allow_folder: bool) -> GenerationRequest:
    model = settings.get("model", DEFAULT_MODEL)
    if not isinstance(model, str):
        raise SETTINGS["model"].refusal(model, "Give `model` as text.")
    info = find_model(model, allow_folder=allow_folder)
    request = GenerationRequest.from_dict({**info.default_settings, **settings})
    info.check(request)
    check_prompt(request, info)
    lora = with_absolute_paths(request.lora, lora_folder(os.environ), folder.absolute())
    check_loras(lora, info)
    paths = picture_paths(request) | ({"video": request.video} if request.video else {})
    paths = {name: str(folder.absolute() / expanded_path(path, name)) for name, path in paths.items()}
    return with_paths(replace(request, lora=lora), paths)

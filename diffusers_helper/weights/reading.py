"""The files of one network in its folder, and the reader of any known format, recognised by the first bytes.

A folder may also have a tokenizer or a processor of pictures.
"""

from __future__ import annotations

import re
from pathlib import Path

from diffusers_helper.strangers.limited_json import MOST_BYTES
from diffusers_helper.units import gb_text
from diffusers_helper.weights.gguf_file import read_gguf
from diffusers_helper.weights.pickle_file import read_pickle
from diffusers_helper.weights.safetensors_file import read_safetensors
from diffusers_helper.weights.tensors import Contents, NotWeights

SUFFIXES = (".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin")
_START_BYTES = 2048
_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = re.compile(
    rb"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype|html|head|\?xml)", re.IGNORECASE | re.DOTALL
)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_AGAIN = "download it again."


def read_contents(file: Path) -> Contents:
    """Return the contents of a file with weights.

    Raises:
        OSError: If the file cannot be read.
        NotWeights: If it is something else, or truncated within the list of its tensors.
    """
    with file.open("rb") as stream:
        start = stream.read(_START_BYTES)
    if start[:4] == b"GGUF":
        return read_gguf(file)
    if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return read_pickle(file)
    # The length of the header precedes it, so its first letter is the ninth byte.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**40:
        return read_safetensors(file)
    if file.suffix == ".safetensors" and 0 < len(start) < 9:
        return read_safetensors(file)
    raise NotWeights(_foreign_content(start))


def is_page(start: bytes) -> bool:
    """Return whether a file with these first bytes is a web page."""
    return _PAGE.match(start) is not None


def _foreign_content(start: bytes) -> str:
    """Return what a file with these first bytes is, as the end of a sentence that begins with its name."""
    if not start:
        return f"is empty; {_AGAIN}"
    if start.startswith(_POINTER):
        size = re.search(rb"^size (\d{1,15})$", start, re.MULTILINE)
        what = f"{gb_text(int(size[1]))} GB of weights" if size else "weights"
        return f"is a Git LFS pointer to {what}, not the weights; run `git lfs pull` there, or {_AGAIN}"
    if is_page(start):
        title = _TITLE.search(start)
        words = " ".join(title[1].decode("utf-8", "replace").split())[:80] if title else ""
        named = f' ("{words}")' if words else ""
        return f"is a web page{named}, not weights: the server answered the download with it; {_AGAIN}"
    if start.lstrip()[:1] in (b"{", b"["):
        return f"is a JSON text, not weights; give the file with the weights, or {_AGAIN}"
    if not start.strip(b"\0"):
        return f"begins with zeros, like an interrupted download; {_AGAIN}"
    return (
        "is not a file with weights: it is neither safetensors, GGUF nor a checkpoint of torch; "
        "give another file."
    )


_PARTIAL = ".part"
_LISTED = re.compile(rb':\s*"([^"\\]{1,255}\.safetensors)"')
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")


def weight_files(place: Path) -> list[Path]:
    """Return the files with the weights of a network, given its folder or its single file."""
    return sorted(place.glob("*.safetensors")) if place.is_dir() else [place]


def is_complete(folder: Path) -> bool:
    """Return whether a part has its configuration and all files of its weights or vocabulary."""
    if folder.is_file():
        return True
    if partial_files(folder):
        return False
    if (folder / "config.json").is_file():
        weights = {file.name for file in folder.glob("*.safetensors") if file.is_file()}
        for index in folder.glob("*.safetensors.index.json"):
            return _listed(index) <= weights
        return bool(weights) and not any(map(_SHARD.search, weights))
    if (folder / "tokenizer_config.json").is_file():
        names = {file.name for file in folder.iterdir()}
        return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names
    return any((folder / name).is_file() for name in ("preprocessor_config.json", "scheduler_config.json"))


def _listed(index: Path) -> set[str]:
    """Return the names of the files with weights that an index lists; an odd one if it cannot be read.

    This is asked all the time, and of files that other programs have written, so no JSON is built.
    """
    try:
        with index.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except OSError:
        text = b""
    found = {match[1].decode("utf-8", "replace") for match in _LISTED.finditer(text)}
    return found if found and len(text) <= MOST_BYTES else {""}


def partial_of(target: Path) -> Path:
    """Return the name that a file has while it is being downloaded."""
    return target.with_name(f".{target.name}{_PARTIAL}")


def partial_files(folder: Path) -> list[Path]:
    """Return the unfinished downloads in a folder."""
    return sorted(folder.glob(f".*{_PARTIAL}"))

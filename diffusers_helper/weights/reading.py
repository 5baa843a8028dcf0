"""The files of one network in its folder, and the reader of any known format, recognised by first bytes."""

import re
from pathlib import Path

from diffusers_helper.files import is_visible
from diffusers_helper.units import gb_text
from diffusers_helper.untrusted.limited_json import MAX_BYTES
from diffusers_helper.weights.gguf_file import read_gguf
from diffusers_helper.weights.pickle_file import read_pickle
from diffusers_helper.weights.safetensors_file import read_safetensors
from diffusers_helper.weights.tensors import Contents, NotWeights

SUFFIXES = (".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin")
_START_BYTES = 2048
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_WEB_PAGE = re.compile(
    rb"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype|html|head|\?xml)", re.IGNORECASE | re.DOTALL
)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_REMEDY = "download it again."


def read_contents(file: Path) -> Contents:
    with file.open("rb") as stream:
        start = stream.read(_START_BYTES)
    if start[:4] == b"GGUF":
        return read_gguf(file)
    if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return read_pickle(file)
    # The first eight bytes are the length of the header.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**40:
        return read_safetensors(file)
    if file.suffix.lower() == ".safetensors" and 0 < len(start) < 9:
        return read_safetensors(file)
    raise NotWeights(_content_problem(start))


def is_web_page(start: bytes) -> bool:
    return _WEB_PAGE.match(start) is not None


def _content_problem(start: bytes) -> str:
    """Say what a file with these first bytes is, as the end of a sentence that begins with its name."""
    if not start:
        return f"is empty; {_REMEDY}"
    if start.startswith(_LFS_POINTER):
        size = re.search(rb"^size (\d{1,15})$", start, re.MULTILINE)
        content = f"{gb_text(int(size[1]))} GB of weights" if size else "weights"
        return f"is a Git LFS pointer to {content}, not the weights; run `git lfs pull` there, or {_REMEDY}"
    if is_web_page(start):
        title = _TITLE.search(start)
        title_text = " ".join(title[1].decode("utf-8", "replace").split())[:80] if title else ""
        quoted = f' ("{title_text}")' if title_text else ""
        return f"is a web page{quoted}, not weights: the server answered the download with it; {_REMEDY}"
    if start.lstrip()[:1] in (b"{", b"["):
        return f"is a JSON text, not weights; give the file with the weights, or {_REMEDY}"
    if not start.strip(b"\0"):
        return f"begins with zeros, like an interrupted download; {_REMEDY}"
    return (
        "is not a file with weights: it is neither safetensors, GGUF nor a checkpoint of torch; "
        "give another file."
    )


_PAIR = {"high_noise_model.safetensors", "low_noise_model.safetensors"}  # LoRAs of two transformers
_PARTIAL = ".part"
_LISTED_FILE = re.compile(rb':\s*"([^"\\]{1,255}\.safetensors)"', re.IGNORECASE)
INDEX = ".index.json"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$", re.IGNORECASE)


def names_weights(name: str, suffixes: tuple[str, ...] = SUFFIXES) -> bool:
    return is_visible(name) and name.lower().endswith(suffixes)


def files_in(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(file for file in folder.iterdir() if names_weights(file.name, suffixes or SUFFIXES))


def weight_files(path: Path) -> list[Path]:
    return files_in(path, ".safetensors") if path.is_dir() else [path]


def is_complete(folder: Path) -> bool:
    """Check that a component has its configuration and all files of its weights or vocabulary."""
    if folder.is_file():
        return True
    if partial_files(folder):
        return False
    if (folder / "config.json").is_file():
        weights = {file.name for file in files_in(folder, ".safetensors") if file.is_file()}
        for index in files_in(folder, f".safetensors{INDEX}"):
            return _listed_files(index) <= weights
        return bool(weights) and not any(map(_SHARD.search, weights))
    if (folder / "tokenizer_config.json").is_file():
        names = {file.name for file in folder.iterdir()}
        return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names
    names = {file.name for file in folder.glob("*.*") if file.is_file()}
    return names >= _PAIR or bool(names & {"preprocessor_config.json", "scheduler_config.json"})


def _listed_files(index: Path) -> set[str]:
    """Read the names of the files with weights that an index lists; {""} if it cannot be read.

    This is called often, and for files of other programs, so no JSON is built.
    """
    try:
        with index.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError:
        text = b""
    names = {match[1].decode("utf-8", "replace") for match in _LISTED_FILE.finditer(text)}
    return names if names and len(text) <= MAX_BYTES else {""}


def partial_of(target: Path) -> Path:
    return target.with_name(f".{target.name}{_PARTIAL}")


def partial_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f".*{_PARTIAL}"))

"""The facts about a file or folder with weights, found by headers alone.

No tensor is read and torch is not needed, so files of any size are examined in milliseconds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.known import FAMILIES, all_parts, models_by_part
from diffusers_helper.strangers.confined import confined
from diffusers_helper.strangers.limited_json import read_json
from diffusers_helper.units import count_text
from diffusers_helper.weights.reading import SUFFIXES, is_complete, read_contents
from diffusers_helper.weights.recognition import (
    KeyStyle,
    expected_names,
    key_style_of,
    models_of,
    names_problem,
    quantisation_of,
    variant_of,
)
from diffusers_helper.weights.tensors import Contents, Format, NotWeights, TensorInfo

INDEX = ".index.json"
USUAL = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_MOST_LETTERS, _MOST_TYPES = 300, 9  # of a sentence with names from a file, and of an answer
_MOST_SHARDS = 1000
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_KINDS = {"tokenizer_config.json": "tokenizer", "scheduler_config.json": "scheduler"}


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts about a file or folder with weights.

    Attributes:
        model: The models that the names belong to; "" if none is known.
        variant: The variant of the model; "" if neither content nor name shows it.
        key_style: The layout of the names: a checkpoint's, a library's, or that of the model's authors.
        dtypes: The share of these bytes by type, the largest first.
        quantised: The kind of quantisation that the content shows; "" for none.
        problems: Sentences about faults, with the file's name and a remedy; empty if it can be used.
        hints: Sentences about facts that only the file's name suggests.
        parts: The parts of a model's folder, by their names.
    """

    path: str
    format: Format | None
    model: str = ""
    variant: str = ""
    key_style: KeyStyle = "unknown"
    tensors: int = 0
    bytes: int = 0
    dtypes: Mapping[str, float] = field(default_factory=dict[str, float])
    quantised: str = ""
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    file_bytes: int = 0
    parts: Mapping[str, Inspection] = field(default_factory=dict[str, "Inspection"])

    @property
    def kinds(self) -> str:
        """Return the kind of quantisation, or the types if there is none."""
        return self.quantised or ", ".join(self.dtypes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def inspect_checkpoint(path: Path, place: str = "") -> Inspection:
    """Return the facts about a file with weights, the index of several, a part's folder, or a model's folder.

    Args:
        place: The part that it has to be usable as; "" for any.

    Raises:
        OSError: If it cannot be read.
    """
    parts = [part for part in all_parts() if (path / part).is_dir()]
    if parts and not place:
        return _inspect_model(path, parts)
    return inspect_weights(path / place if place in parts else path, place)


@confined
def inspect_weights(path: Path, place: str = "") -> Inspection:
    """Return the facts about the weights of one network, as `inspect_checkpoint` does for any path.

    Raises:
        OSError: If they cannot be read.
    """
    if path.is_dir():
        found = _inspect_folder(path, place)
    else:
        found = _inspect_shards(path) if path.name.endswith(INDEX) else _inspect_files(path, [path])
    # A tokenizer has no tensors, and may be in any folder but one for weights.
    if place and not found.problems and (found.tensors or place in models_by_part()):
        return replace(found, problems=tuple(_place_problems(found, place)))
    return found


def weights_at(path: Path) -> Path:
    """Return the only file with weights of a folder that has no configuration, or the path itself."""
    if not path.is_dir() or (path / "config.json").is_file():
        return path
    files = [file for file in path.iterdir() if file.suffix in SUFFIXES]
    return files[0] if len(files) == 1 else path


def is_shard(file: Path) -> bool:
    """Return whether a file is one of several that hold a network together, by its name."""
    return _SHARD.search(file.stem) is not None


def _inspect_model(folder: Path, parts: Sequence[str]) -> Inspection:
    found = {part: inspect_weights(folder / part, part) for part in parts}
    shares: Counter[str] = Counter()
    for one in found.values():
        for name, share in one.dtypes.items():
            shares[name] += round(share * one.bytes)
    title = found["transformer"].model if "transformer" in found else ""
    family = next((one for one in FAMILIES.values() if one.title == title), FRAMEPACK)
    lacking = [part for part in family.parts if part not in parts]
    problems = [problem for one in found.values() for problem in one.problems]
    if lacking:
        problems.append(f"{folder.name} lacks the folders {', '.join(lacking)}; add them.")
    first = found.get("transformer") or next(iter(found.values()))
    kinds = dict.fromkeys(one.quantised for one in found.values() if one.quantised)
    return Inspection(
        str(folder), "diffusers",
        model=first.model,
        variant=first.variant,
        key_style=first.key_style,
        tensors=sum(one.tensors for one in found.values()),
        bytes=sum(one.bytes for one in found.values()),
        dtypes=_shares(shares),
        quantised=", ".join(kinds),
        problems=tuple(problems),
        file_bytes=sum(one.file_bytes for one in found.values()),
        parts=found,
    )  # fmt: skip


def _inspect_folder(folder: Path, place: str) -> Inspection:
    """Examine a folder with the files of one network, or of a tokenizer."""
    indices = sorted(folder.glob(f"*.safetensors{INDEX}"))
    if indices:
        return _inspect_shards(indices[0])
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    # The files that the libraries prefer if they exist.
    files = [file for file in files if file.suffix == ".safetensors"] or files
    files = [file for file in files if file.name in USUAL] or files
    if len(files) > 1:
        shards = [file for file in files if is_shard(file)]
        if shards:
            problem = f"{folder.name} lacks the index of its {len(shards)} shards; download it again."
        else:
            problem = f"{folder.name} contains {len(files)} files with weights; name one of them."
        return Inspection(str(folder), None, problems=(problem,))
    if files:
        return _inspect_files(folder, files)
    if is_complete(folder):  # a tokenizer or a processor
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        kind = next((name for file, name in _KINDS.items() if (folder / file).is_file()), "image processor")
        return Inspection(str(folder), "diffusers", kind, file_bytes=size)
    what = "weights" if place in models_by_part() or not place else f"files of the {place}"
    problem = f"{folder.name} contains no {what}; choose another folder."
    return Inspection(str(folder), None, problems=(problem,))


def _inspect_shards(index: Path) -> Inspection:
    """Examine the files that an index lists, and compare them with the index."""
    folder = index.parent
    try:
        content: Any = read_json(index)
        listed: dict[str, str] = dict(content["weight_map"])
        names = dict.fromkeys(listed.values())
        if len(names) > _MOST_SHARDS or any(name != Path(name).name for name in names):  # or elsewhere
            raise ValueError
    except (ValueError, KeyError, TypeError):
        problem = f"{index.name} is not an index of weights; download it again."
        return Inspection(str(index), None, problems=(problem,))
    lacking = [name for name in names if not (folder / name).is_file()]
    files = [folder / name for name in names if name not in lacking]
    problems = [
        f"{name}, which {index.name} lists, is missing; download it again." for name in sorted(lacking)
    ]
    return _inspect_files(index, files, listed, problems)


def _inspect_files(
    path: Path,
    files: Sequence[Path],
    listed: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Inspection:
    """Examine the files of one network as a whole, given the list of the index, and the known faults."""
    reported = list(problems)
    read: dict[Path, Contents] = {}
    for file in files:
        try:
            read[file] = read_contents(file)
        except NotWeights as error:
            reported.append(f"{file.name} {error}")
    tensors = {name: tensor for contents in read.values() for name, tensor in contents.tensors.items()}
    reported += [f"{file.name} {problem}" for file, contents in read.items() for problem in contents.problems]
    if len(read) == len(files):
        reported += _list_problems(path, files, tensors, listed, is_whole=not problems)
    by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        by_type[tensor.dtype] += tensor.num_bytes
    models, style, quantised = models_of(tensors), key_style_of(tensors), quantisation_of(tensors, by_type)
    if models == [FRAMEPACK.title] and style == "diffusers" and not is_shard(path) and not reported:
        expected = expected_names(tensors)
        known = expected & tensors.keys()  # none behind a prefix
        if known and (problem := names_problem(known if quantised else tensors, expected)):
            reported.append(f"{path.name} {problem}.")
    metadata = {name: text for contents in read.values() for name, text in contents.metadata.items()}
    return Inspection(
        str(path), next((contents.format for contents in read.values()), None),
        model=" + ".join(models),
        variant=variant_of(models[0], tensors, _origin(path, metadata)) if len(models) == 1 else "",
        key_style=style,
        tensors=len(tensors),
        bytes=by_type.total(),
        dtypes=_shares(by_type),
        quantised=quantised,
        problems=tuple(one if len(one) <= _MOST_LETTERS else f"{one[:_MOST_LETTERS]}..." for one in reported),
        hints=_hints(path.name),
        file_bytes=sum(file.stat().st_size for file in files),
    )  # fmt: skip


def _list_problems(
    path: Path,
    files: Sequence[Path],
    tensors: Mapping[str, TensorInfo],
    listed: Mapping[str, str] | None,
    *,
    is_whole: bool,
) -> Iterable[str]:
    """Yield sentences about faults of the list of tensors."""
    if not tensors and files:
        yield f"{files[0].name} contains no tensor; give another file."
    if listed is None or not is_whole:
        return
    missing, unexpected = sorted(listed.keys() - tensors.keys()), sorted(tensors.keys() - listed.keys())
    if missing:
        lacking = count_text(len(missing), "missing tensor")
        yield f"{path.name} lists {lacking}, such as {missing[0]}; download all files again."
    if unexpected:
        yield (
            f"The files of {path.name} contain {count_text(len(unexpected), 'tensor')} that it does not "
            f"list, such as {unexpected[0]}; download them again."
        )


def _place_problems(facts: Inspection, place: str) -> Iterable[str]:
    """Yield a sentence if the files cannot be used as the part `place`."""
    path, wanted = Path(facts.path), models_by_part().get(place)
    if wanted is None:
        yield f"{path.name} contains weights, but must contain the files of the {place}; choose another one."
    elif _SHARD.search(path.stem):
        yield f"{path.name} is one of several shards; choose their folder."
    elif not {*wanted} & {*facts.model.split(" + ")}:
        found = facts.model or "a model that is not known"
        known = " or ".join(wanted)
        yield f"{path.name} contains {found}, but the {place} must be {known}; choose another one."


def _origin(path: Path, metadata: Mapping[str, str]) -> str:
    """Return the names that may show where weights come from, in lower case."""
    noted = [str(metadata.get(name, "")) for name in ("modelspec.title", "general.name", "title")]
    # A part in a hub cache has a path such as models--owner--name/snapshots/revision.
    names = [part for part in path.parts if part.startswith("models--")] or [path.parent.name]
    return " ".join([path.name, *names, *noted]).lower()


def _shares(by_type: Counter[str]) -> dict[str, float]:
    total = by_type.total()
    return {name: count / total for name, count in by_type.most_common(_MOST_TYPES) if total}


def _hints(name: str) -> tuple[str, ...]:
    """Return sentences about a file's name. A word counts only if it stands alone, as in `flux1-dev-fp8`."""
    shard = _SHARD.search(name.partition(".")[0])
    places = (
        [f"The file is shard {int(shard[1])} of {int(shard[2])}; its folder contains the model."]
        if shard
        else []
    )
    words = re.findall(r"(?<![a-z0-9])(fp8|int8|int4|nf4|bnb|gguf|quantized)(?![a-z0-9])", name.lower())
    return (*places, *(f"The name of the file says {word}." for word in dict.fromkeys(words)))

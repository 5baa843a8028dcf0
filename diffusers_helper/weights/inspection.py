"""The facts about a file or folder with weights, found by headers alone."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.registry import FAMILIES, all_components, models_by_component
from diffusers_helper.units import count_text
from diffusers_helper.untrusted.confined import confined
from diffusers_helper.untrusted.limited_json import read_json
from diffusers_helper.weights.reading import INDEX, files_in, is_complete, read_contents, weight_files
from diffusers_helper.weights.recognition import (
    KeyStyle,
    expected_names,
    key_style_of,
    models_of,
    names_problem,
    quantisation_of,
    variant_of,
)
from diffusers_helper.weights.tensors import Contents, Format, NotWeights, TensorInfo, layout_problem

STANDARD_NAMES = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_MAX_LENGTH, _MAX_TYPES = 300, 9  # of a sentence with names from a file, and of an answer
_MAX_SHARDS = 1000
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
        parts: The components of a model's folder, by their names.
        layout: See `weights.tensors.Contents`.
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
    parts: Mapping[str, "Inspection"] = field(default_factory=dict[str, "Inspection"])
    layout: str = ""

    @property
    def types(self) -> str:
        return self.quantised or ", ".join(self.dtypes)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def inspect_checkpoint(path: Path, component: str = "") -> Inspection:
    components = [name for name in all_components() if (path / name).is_dir()]
    if components and not component:
        return _inspect_model(path, components)
    return inspect_weights(path / component if component in components else path, component)


@confined
def inspect_weights(path: Path, component: str = "") -> Inspection:
    if path.is_dir():
        inspection = _inspect_folder(path, component)
    else:
        is_index = path.name.lower().endswith(INDEX)
        inspection = _inspect_shards(path) if is_index else _inspect_files(path, [path])
    # A tokenizer has no tensors, and may be in any folder but one for weights.
    if component and not inspection.problems and (inspection.tensors or component in models_by_component()):
        return replace(inspection, problems=tuple(_component_problems(inspection, component)))
    return inspection


def weights_at(path: Path) -> Path:
    if not path.is_dir() or (path / "config.json").is_file():
        return path
    files = files_in(path)
    return files[0] if len(files) == 1 else path


def is_shard(file: Path) -> bool:
    return _SHARD.search(file.stem) is not None


def _inspect_model(folder: Path, components: Sequence[str]) -> Inspection:
    inspections = {component: inspect_weights(folder / component, component) for component in components}
    shares: Counter[str] = Counter()
    for facts in inspections.values():
        for name, share in facts.dtypes.items():
            shares[name] += round(share * facts.bytes)
    title = inspections["transformer"].model if "transformer" in inspections else ""
    family = next((family for family in FAMILIES.values() if family.title == title), FRAMEPACK)
    missing = [component for component in family.components if component not in components]
    problems = [problem for facts in inspections.values() for problem in facts.problems]
    if missing:
        problems.append(f"{folder.name} lacks the folders {', '.join(missing)}; add them.")
    main = inspections.get("transformer") or next(iter(inspections.values()))
    quantisations = dict.fromkeys(facts.quantised for facts in inspections.values() if facts.quantised)
    return Inspection(
        str(folder), "diffusers",
        model=main.model,
        variant=main.variant,
        key_style=main.key_style,
        tensors=sum(facts.tensors for facts in inspections.values()),
        bytes=sum(facts.bytes for facts in inspections.values()),
        dtypes=_shares(shares),
        quantised=", ".join(quantisations),
        problems=tuple(problems),
        file_bytes=sum(facts.file_bytes for facts in inspections.values()),
        parts=inspections,
    )  # fmt: skip


def _inspect_folder(folder: Path, component: str) -> Inspection:
    indices = files_in(folder, f".safetensors{INDEX}")
    if indices:
        return _inspect_shards(indices[0])
    # The libraries prefer these files if they exist.
    files = weight_files(folder) or files_in(folder)
    files = [file for file in files if file.name.lower() in STANDARD_NAMES] or files
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
        model = next((name for file, name in _KINDS.items() if (folder / file).is_file()), "image processor")
        return Inspection(str(folder), "diffusers", model, file_bytes=size)
    kind = "weights" if component in models_by_component() or not component else f"files of the {component}"
    problem = f"{folder.name} contains no {kind}; choose another folder."
    return Inspection(str(folder), None, problems=(problem,))


def _inspect_shards(index: Path) -> Inspection:
    folder = index.parent
    try:
        content: Any = read_json(index)
        shards: dict[str, str] = dict(content["weight_map"])
        names = dict.fromkeys(shards.values())
        if len(names) > _MAX_SHARDS or any(name != Path(name).name for name in names):  # or elsewhere
            raise ValueError
    except (ValueError, KeyError, TypeError):
        problem = f"{index.name} is not an index of weights; download it again."
        return Inspection(str(index), None, problems=(problem,))
    missing = [name for name in names if not (folder / name).is_file()]
    files = [folder / name for name in names if name not in missing]
    problems = [
        f"{name}, which {index.name} lists, is missing; download it again." for name in sorted(missing)
    ]
    return _inspect_files(index, files, shards, problems)


def _inspect_files(
    path: Path,
    files: Sequence[Path],
    shards: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Inspection:
    sentences = list(problems)
    by_file: dict[Path, Contents] = {}
    for file in files:
        try:
            by_file[file] = read_contents(file)
        except NotWeights as error:
            sentences.append(f"{file.name} {error}")
    tensors = {name: tensor for contents in by_file.values() for name, tensor in contents.tensors.items()}
    sentences += [
        f"{file.name} {problem}" for file, contents in by_file.items() for problem in contents.problems
    ]
    if len(by_file) == len(files):
        sentences += _list_problems(path, files, tensors, shards, has_all_files=not problems)
    by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        by_type[tensor.dtype] += tensor.num_bytes
    models = models_of(tensors)
    style = key_style_of(tensors)
    layout = next((contents.layout for contents in by_file.values() if contents.layout), "")
    quantised = layout or quantisation_of(tensors, by_type)
    if any(contents.rotations for contents in by_file.values()):
        quantised += " ConvRot"
    if models == [FRAMEPACK.title] and style == "diffusers" and not is_shard(path) and not sentences:
        expected = expected_names(tensors)
        unprefixed = expected & tensors.keys()  # none behind a prefix
        if unprefixed and (problem := names_problem(unprefixed if quantised else tensors, expected)):
            sentences.append(f"{path.name} {problem}.")
    metadata = {name: text for contents in by_file.values() for name, text in contents.metadata.items()}
    return Inspection(
        str(path), next((contents.format for contents in by_file.values()), None),
        model=" + ".join(models),
        variant=variant_of(models[0], tensors, _origin(path, metadata)) if len(models) == 1 else "",
        key_style=style,
        tensors=len(tensors),
        bytes=by_type.total(),
        dtypes=_shares(by_type),
        quantised=quantised,
        problems=tuple(map(_shortened, sentences)),
        hints=_hints(path.name),
        file_bytes=sum(file.stat().st_size for file in files),
        layout=layout,
    )  # fmt: skip


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= _MAX_LENGTH else f"{sentence[:_MAX_LENGTH]}..."


def _list_problems(
    path: Path,
    files: Sequence[Path],
    tensors: Mapping[str, TensorInfo],
    shards: Mapping[str, str] | None,
    *,
    has_all_files: bool,
) -> Iterable[str]:
    if not tensors and files:
        yield f"{files[0].name} contains no tensor; give another file."
    if shards is None or not has_all_files:
        return
    missing = sorted(shards.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - shards.keys())
    if missing:
        missing_text = count_text(len(missing), "missing tensor")
        yield f"{path.name} lists {missing_text}, such as {missing[0]}; download all files again."
    if unexpected:
        yield (
            f"The files of {path.name} contain {count_text(len(unexpected), 'tensor')} that it does not "
            f"list, such as {unexpected[0]}; download them again."
        )


def _component_problems(facts: Inspection, component: str) -> Iterable[str]:
    path = Path(facts.path)
    models = models_by_component().get(component)
    if facts.layout:
        yield f"{path.name} {layout_problem(facts.layout)}"
    if models is None:
        expected = f"the files of the {component}"
        yield f"{path.name} contains weights, but must contain {expected}; choose another one."
    elif _SHARD.search(path.stem):
        yield f"{path.name} is one of several shards; choose their folder."
    elif not {*models} & {*facts.model.split(" + ")}:
        actual = facts.model or "a model that is not known"
        expected = " or ".join(models)
        yield f"{path.name} contains {actual}, but the {component} must be {expected}; choose another one."


def _origin(path: Path, metadata: Mapping[str, str]) -> str:
    titles = [str(metadata.get(name, "")) for name in ("modelspec.title", "general.name", "title")]
    # A component in a hub cache has a path such as models--owner--name/snapshots/revision.
    names = [folder for folder in path.parts if folder.startswith("models--")] or [path.parent.name]
    return " ".join([path.name, *names, *titles]).lower()


def _shares(by_type: Counter[str]) -> dict[str, float]:
    total = by_type.total()
    return {name: count / total for name, count in by_type.most_common(_MAX_TYPES) if total}


def _hints(name: str) -> tuple[str, ...]:
    """Draw hints from a file's name, in which a word has to stand alone, as in `flux1-dev-fp8`."""
    shard = _SHARD.search(name.partition(".")[0])
    words = re.findall(r"(?<![a-z0-9])(fp8|int8|int4|nf4|bnb|gguf|quantized)(?![a-z0-9])", name.lower())
    hints = [f"The name of the file says {word}." for word in dict.fromkeys(words)]
    if shard:
        hints.insert(0, f"The file is shard {int(shard[1])} of {int(shard[2])} of the model in its folder.")
    return tuple(hints)

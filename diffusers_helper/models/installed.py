"""The components of the registered models on this machine: their list, their check and their removal."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import LORA
from diffusers_helper.files import file_sha256, has_checksum
from diffusers_helper.models.added import ADDED_MODELS, PUT_BACK
from diffusers_helper.models.downloads import bytes_in, missing_bytes
from diffusers_helper.models.registry import ComponentSource, ModelInfo, find_model, model_names
from diffusers_helper.untrusted.confined import confined
from diffusers_helper.weights.inspection import inspect_checkpoint
from diffusers_helper.weights.reading import (
    is_complete,
    partial_files,
    partial_of,
    read_contents,
    weight_files,
)
from diffusers_helper.weights.safetensors_file import Origin, has_copy_sum, origin_in
from diffusers_helper.weights.tensors import NotWeights


@dataclass(frozen=True, slots=True)
class InstalledComponent:
    """One component of a model on this machine; its source is a folder, or a repository with its revision.

    `missing_bytes` are approximate, and 0 if they are not known.
    """

    component: str
    source: str
    folder: Path
    here_bytes: int
    missing_bytes: int
    is_complete: bool
    shared_with: tuple[str, ...]


def installed_components(info: ModelInfo) -> list[InstalledComponent]:
    others = {name: find_model(name).components.values() for name in model_names() if name != info.name}
    return [
        InstalledComponent(
            component, _origin(source), source.folder, bytes_in(source.folder),
            missing_bytes(info, component), is_complete(source.folder),
            shared_with=tuple(name for name, sources in others.items() if source in sources),
        )
        for component, source in info.components.items()
    ]  # fmt: skip


def _origin(source: ComponentSource) -> str:
    if source.revision is None:
        return str(Path(source.location, source.subfolder))
    path = "/".join(filter(None, (source.location, source.subfolder)))
    return f"{path}@{source.revision[:12]}"


@dataclass(frozen=True, slots=True)
class Verdict:
    component: str
    checked: int
    problems: tuple[str, ...]


def verify(info: ModelInfo, on_bytes: Callable[[int], None] = lambda count: None) -> Iterator[Verdict]:
    for installed in installed_components(info):
        folder = installed.folder
        if not installed.is_complete:
            yield Verdict(installed.component, 0, (_missing_problem(info, installed),))
            continue
        is_lora = installed.component == LORA  # two files, which are read when they are applied
        problems = [] if is_lora else list(inspect_checkpoint(folder, installed.component).problems)
        origin = origin_at(folder)
        added = ADDED_MODELS.find(info.name)
        checked = len(origin.sums) if origin else 0
        if origin is not None:
            problems += _copy_problems(folder, origin.sums, on_bytes)
        elif added is not None and added.copy == str(folder) and not problems:
            problems.append("The copy does not contain its origin; remove it and convert the model again.")
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():  # a single file has no checksum
            if file.is_file() and file.is_symlink():
                checked += 1
                if not has_checksum(file, file.resolve().name):
                    problems.append(f"{file.name} has a wrong checksum; remove the model and get it again.")
                on_bytes(file.stat().st_size)
        yield Verdict(installed.component, checked, tuple(problems))


def _missing_problem(info: ModelInfo, installed: InstalledComponent) -> str:
    if info.components[installed.component].revision is None:
        state = "is not complete in" if installed.here_bytes else "is not at"
        return f"{installed.component} {state} {installed.folder}; {PUT_BACK}."
    state = "is incomplete" if installed.here_bytes else "is not on this machine"
    return f"{installed.component} {state}; download it with: longtake models get {info.name}."


def check_own_files(info: ModelInfo) -> None:
    for installed in installed_components(info):
        if not installed.is_complete and info.components[installed.component].revision is None:
            raise InputError(_missing_problem(info, installed), setting="model")


def _copy_problems(
    folder: Path, sums: Iterable[tuple[str, str]], on_bytes: Callable[[int], None]
) -> Iterator[str]:
    weights = weight_files(folder)
    for name, checksum in sums:
        file = folder / name
        try:
            is_same = has_copy_sum(file, checksum) if file in weights else file_sha256(file) == checksum
            on_bytes(file.stat().st_size)
        except (OSError, NotWeights) as error:
            yield f"{name} cannot be read ({error})."
        else:
            if not is_same:
                yield f"{name} has a wrong checksum; remove the copy and convert the model again."


@dataclass(frozen=True, slots=True)
class Removal:
    files: dict[str, tuple[Path, ...]]
    num_bytes: int
    kept: dict[str, tuple[str, ...]]


def plan_removal(info: ModelInfo) -> Removal:
    """Choose what is removed with a model: its own components, and shared ones that no other model uses."""
    added = ADDED_MODELS.find(info.name)
    if added is not None:
        folder = Path(added.copy)
        copy_files = tuple[Path, ...]()
        if added.copy and origin_at(folder):
            copy_files = (*weight_files(folder), folder / "config.json")
        return Removal({"transformer": copy_files} if copy_files else {}, _total_bytes(copy_files), {})
    if any(info.components[component].revision is None for component in info.components):
        raise InputError(
            f"Model {info.name} is in {info.folder}; only downloaded models can be removed.",
            "Remove its folder yourself if it is not needed any more.",
            setting="model",
        )
    files: dict[str, tuple[Path, ...]] = {}
    kept: dict[str, tuple[str, ...]] = {}
    for installed in installed_components(info):
        users = tuple(
            name
            for name in installed.shared_with
            for parts in [installed_components(find_model(name))]
            if any(part.here_bytes and not part.shared_with for part in parts)
        )
        component_files = tuple(file for file in sorted(installed.folder.glob("*")) if not file.is_dir())
        component_files = tuple(dict.fromkeys([*component_files, *partial_files(installed.folder)]))
        if users and component_files:
            kept[installed.component] = users
        elif component_files:
            files[installed.component] = component_files
    return Removal(files, sum(_total_bytes(group) for group in files.values()), kept)


@confined
def origin_at(folder: Path) -> Origin | None:
    try:
        if not (folder.is_dir() and is_complete(folder) and (files := weight_files(folder))):
            return None
        return origin_in(read_contents(files[0]).metadata)
    except (OSError, ValueError):
        return None


def _total_bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.exists())


def remove(info: ModelInfo) -> Removal:
    removal = plan_removal(info)
    added = ADDED_MODELS.find(info.name)
    if added is not None:
        for file in removal.files.get("transformer", ()):
            file.unlink(missing_ok=True)
        folder = Path(added.copy)
        if added.copy and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        ADDED_MODELS.remove(added.name)
        return removal
    for component, files in removal.files.items():
        _remove_files(info.components[component].repository, files)
    if "vae" in removal.files and info.small_decoder and (decoder := info.small_decoder_file):
        _remove_files(info.small_decoder.repository, (decoder, partial_of(decoder)))
    return removal


def _remove_files(repository: Path, files: tuple[Path, ...]) -> None:
    blobs = {file.resolve() for file in files if file.is_symlink()}
    for file in files:
        file.unlink(missing_ok=True)
    used = {link.resolve() for link in (repository / "snapshots").rglob("*") if link.is_symlink()}
    for blob in blobs - used:
        blob.unlink(missing_ok=True)
    for path in (*sorted(repository.rglob("*"), reverse=True), repository):  # a folder after what is in it
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()

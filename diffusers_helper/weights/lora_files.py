"""Files with LoRAs, known by their headers alone: what they change, how large they are, and their words.

Only safetensors files are read, which hold numbers and text and no code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.known import FAMILIES
from diffusers_helper.files import given_path, sign_of
from diffusers_helper.lora_choice import Choice, choices_of
from diffusers_helper.strangers.confined import confined
from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.weights.lora_keys import Kind, Target, split_key, target_of
from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.tensors import Contents, NotWeights, TensorInfo

_R = TypeVar("_R")
MIN_SHARE = 0.9
"""The share of a file's tensors that have to fit the transformer. With fewer, the video would look different
from what the author of the LoRA made. LoRAs for Flux, whose blocks have partly the same names, reach half."""

_MOST_KEYS = 5_000  # three times as many as a LoRA for all layers has
# Methods whose matrices mean something else, by the names that only they have.
_OTHERS = {
    "DoRA": (".dora_scale", ".lora_magnitude_vector", ".lora_magnitude_vector.weight"),
    "LoHa": (".hada_w1_a",),
    "LoKr": (".lokr_w1", ".lokr_w1_a"),
}
# The notes of an author or a trainer in the metadata, and how much is taken of them.
_ADAPTER = "lora_adapter_metadata"
_TRIGGERS = (
    "modelspec.trigger_phrase", "trigger_phrase", "trigger_words", "trigger_word", "activation text",
    "instance_prompt",
)  # fmt: skip
_MOST_TAGS, _MOST_CHARACTERS = 5, 200
_NOTED = ("modelspec.architecture", "ss_base_model_version")
_OTHER_MODELS = r"flux|sdxl|stable-diffusion|sd3|sd_v|qwen|ltx|z-image|lumina"

# Flux has blocks with the same names and sizes as FramePack, but fewer: 19 and 38 instead of 20 and 40.
_FLUX_BLOCKS = {"transformer_blocks": 19, "single_transformer_blocks": 38}
_REFINER = "context_embedder"  # begins the names of layers that Flux does not have
# The ends of the names that Flux has, too, unlike HunyuanVideo's authors
_LIKE_FLUX = re.compile(
    r"blocks[._]\d+[._](?:(?:img|txt)_mod[._]lin|(?:img|txt)_mlp[._][02]|modulation[._]lin)$"
)
# Changes of norms, which diffusers leaves out, too: those that are published are zero.
_OF_NORM = re.compile(r"norm.*\.diff(?:_b)?$")


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of one change, whose product is added to the weights of some layers.

    Attributes:
        down, up: The names of the matrix that the input meets first, and of the other one.
        alpha, bias: The names of the scale and of what is added to the layer's bias; "" for none.
        rank, inputs, outputs: The sizes of the matrices, (rank, inputs) and (outputs, rank).
        scale: The factor that the file's metadata give; an `alpha` replaces it.
    """

    down: str
    up: str
    alpha: str
    bias: str
    target: Target
    rank: int
    inputs: int
    outputs: int
    scale: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.down, self.up, self.alpha, self.bias)))

    def fits(self, layers: Mapping[str, tuple[int, int]]) -> bool:
        """Return whether the layers exist with these sizes, given (outputs, inputs) of each layer by name."""
        sizes = [layers.get(name, (0, 0)) for name in self.target.layers]
        return {self.inputs} == {inputs for _, inputs in sizes} and self.outputs == sum(
            outputs for outputs, _ in sizes
        )


@dataclass(frozen=True, slots=True)
class LoraFile:
    """A file with a LoRA.

    Attributes:
        pairs: The changes to layers that a family has, whatever their sizes.
        triggers: The words that its author gave it to be called by; none if the file names none.
    """

    path: Path
    pairs: tuple[Pair, ...]
    keys: int
    triggers: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def family(self) -> Family:
        """Return the family that it was made for."""
        return _family_of(self.pairs)

    def check_family(self, model: str, family: Family) -> None:
        """Check that it was made for the family of a model.

        Raises:
            InputError: If it was not.
        """
        if self.family is not family:
            raise _refusal(
                self.name, f"was made for {self.family.title}; model {model} is of {family.title}",
                f"Choose a LoRA for {family.names.lora_of}.",
            )  # fmt: skip

    def fitting(self, layers: Mapping[str, tuple[int, int]]) -> tuple[Pair, ...]:
        """Return the changes that fit a transformer.

        Args:
            layers: The transformer's linear layers: (outputs, inputs) by name.

        Raises:
            InputError: If less than `MIN_SHARE` of the file fits.
        """
        found = tuple(pair for pair in self.pairs if pair.fits(layers))
        applied = count_keys(found)
        if applied < MIN_SHARE * self.keys:
            raise _refusal(
                self.name,
                f"fits this model with {applied} of its {self.keys} keys; expected at least {MIN_SHARE:.0%}",
                "Choose a LoRA that was made for this model.",
            )
        return found


def count_keys(pairs: Sequence[Pair]) -> int:
    """Return the number of tensors that these changes consist of."""
    return sum(len(pair.keys) for pair in pairs)


def loras_of(text: str) -> tuple[tuple[Choice, LoraFile], ...]:
    """Return the LoRAs that a request's text names, without those of weight 0, which have no effect.

    Raises:
        InputError: If a file is missing, or holds no LoRA for a family of models.
    """
    chosen = (one for one in choices_of(text) if one.weight)
    return tuple((one, read_lora(given_path(one.file, "lora"))) for one in chosen)


def read_lora(path: Path) -> LoraFile:
    """Return what the header of a file with a LoRA tells.

    Raises:
        InputError: If it is missing, or holds no LoRA for a family of models. The message is one sentence.
    """
    return _remembered(read_lora_file, path)


def triggers_of(path: Path) -> tuple[str, ...]:
    """Return the words by which a LoRA is called, as `read_lora` does, for lists of many files.

    Raises:
        InputError: If `read_lora` refuses the file.
    """
    return _remembered(read_lora_triggers, path)


def _remembered(read: Callable[[Path], _R], path: Path) -> _R:
    """Return what a reader found in a file, which is remembered by the file's time of change and its size."""
    try:
        found = _found(read, *sign_of(path))
    except OSError as error:
        raise _refusal(path.name, f"cannot be read ({error.strerror})", "Check its name.") from error
    if isinstance(found, InputError):
        raise found
    return found


@lru_cache(maxsize=1024)
def _found(read: Callable[[Path], Any], path: Path, changed: int, size: int) -> Any:
    try:
        return read(path)
    except InputError as error:
        return error


@confined
def read_lora_triggers(path: Path) -> tuple[str, ...]:
    """Return the words of `triggers_of`; see `read_lora_file`."""
    return read_lora_file(path).triggers


@confined
def read_lora_file(path: Path) -> LoraFile:
    """Return what the header of a file with a LoRA tells, as `read_lora` does, which remembers it.

    Raises:
        OSError: If it cannot be read.
        InputError: If it holds no LoRA for a family of models.
    """
    try:
        contents = read_contents(path)
    except NotWeights as error:
        raise _refusal(path.name, str(error).rstrip(".")) from error
    for problem in contents.problems:
        raise _refusal(path.name, problem.rstrip("."))
    if contents.format != "safetensors":
        again = "Choose the safetensors file of this LoRA."
        raise _refusal(path.name, f"is a {contents.format} file; expected safetensors", again)
    if len(contents.tensors) > _MOST_KEYS:
        raise _refusal(path.name, f"has {len(contents.tensors)} keys; expected at most {_MOST_KEYS}")
    tensors = {key: one for key, one in contents.tensors.items() if not _OF_NORM.search(key)}
    found = _pairs(tensors, _noted_scale(contents.metadata))
    _check(path.name, contents, found)
    return LoraFile(path, found, len(tensors), _noted_triggers(contents.metadata))


def _check(name: str, contents: Contents, pairs: Sequence[Pair]) -> None:
    """Refuse a file that holds something other than a LoRA for a family of models."""
    keys = contents.tensors
    for method, endings in _OTHERS.items():
        if any(key.endswith(endings) for key in keys):
            raise _refusal(name, f"is a {method}; expected a plain LoRA", "Choose another file.")
    if not any(split_key(key) for key in keys):
        raise _refusal(
            name, f"holds no LoRA: none of its {len(keys)} keys has the name of one", "Choose another file."
        )
    noted = " ".join(contents.metadata.get(name, "") for name in _NOTED).lower()
    own = _family_of(pairs)
    others = (one.names.made_for for one in FAMILIES.values() if one is not own)
    if match := re.search("|".join((_OTHER_MODELS, *others)), noted):
        raise _refusal(name, f"was made for {match[0]}, as it says itself", f"Choose a LoRA for {_known()}.")
    if not re.search(own.names.made_for, noted) and (doubt := _doubt(keys, pairs)):
        raise _refusal(name, doubt, f"Choose a LoRA for {_known()}.")
    if not pairs:
        titles = " or ".join(one.title for one in FAMILIES.values())
        problem = f"was made for another model: none of its {len(keys)} keys belongs to {titles}"
        raise _refusal(name, problem, f"Choose a LoRA for {_known()}.")


def _family_of(pairs: Sequence[Pair]) -> Family:
    """Return the family of most of the layers that are changed; FramePack's if there are none."""
    counts = Counter(pair.target.family for pair in pairs)
    return FAMILIES[counts.most_common(1)[0][0]] if counts else FRAMEPACK


def _known() -> str:
    return " or ".join(one.names.lora_of for one in FAMILIES.values())


def _doubt(keys: Iterable[str], pairs: Sequence[Pair]) -> str:
    """Return why a LoRA without metadata belongs to Flux, or may do so; empty if it does not."""
    numbers: dict[str, set[int]] = {}
    has_more = False  # layers that Flux does not have
    for layer in (layer for pair in pairs for layer in pair.target.layers):
        group, _, rest = layer.partition(".")
        if group in _FLUX_BLOCKS:
            numbers.setdefault(group, set()).add(int(rest.partition(".")[0]))
        has_more = has_more or group == _REFINER
    if numbers and all(numbers[group] == {*range(_FLUX_BLOCKS[group])} for group in numbers):
        return "was made for Flux: it changes exactly the blocks that Flux has, and not FramePack's last ones"
    has_more = has_more or any(max(numbers[group]) >= _FLUX_BLOCKS[group] for group in numbers)
    if not has_more and any(_LIKE_FLUX.search(split[0]) for key in keys if (split := split_key(key))):
        return "may be for Flux: it names its layers as Flux does, and changes no layer that Flux lacks"
    return ""


def _pairs(tensors: Mapping[str, TensorInfo], scale: Callable[[Target, int], float]) -> tuple[Pair, ...]:
    """Return the changes to layers that a family has."""
    parts: dict[str, dict[Kind, str]] = {}
    for key in tensors:
        if split := split_key(key):
            parts.setdefault(split[0], {})[split[1]] = key
    return tuple(
        pair
        for beginning, part in parts.items()
        if (target := target_of(beginning)) and (pair := _pair(tensors, part, target, scale))
    )


def _pair(
    tensors: Mapping[str, TensorInfo],
    part: Mapping[Kind, str],
    target: Target,
    scale: Callable[[Target, int], float],
) -> Pair | None:
    """Return the change that these tensors make, or None if they are no two matrices that fit each other."""
    if not {"down", "up"} <= part.keys():
        return None
    down, up = tensors[part["down"]], tensors[part["up"]]
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1] or not down.shape[0]:
        return None
    if not all(tensor.dtype.startswith(("float", "bfloat")) for tensor in (down, up)):
        return None
    rank, outputs, alpha, bias = down.shape[0], up.shape[0], part.get("alpha", ""), part.get("bias", "")
    if bias and tensors[bias].shape != (outputs,):
        bias = ""
    found = part["down"], part["up"], alpha, bias
    return Pair(*found, target, rank, down.shape[1], outputs, scale(target, rank))


def rank_of(loras: Collection[LoraFile]) -> int:
    """Return the largest sum of ranks that LoRAs can have at one layer."""
    return sum(max(pair.rank for pair in lora.pairs) for lora in loras)


def _refusal(name: str, problem: str, remedy: str = "") -> InputError:
    return InputError(f"LoRA {name} {problem}.", remedy, setting="lora")


def _noted_triggers(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words by which a LoRA is called, as its author or its trainer has noted them."""
    for name in _TRIGGERS:
        if words := _clean(metadata.get(name, "")):
            return (words,)
    return _common_tags(metadata.get("ss_tag_frequency"))


def _common_tags(text: str | None) -> tuple[str, ...]:
    """Return the tags that the trainer has counted most often, given their counts by folder in JSON."""
    tags = Counter[str]()
    try:
        folders: Any = parse_json((text or "{}").encode())
        for counts in folders.values():
            tags.update({str(tag).strip(): int(count) for tag, count in counts.items()})
    except (ValueError, TypeError, AttributeError, OverflowError):
        return ()
    most = max(tags.values(), default=0)
    common = (_clean(tag) for tag, count in tags.most_common(_MOST_TAGS) if count >= most / 2)
    return tuple(tag for tag in common if tag)


def _clean(text: str) -> str:
    """Return a text of unknown origin as one short line."""
    start = text[: 10 * _MOST_CHARACTERS]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:_MOST_CHARACTERS]


def _noted_scale(metadata: Mapping[str, str]) -> Callable[[Target, int], float]:
    """Return a function for the scales in the metadata that diffusers writes, which may lack."""
    try:
        noted = cast(dict[str, Any], parse_json(metadata.get(_ADAPTER, "{}").encode()))
        facts = {name.removeprefix("transformer."): value for name, value in noted.items()}
        alpha = float(facts.get("lora_alpha") or 0)
        pattern = cast(dict[str, Any], facts.get("alpha_pattern") or {})
        others = {name: (place, float(value)) for place, (name, value) in enumerate(pattern.items())}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return lambda target, rank: 1.0
    has_root = facts.get("use_rslora") is True

    def scale(target: Target, rank: int) -> float:
        parts = target.layers[0].split(".")
        ends = (".".join(parts[place:]) for place in range(len(parts)))
        # Of several names that fit, the first one counts.
        _, numerator = min((others[end] for end in ends if end in others), default=(0, alpha))
        return numerator / (rank**0.5 if has_root else rank) if numerator else 1.0

    return scale

"""Files with LoRAs, read by their headers alone: their changes, their sizes, and their trigger words."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.registry import FAMILIES
from diffusers_helper.files import expanded_path, file_signature
from diffusers_helper.lora_choice import Choice, choices_of
from diffusers_helper.untrusted.confined import confined
from diffusers_helper.untrusted.limited_json import parse_json
from diffusers_helper.weights.lora_keys import Kind, Target, split_key, target_of
from diffusers_helper.weights.reading import read_contents
from diffusers_helper.weights.tensors import Contents, NotWeights, TensorInfo

MIN_SHARE = 0.9
"""The share of a file's tensors that have to fit the transformer. With fewer, the video would look different
from what the author of the LoRA made. LoRAs for Flux, whose blocks have partly the same names, reach half."""

_MAX_KEYS = 5_000  # three times as many as a LoRA for all layers has
# Other methods than LoRA, by the names that only they have
_OTHER_METHODS = {
    "DoRA": (".dora_scale", ".lora_magnitude_vector", ".lora_magnitude_vector.weight"),
    "LoHa": (".hada_w1_a",),
    "LoKr": (".lokr_w1", ".lokr_w1_a"),
}
# The notes of an author or a trainer in the metadata, and the limits of what is read of them
_ADAPTER = "lora_adapter_metadata"
_TRIGGERS = (
    "modelspec.trigger_phrase", "trigger_phrase", "trigger_words", "trigger_word", "activation text",
    "instance_prompt",
)  # fmt: skip
_MAX_TAGS, _MAX_CHARACTERS = 5, 200
_MODEL_NOTES = ("modelspec.architecture", "ss_base_model_version")
_OTHER_MODELS = r"flux|sdxl|stable-diffusion|sd3|sd_v|qwen|ltx|z-image|lumina"

# Flux has blocks with the same names and sizes as FramePack, but fewer: 19 and 38 instead of 20 and 40.
_FLUX_BLOCKS = {"transformer_blocks": 19, "single_transformer_blocks": 38}
_REFINER = "context_embedder"  # begins the names of layers that Flux does not have
# The ends of names that Flux has, but not HunyuanVideo's authors
_LIKE_FLUX = re.compile(
    r"blocks[._]\d+[._](?:(?:img|txt)_mod[._]lin|(?:img|txt)_mlp[._][02]|modulation[._]lin)$"
)
# Changes of norms, which are left out, as in diffusers: published LoRAs have zeros there.
_OF_NORM = re.compile(r"norm.*\.diff(?:_b)?$")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two matrices whose product is added to weights: `down` (rank, inputs) and `up` (outputs, rank).

    `alpha` names the scale and `bias` what is added to the layer's bias; "" for none. An `alpha` replaces
    `scale`.
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
        """Check that the layers exist with these sizes, (outputs, inputs) by name."""
        sizes = [layers.get(name, (0, 0)) for name in self.target.layers]
        return {self.inputs} == {inputs for _, inputs in sizes} and self.outputs == sum(
            outputs for outputs, _ in sizes
        )


@dataclass(frozen=True, slots=True)
class LoraFile:
    path: Path
    pairs: tuple[Pair, ...]
    keys: int
    triggers: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.name

    def suits(self, component: str) -> bool:
        """Tell if it is meant for one of two transformers, where its name says high or low noise."""
        words = re.findall(r"(?<![a-z])(high|low)(?![a-z])", self.name.lower())
        return not words or words[-1] == ("low" if component == "transformer_2" else "high")

    def check_family(self, model: str, family: Family) -> None:
        families = _lora_families(self.pairs)
        if family not in families:
            raise _refusal(
                self.name, f"was made for {families[0].title}; model {model} is of {family.title}",
                f"Choose a LoRA for {family.layer_names.lora_models}.",
            )  # fmt: skip

    def fitting(self, layers: Mapping[str, tuple[int, int]]) -> tuple[Pair, ...]:
        """Choose the changes that fit layers, (outputs, inputs) by name; InputError if they are too few."""
        pairs = tuple(pair for pair in self.pairs if pair.fits(layers))
        applied = count_keys(pairs)
        if applied < MIN_SHARE * self.keys:
            raise _refusal(
                self.name,
                f"fits this model with {applied} of its {self.keys} keys; expected at least {MIN_SHARE:.0%}",
                "Choose a LoRA that was made for this model.",
            )
        return pairs


def count_keys(pairs: Sequence[Pair]) -> int:
    return sum(len(pair.keys) for pair in pairs)


def loras_of(text: str) -> tuple[tuple[Choice, LoraFile], ...]:
    """Read the LoRAs that a request's text names, without those of weight 0, which have no effect."""
    chosen = (choice for choice in choices_of(text) if choice.weight)
    return tuple((choice, read_lora(expanded_path(choice.file, "lora"))) for choice in chosen)


def read_lora(path: Path) -> LoraFile:
    """Read what the header of a file with a LoRA tells, or raise InputError with one sentence."""
    try:
        result = _lora_or_error(*file_signature(path))
    except OSError as error:
        raise _refusal(path.name, f"cannot be read ({error.strerror})", "Check its name.") from error
    if isinstance(result, InputError):
        raise result
    return result


@lru_cache(maxsize=1024)
def _lora_or_error(path: Path, mtime: int, size: int) -> LoraFile | InputError:
    try:
        return read_lora_file(path)
    except InputError as error:
        return error


@confined
def read_lora_file(path: Path) -> LoraFile:
    try:
        contents = read_contents(path)
    except NotWeights as error:
        raise _refusal(path.name, str(error).rstrip(".")) from error
    for problem in contents.problems:
        raise _refusal(path.name, problem.rstrip("."))
    if contents.format != "safetensors":
        remedy = "Choose the safetensors file of this LoRA."
        raise _refusal(path.name, f"is a {contents.format} file; expected safetensors", remedy)
    if len(contents.tensors) > _MAX_KEYS:
        raise _refusal(path.name, f"has {len(contents.tensors)} keys; expected at most {_MAX_KEYS}")
    tensors = {key: tensor for key, tensor in contents.tensors.items() if not _OF_NORM.search(key)}
    pairs = _pairs(tensors, _scale_in(contents.metadata))
    _check_is_lora(path.name, contents, pairs)
    return LoraFile(path, pairs, len(tensors), _triggers_in(contents.metadata))


def _check_is_lora(name: str, contents: Contents, pairs: Sequence[Pair]) -> None:
    keys = contents.tensors
    for method, endings in _OTHER_METHODS.items():
        if any(key.endswith(endings) for key in keys):
            raise _refusal(name, f"is a {method}; expected a plain LoRA", "Choose another file.")
    if not any(split_key(key) for key in keys):
        raise _refusal(
            name, f"holds no LoRA: none of its {len(keys)} keys has the name of one", "Choose another file."
        )
    notes = " ".join(contents.metadata.get(name, "") for name in _MODEL_NOTES).lower()
    families = _lora_families(pairs)
    other_patterns = (
        other.layer_names.lora_metadata_pattern for other in FAMILIES.values() if other not in families
    )
    if match := re.search("|".join((_OTHER_MODELS, *other_patterns)), notes):
        raise _refusal(
            name, f"was made for {match[0]}, as it says itself", f"Choose a LoRA for {_lora_targets()}."
        )
    is_noted = any(re.search(family.layer_names.lora_metadata_pattern, notes) for family in families)
    if not is_noted and (problem := _flux_problem(keys, pairs)):
        raise _refusal(name, problem, f"Choose a LoRA for {_lora_targets()}.")
    if not pairs:
        titles = " or ".join(dict.fromkeys(family.title for family in FAMILIES.values()))
        problem = f"was made for another model: none of its {len(keys)} keys belongs to {titles}"
        raise _refusal(name, problem, f"Choose a LoRA for {_lora_targets()}.")


def _lora_families(pairs: Sequence[Pair]) -> list[Family]:
    """List the families that have most of the layers, which may be several."""
    counts = Counter(family for pair in pairs for family in pair.target.families)
    most = max(counts.values(), default=0)
    return [FAMILIES[name] for name, count in counts.items() if count == most] or [FRAMEPACK]


def _lora_targets() -> str:
    return " or ".join(dict.fromkeys(family.layer_names.lora_models for family in FAMILIES.values()))


def _flux_problem(keys: Iterable[str], pairs: Sequence[Pair]) -> str:
    """Explain why a LoRA without metadata belongs to Flux, or may do so; "" if it does not."""
    indices: dict[str, set[int]] = {}
    has_other_layers = False  # layers that Flux does not have
    for layer in (layer for pair in pairs for layer in pair.target.layers):
        group, _, rest_of_name = layer.partition(".")
        if group in _FLUX_BLOCKS:
            indices.setdefault(group, set()).add(int(rest_of_name.partition(".")[0]))
        has_other_layers = has_other_layers or group == _REFINER
    if indices and all(indices[group] == {*range(_FLUX_BLOCKS[group])} for group in indices):
        return "was made for Flux: it changes exactly the blocks that Flux has, and not FramePack's last ones"
    has_other_layers |= any(max(indices[group]) >= _FLUX_BLOCKS[group] for group in indices)
    if not has_other_layers and any(_LIKE_FLUX.search(split[0]) for key in keys if (split := split_key(key))):
        return "may be for Flux: it names its layers as Flux does, and changes no layer that Flux lacks"
    return ""


def _pairs(tensors: Mapping[str, TensorInfo], scale: Callable[[Target, int], float]) -> tuple[Pair, ...]:
    keys_by_layer: dict[str, dict[Kind, str]] = {}
    for key in tensors:
        if split := split_key(key):
            keys_by_layer.setdefault(split[0], {})[split[1]] = key
    return tuple(
        pair
        for layer, keys in keys_by_layer.items()
        if (target := target_of(layer)) and (pair := _pair(tensors, keys, target, scale))
    )


def _pair(
    tensors: Mapping[str, TensorInfo],
    keys: Mapping[Kind, str],
    target: Target,
    scale: Callable[[Target, int], float],
) -> Pair | None:
    if not {"down", "up"} <= keys.keys():
        return None
    down, up = tensors[keys["down"]], tensors[keys["up"]]
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1] or not down.shape[0]:
        return None
    if not all(tensor.dtype.startswith(("float", "bfloat")) for tensor in (down, up)):
        return None
    rank, outputs, alpha, bias = down.shape[0], up.shape[0], keys.get("alpha", ""), keys.get("bias", "")
    if bias and tensors[bias].shape != (outputs,):
        bias = ""
    names = keys["down"], keys["up"], alpha, bias
    return Pair(*names, target, rank, down.shape[1], outputs, scale(target, rank))


def rank_of(loras: Collection[LoraFile]) -> int:
    return sum(max(pair.rank for pair in lora.pairs) for lora in loras)


def _refusal(name: str, problem: str, remedy: str = "") -> InputError:
    return InputError(f"LoRA {name} {problem}.", remedy, setting="lora")


def _triggers_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
    for name in _TRIGGERS:
        if phrase := _clean(metadata.get(name, "")):
            return (phrase,)
    return _common_tags(metadata.get("ss_tag_frequency"))


def _common_tags(text: str | None) -> tuple[str, ...]:
    tags = Counter[str]()
    try:
        folders: Any = parse_json((text or "{}").encode())
        for counts in folders.values():
            tags.update({str(tag).strip(): int(count) for tag, count in counts.items()})
    except (ValueError, TypeError, AttributeError, OverflowError):
        return ()
    highest_count = max(tags.values(), default=0)
    common = (_clean(tag) for tag, count in tags.most_common(_MAX_TAGS) if count >= highest_count / 2)
    return tuple(tag for tag in common if tag)


def _clean(text: str) -> str:
    excerpt = text[: 10 * _MAX_CHARACTERS]
    return " ".join("".join(c if c.isprintable() else " " for c in excerpt).split())[:_MAX_CHARACTERS]


def _scale_in(metadata: Mapping[str, str]) -> Callable[[Target, int], float]:
    """Make a function for the scales in the metadata that diffusers writes; 1 if they are missing."""
    try:
        adapter = cast(dict[str, Any], parse_json(metadata.get(_ADAPTER, "{}").encode()))
        facts = {name.removeprefix("transformer."): value for name, value in adapter.items()}
        alpha = float(facts.get("lora_alpha") or 0)
        pattern = cast(dict[str, Any], facts.get("alpha_pattern") or {})
        alphas = {name: (index, float(value)) for index, (name, value) in enumerate(pattern.items())}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return lambda target, rank: 1.0
    has_root = facts.get("use_rslora") is True

    def scale(target: Target, rank: int) -> float:
        name_parts = target.layers[0].split(".")
        suffixes = (".".join(name_parts[index:]) for index in range(len(name_parts)))
        # If several names fit, the first one counts.
        _, numerator = min((alphas[suffix] for suffix in suffixes if suffix in alphas), default=(0, alpha))
        return numerator / (rank**0.5 if has_root else rank) if numerator else 1.0

    return scale

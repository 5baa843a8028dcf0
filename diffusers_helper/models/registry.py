"""The table of the registered models, with the sources of their components and their default settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from diffusers_helper.errors import InputError, PictureError, short_repr
from diffusers_helper.families.family import Family
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import MODES, Mode, SectionPlan
from diffusers_helper.families.registry import FAMILIES, family_of_config
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel
from diffusers_helper.request import OWN, SETTINGS, GenerationRequest
from diffusers_helper.untrusted.limited_json import read_json
from diffusers_helper.weights.reading import is_complete

DEFAULT_MODEL = "demo"
FACTS_FILE = "longtake.json"
_DEMO_PURPOSE = "For trying everything out at once, on any machine: simple shapes and a few dozen words."
_DEMO_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "demo_model"


def sides_of(shape: str) -> tuple[int, int]:
    width, height = map(int, shape.split(":"))
    return height, width


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentSource:
    location: str
    subfolder: str = ""
    revision: str | None = None
    config: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def repository(self) -> Path:
        """The folder of a hub repository in the hub's local cache, whether it exists or not."""
        from huggingface_hub import constants  # only a hub model needs it

        return Path(constants.HF_HUB_CACHE, "models--" + self.location.replace("/", "--"))

    @property
    def root(self) -> Path:
        """The folder to which the subfolder belongs, or the single file, whether they exist or not."""
        return Path(self.location) if self.revision is None else self.repository / "snapshots" / self.revision

    @property
    def folder(self) -> Path:
        return self.root / self.subfolder

    @property
    def is_missing(self) -> bool:
        return self.revision is not None and not is_complete(self.folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """The facts about a model that are known before any of it is loaded.

    Attributes:
        family: Its family, which plans its sections.
        modes: The orders of sections that it supports; the first is its default.
        side, multiple: The picture shapes (`buckets.buckets`) that it was trained for.
        steps, guidance, cfg: The values that suit it best.
        file_dtype: The type of a published transformer's files, if it is not that of its family.
        negative, weight_dtype: The negative prompt and the type of the weights that suit it.
        times: The times, of 1000, at which a model for few steps computes; none for one that has a schedule.
        shift: The shift of its noise levels in sampling; None for FramePack's rule, which goes by tokens.
        sizes: The number of sizes in which each section is sampled, with at least one step in each.
        first_steps: The factor by which the first section takes more steps than the others.
        step_caches: The step caches that it can be used with; None for all.
        own_mag_ratios: Its `mag_ratios` by order of sections, if they differ from its family's.
        purpose: A sentence on what it is for; "" if nobody has said it.
        vocabulary: The words that it knows, by group; empty for a model that takes free text.
        folder: The folder of a local model; None for a published one.
    """

    name: str
    title: str
    components: dict[str, ComponentSource]
    family: Family = FRAMEPACK
    modes: tuple[Mode, ...] = MODES
    side: int = 640
    multiple: int = 32
    steps: int = 25
    guidance: float = 10.0
    cfg: float = 1.0
    file_dtype: str = ""
    negative: str = ""
    weight_dtype: str = "default"
    times: tuple[int, ...] = ()
    shift: float | None = None
    sizes: int = 1
    first_steps: int = 1
    step_caches: tuple[str, ...] | None = None
    own_mag_ratios: Mapping[Mode, tuple[float, ...]] = field(default_factory=dict[Mode, tuple[float, ...]])
    purpose: str = ""
    vocabulary: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    examples: tuple[str, ...] = ()
    folder: Path | None = None

    def check(self, request: GenerationRequest) -> None:
        model_name = Path(self.name).name  # a page shows no paths
        for setting in self.unsupported:
            if getattr(request, setting) != SETTINGS[setting].default:
                raise InputError(
                    setting=setting, problem="is given", expected=f"none for model {model_name}",
                    remedy="Leave it out, or choose another `model`.",
                )  # fmt: skip
        caches = self.step_caches
        if request.step_cache != OFF and caches is not None and request.step_cache not in caches:
            raise InputError(
                setting="step_cache", value=request.step_cache,
                expected=f"{'one of ' if caches else ''}{', '.join((OFF, *caches))} for model {model_name}",
                remedy="Choose that.",
            )  # fmt: skip
        if self.times and request.steps != len(self.times):
            raise InputError(
                setting="steps", value=request.steps,
                expected=f"{len(self.times)}, the steps that model {model_name} was made for",
                remedy="Set it to that, or choose another `model`.",
            )  # fmt: skip
        if (self.times or self.sizes > 1) and request.sampler != SETTINGS["sampler"].default:
            raise InputError(
                setting="sampler", value=request.sampler,
                expected=f"{SETTINGS['sampler'].default} for model {model_name}, which has its own sampler",
                remedy="Leave it out, or choose another `model`.",
            )  # fmt: skip
        if self.family.needs_picture and request.is_from_words:
            raise PictureError(f"Model {model_name} makes videos of pictures.", "Choose a picture.")
        if request.mode not in self.modes:
            raise InputError(
                setting="mode", value=request.mode,
                expected=f"{' or '.join(self.modes)}, which model {model_name} was made for",
                remedy="Choose that `mode`, or another `model`.",
            )  # fmt: skip

    @property
    def unsupported(self) -> tuple[str, ...]:
        return (*self.family.unsupported, *(() if self.small_decoder else ("decoder",)))

    def with_components(self, components: Mapping[str, AddedComponent]) -> Self:
        sources = {
            name: ComponentSource(location=component.path, config=component.config)
            for name, component in components.items()
        }
        return replace(self, components=self.components | sources, folder=None)

    def shape_of(self, request: GenerationRequest, picture: tuple[int, int] | None) -> tuple[int, int]:
        side = request.resolution or self.side
        shape = request.shape if picture is None else request.picture_shape
        sides = picture if picture and shape == OWN else sides_of(shape)
        return self.family.nearest_bucket(*sides, side, self.multiple)

    def remark(self, height: int, width: int, *, has_picture: bool, sections: int) -> str:
        """Say what a user should know of a video before its start; "" for nothing."""
        return self.family.remark(height, width, has_picture=has_picture, sections=sections, times=self.times)

    def steps_in(self, section: int, steps: int) -> int:
        return max(self.sizes, steps * (self.first_steps if section == 1 else 1))

    @property
    def small_decoder(self) -> ComponentSource | None:
        """The repository with the decoder for previews; None if the model has a VAE of its own."""
        decoder = self.family.small_decoder
        if self.components["vae"].revision is None:
            return None
        return ComponentSource(location=decoder.repository, revision=decoder.commit)

    @property
    def small_decoder_file(self) -> Path | None:
        source = self.small_decoder
        return source and source.folder / self.family.small_decoder.path

    @property
    def licence(self) -> str:
        return "" if self.folder else self.family.licence

    @property
    def default_settings(self) -> dict[str, Any]:
        """The settings that suit it best, which hold where nobody has set them."""
        settings = {"mode": self.modes[0], "steps": self.steps, "guidance": self.guidance, "cfg": self.cfg}
        others = {"negative": self.negative, "weight_dtype": self.weight_dtype}
        return settings | {name: value for name, value in others.items() if value != SETTINGS[name].default}

    def mag_ratios(self, mode: Mode) -> tuple[float, ...]:
        return {**self.family.mag_ratios, **self.own_mag_ratios}.get(mode, ())

    @property
    def vocabulary_words(self) -> list[str]:
        entries = (entry for words in self.vocabulary.values() for entry in words)
        return sorted({word.lower() for entry in entries for word in entry.split()})

    def unknown_words(self, prompt: str) -> list[str]:
        words = self.vocabulary_words
        if not words:
            return []
        cleaned = "".join(c if c.isalnum() else " " for c in prompt.lower())
        return [word for word in dict.fromkeys(cleaned.split()) if word not in words]


_PUBLISHED = {model.name: (family, model) for family in FAMILIES.values() for model in family.published}


_PLAIN_FACTS: dict[str, type] = {
    "title": str, "side": int, "multiple": int, "steps": int, "guidance": float, "cfg": float,
    "shift": float, "sizes": int, "first_steps": int,
}  # fmt: skip
# What only a family's `default_settings` say
_FAMILY_FACTS = ("step_caches", "negative", "weight_dtype", "times")
_FACT_TYPES: dict[str, type] = {
    **_PLAIN_FACTS, "family": str, "modes": list, "magnitudes": dict, "vocabulary": dict, "examples": list,
}  # fmt: skip


def _read_facts(file: Path) -> dict[str, Any]:
    def refusal(value: object, expected: str) -> InputError:
        return InputError(f"{file}: found {value}; expected {expected}.", "Correct the file.")

    if not file.is_file():
        return {}
    try:
        facts = read_json(file)
    except (OSError, ValueError) as error:
        raise refusal(error, "readable JSON") from error
    if not isinstance(facts, dict):
        raise refusal(short_repr(facts), "a JSON object")
    facts = cast(dict[str, Any], facts)
    for name, fact_type in _FACT_TYPES.items():
        if not isinstance(facts.get(name, fact_type()), fact_type):
            raise refusal(f"{name} {short_repr(facts[name])}", f"a value of type {fact_type.__name__}")
    if "modes" in facts and (not facts["modes"] or not set(facts["modes"]) <= set(MODES)):
        raise refusal(f"modes {short_repr(facts['modes'])}", f"some of {', '.join(MODES)}")
    if facts.get("family", FRAMEPACK.name) not in FAMILIES:
        raise refusal(f"family {short_repr(facts['family'])}", f"one of {', '.join(FAMILIES)}")
    return facts


def _family_in(folder: Path) -> Family:
    family_name = _read_facts(folder / FACTS_FILE).get("family")
    if family_name is not None:
        return FAMILIES[family_name]
    try:
        config = read_json(folder / "transformer" / "config.json")
    except (OSError, ValueError):
        return FRAMEPACK  # the loader reports the fault of the file
    return family_of_config(cast(dict[str, Any], config) if isinstance(config, dict) else {})


def _from_folder(name: str, folder: Path) -> ModelInfo:
    facts_in_folder = _read_facts(folder / FACTS_FILE)
    family = _family_in(folder)
    facts: dict[str, Any] = {"title": folder.name, **family.default_settings(folder), **facts_in_folder}
    return ModelInfo(
        name=name,
        components={
            component: ComponentSource(location=str(folder / component)) for component in family.components
        },
        family=family,
        modes=tuple(facts.get("modes", MODES)),
        own_mag_ratios={mode: tuple(values) for mode, values in facts.get("magnitudes", {}).items()},
        vocabulary={group: tuple(words) for group, words in facts.get("vocabulary", {}).items()},
        examples=tuple(facts.get("examples", ())),
        folder=folder,
        **{fact: facts[fact] for fact in (*_PLAIN_FACTS, *_FAMILY_FACTS) if fact in facts},
    )


def plan_of(request: GenerationRequest) -> SectionPlan:
    if request.finishing:
        return request.finishing.plan
    return model_family(request.model).sections(request)


def model_family(model: str) -> Family:
    return info_of(model).family


def info_of(model: str) -> ModelInfo:
    try:
        return find_model(model, allow_folder=True)
    except InputError:
        return find_model(DEFAULT_MODEL)


def built_in_names() -> tuple[str, ...]:
    return (DEFAULT_MODEL, *_PUBLISHED)


def model_names() -> tuple[str, ...]:
    built_in = built_in_names()
    added = ADDED_MODELS.bases()
    return (
        *built_in,
        *(name for name, base in added.items() if base in {*built_in, *added} or Path(base).is_dir()),
    )


def _from_added(added: AddedModel) -> ModelInfo:
    try:
        base = find_model(added.base, allow_folder=True)
    except InputError as error:
        raise InputError(
            f"Model {added.name} is based on {added.base}, which cannot be found any more.",
            f"Remove it with models remove {added.name}, and add it again.",
            setting="model",
        ) from error
    return replace(base.with_components(added.parts), name=added.name, title=added.title)


def find_model(name: str, *, allow_folder: bool = False) -> ModelInfo:
    if name == DEFAULT_MODEL:
        return replace(_from_folder(name, _DEMO_FOLDER), purpose=_DEMO_PURPOSE)
    if name in _PUBLISHED:
        family, model = _PUBLISHED[name]
        sources = {
            component: ComponentSource(location=repo, subfolder=folder, revision=revision)
            for component, (repo, folder, revision) in model.sources.items()
        }
        return ModelInfo(name=name, title=model.title, components=sources, family=family, **model.settings)
    if (added := ADDED_MODELS.find(name)) is not None:
        return _from_added(added)
    choices = ", ".join(model_names())
    if not allow_folder:
        raise InputError(
            setting="model", value=name, expected=f"one of {choices}", remedy="Choose one of them."
        )
    folder = Path(os.path.expanduser(name))
    if not (name and os.path.isdir(folder)):
        raise InputError(
            setting="model", value=name, expected=f"one of {choices}, or a folder with the model's parts",
            remedy="Check the spelling.",
        )  # fmt: skip
    components = _family_in(folder).components
    missing = [component for component in components if not (folder / component).is_dir()]
    if missing:
        raise InputError(
            f"model folder {name} lacks {', '.join(missing)}; expected the folders {', '.join(components)}.",
            "Set `model` to a complete folder.",
            setting="model",
        )
    return _from_folder(name, folder.resolve())

"""The kinds of facts that a family gives about its networks and its published models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SCALE_BYTES = 4
_GITHUB = "https://raw.githubusercontent.com"


def is_eight_bit(storage: str) -> bool:
    """Return whether a type of weights (`request.WEIGHT_TYPES`) takes a byte for each value."""
    return storage == "int8" or storage.startswith("fp8")


@dataclass(frozen=True, slots=True)
class Values:
    """The values of some tensors, by how they can be stored on the device.

    Attributes:
        castable: The number of those that are cast to 8 bit if the job asks for it.
        fixed_bytes: The size of those that always stay as they are, as the blocks of GGUF.
        rows: The number of rows that get a scale each if they are cast to int8.
    """

    plain: int = 0
    castable: int = 0
    eight_bit: int = 0
    fixed_bytes: int = 0
    rows: int = 0

    def __add__(self, other: Values) -> Values:
        return Values(
            self.plain + other.plain, self.castable + other.castable, self.eight_bit + other.eight_bit,
            self.fixed_bytes + other.fixed_bytes, self.rows + other.rows,
        )  # fmt: skip

    def num_bytes(self, width: int, storage: str) -> int:
        """Return the size on the device.

        Args:
            width: The bytes of a value in the type that computes.
            storage: The type of the weights that the job asks for (`request.WEIGHT_TYPES`).
        """
        castable = 1 if is_eight_bit(storage) else width
        eight_bit = 1 if storage == "default" else castable
        scales = self.rows * _SCALE_BYTES if storage == "int8" else 0
        values = self.plain * width + self.castable * castable + self.eight_bit * eight_bit
        return values + self.fixed_bytes + scales


@dataclass(frozen=True, slots=True)
class FamilyNetwork:
    """A network of a family, as its published models have it.

    Attributes:
        kind: The name of its class in diffusers or transformers.
        model: The model that its weights are recognised as.
        sizes: The numbers of its configuration that the plans need.
        config: The configuration, for weights that come as a single file.
        total, blocks: The values in all, and in each block that can be streamed.
        lists: The paths of the lists of these blocks, in the order in which they run.
        dtype: The type of the published weights.
        largest: The most values of a layer that can be cast to 8 bit.
        other_kinds: The names that other programs write for its class.
        in_fp32: The parts of names whose tensors are always in fp32: diffusers' list for the class, and the
            authors' names for the same.
        whole: The same for transformers' list, whose tensors are in fp32 if the others are in fp16, and never
            in 8 bit.
    """

    kind: str
    model: str
    sizes: tuple[str, ...]
    config: Mapping[str, Any] = field(hash=False)
    total: Values
    blocks: tuple[Values, ...] = ()
    lists: tuple[str, ...] = ()
    dtype: str = "float16"
    largest: int = 0
    other_kinds: tuple[str, ...] = ()
    in_fp32: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a transformer's layers in files with weights or LoRAs, with `*` for the number of a block.

    Attributes:
        own: The layers as diffusers names them, by the beginning of their names.
        others: Other names, by the beginnings in the file and in diffusers, each with the layers that it
            stands for. An exclamation mark says that the two halves of the outputs, shift and scale, are
            exchanged.
        respelled: Endings of these other names that some programs spell in another way. The first one that
            a name has is replaced.
        precise: A pattern for layers that keep their precision if the others are cast to fp8: diffusers' list
            for the class, and the same layers by the other names.
        made_for: A pattern for what the metadata of a LoRA call the model.
        lora_of: The models that LoRAs for it are made for, in words.
    """

    own: Mapping[str, str]
    others: Mapping[tuple[str, str], Mapping[str, str]]
    respelled: tuple[tuple[str, str], ...] = ()
    precise: str = ""
    made_for: str = ""
    lora_of: str = ""


@dataclass(frozen=True, slots=True)
class SmallDecoder:
    """The published decoder for the previews of a family's latents; see `output.small_decoder`.

    Attributes:
        path: Its file in the repository at the pinned commit.
        checksum: Its checksum by git, which the commit contains.
    """

    path: str
    checksum: str
    size: int = 22_642_902
    repository: str = "madebyollin/taehv"
    commit: str = "1f14a568f24bf8811e0a0ac601613e04fc1581e8"

    @property
    def address(self) -> str:
        return f"{_GITHUB}/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published model. Revisions are pinned, so that a change on the hub can change no result.

    Attributes:
        variant: What distinguishes it from the family's other models, and `sign`, a pattern for its files.
        sources: The repository, the folder within it and the revision of each part.
        settings: What suits it, by the names of `registry.ModelInfo`.
    """

    name: str
    title: str
    variant: str
    sign: str
    sources: Mapping[str, tuple[str, str, str]]
    settings: Mapping[str, Any]

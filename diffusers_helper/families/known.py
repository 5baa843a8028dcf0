"""The families of models by their names. A further one needs an entry here, and one in `pipeline.WORK`."""

from __future__ import annotations

from diffusers_helper.families.family import Family, FamilyNetwork
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.helios import HELIOS

FAMILIES: dict[str, Family] = {family.name: family for family in (FRAMEPACK, HELIOS)}


def family_of_class(kind: str) -> Family:
    """Return the family whose transformer has a class, or FramePack's for any other class."""
    return next((one for one in FAMILIES.values() if one.networks["transformer"].kind == kind), FRAMEPACK)


def networks_of(part: str) -> list[FamilyNetwork]:
    """Return the networks that a part can be, in the order of the families."""
    return [one.networks[part] for one in FAMILIES.values() if part in one.networks]


def network_named(part: str, kind: str) -> FamilyNetwork | None:
    """Return the network of a part that has this class; FramePack's for no class, None for an unknown one."""
    networks = networks_of(part)
    return next((one for one in networks if kind in ("", one.kind, *one.other_kinds)), None)


def all_parts() -> tuple[str, ...]:
    """Return the names of the parts that models of any family have."""
    return tuple(dict.fromkeys(part for one in FAMILIES.values() for part in one.parts))


def models_by_part() -> dict[str, tuple[str, ...]]:
    """Return the models that the weights of each part can be."""
    found = {part: tuple(dict.fromkeys(one.model for one in networks_of(part))) for part in all_parts()}
    return {part: models for part, models in found.items() if models}

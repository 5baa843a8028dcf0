"""The families of models by their names. A new family needs an entry here, and one in `pipeline.WORK`."""

from collections.abc import Mapping
from typing import Any

from diffusers_helper.families.family import Family, FamilyNetwork
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.helios import HELIOS
from diffusers_helper.families.wan import WAN, WAN_A14B

FAMILIES: dict[str, Family] = {family.name: family for family in (FRAMEPACK, HELIOS, WAN, WAN_A14B)}


def family_of_config(config: Mapping[str, Any]) -> Family:
    """Find the family by its transformer's class, and by the channels if several have it; or FramePack."""
    families = [
        family
        for family in FAMILIES.values()
        if family.networks["transformer"].class_name == config.get("_class_name")
    ]
    channels = config.get("in_channels")
    matching = (
        family for family in families if family.networks["transformer"].config["in_channels"] == channels
    )
    return next(matching, next(iter(families), FRAMEPACK))


def networks_of(component: str) -> list[FamilyNetwork]:
    return [family.networks[component] for family in FAMILIES.values() if component in family.networks]


def network_named(component: str, class_name: str) -> FamilyNetwork | None:
    """Find the network of a component by its class; FramePack's for "", None for an unknown class."""
    for network in networks_of(component):
        if class_name in ("", network.class_name, *network.other_class_names):
            return network
    return None


def all_components() -> tuple[str, ...]:
    return tuple(dict.fromkeys(component for family in FAMILIES.values() for component in family.components))


def models_by_component() -> dict[str, tuple[str, ...]]:
    models: dict[str, tuple[str, ...]] = {}
    for component in all_components():
        if networks := networks_of(component):
            models[component] = tuple(dict.fromkeys(network.model for network in networks))
    return models

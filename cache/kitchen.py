"""The optional package comfy-kitchen: compiled kernels for GPUs, and plain ones that a CPU can run."""

import logging
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from diffusers_helper.machine.packages import KITCHEN, kitchen_problem, version_of

_log = logging.getLogger(__name__)


@cache
def kitchen() -> Any:
    """Import the package, which may load a library that ends the process; None if it cannot be used."""
    problem = kitchen_problem()
    if not problem:
        try:
            return import_module("comfy_kitchen")
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            problem = f"it cannot be imported ({' '.join(str(error).split())[:200]})"
    if version_of(KITCHEN):
        _log.warning("The kernels of comfy-kitchen are not used: %s.", problem)
    return None


def is_refused() -> bool:
    """Tell whether the package cannot be used, as far as that is known without importing it."""
    return bool(kitchen_problem()) or (kitchen.cache_info().currsize > 0 and kitchen() is None)


def backend_of(function: str, arguments: Mapping[str, Any]) -> str:
    """Name the back end that computes a call, such as `hip`, `cuda` or `eager`; "" without the package."""
    package = kitchen()
    return "" if package is None else package.registry.get_capable_backend(function, arguments)

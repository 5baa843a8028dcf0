"""A hook that replaces an engine's loader and pipeline by a stand-in, installed by its PYTHONPATH."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

_STAND_IN = Path(__file__).with_name("stand_in.py")

_REPLACED = tuple(
    f"diffusers_helper.{name}"
    for name in ("loading.loaders", "pipeline", "miopen_fallback", "job.card", "job.finish", "memory.device")
)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in _REPLACED:
            return spec_from_file_location(name, _STAND_IN)
        return None


sys.meta_path.insert(0, _Finder)  # pyright: ignore[reportArgumentType]

"""The record `vae.json` of the settings with which the VAE has worked on a job's picture and sections."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.provenance.recipe import VaeUse
from diffusers_helper.strangers.limited_json import plain_json


def read_uses(file: Path) -> tuple[VaeUse, ...]:
    """Return the uses in a job's record, in order of sections; none if there is no readable record."""
    try:
        return tuple(VaeUse(**item) for item in plain_json(read_file(file)))
    except (OSError, ValueError, TypeError):
        return ()


def note_use(file: Path, use: VaeUse) -> None:
    """Record a use of the VAE, in place of all that was recorded for its section and later ones.

    Args:
        file: The record.
        use: The settings with which the VAE has worked.
    """
    noted = read_uses(file)
    before = tuple(old for old in noted if old.section < use.section)
    is_new = not before or replace(before[-1], section=use.section) != use
    uses = (*before, use) if is_new else before
    if uses != noted:
        write_uses(file, uses)


def write_uses(file: Path, uses: tuple[VaeUse, ...]) -> None:
    """Write a job's record of uses."""
    data: list[dict[str, Any]] = [asdict(use) for use in uses]
    write_atomic(file, json.dumps(data).encode() + b"\n")

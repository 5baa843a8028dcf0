"""A script that writes the table of settings in docs/api.md from the fields of `GenerationRequest`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diffusers_helper.models.registry import model_names
from diffusers_helper.request import SETTINGS
from diffusers_helper.setting import SettingInfo

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "api.md"
_HEAD = "| name | default | meaning |\n| --- | --- | --- |\n"
# What the endpoint takes otherwise than the request.
_DEFAULTS = {"model": "what the page was started with"}
_REMARKS = {
    "image": " Pass it as `handle_file(path)`.",
    "model": f" One of {', '.join(model_names())}, and never a path.",
}


def documented(text: str) -> str:
    """Return the document's text with the table that the settings have now."""
    before, _, rest = text.partition(_HEAD)
    after = rest[rest.index("\n\n") :]
    return f"{before}{_HEAD}{chr(10).join(map(_row, SETTINGS.values()))}{after}"


def _row(setting: SettingInfo) -> str:
    default = setting.if_empty or (setting.default_text if setting.is_number else f'`"{setting.default}"`')
    first = re.split(r"(?<=[^.]\.) (?=[A-Z0-9])", setting.help)[0]  # `--help` has the other sentences
    takes = f" {setting.possible_values_clause}." if setting.possible_values_clause else ""
    if setting.choices:
        takes = f" One of {', '.join(f'`{value}`' for value in setting.choices)}."
    meaning = f"{first}{takes}{_REMARKS.get(setting.name, '')}"
    return f"| `{setting.name}` | {_DEFAULTS.get(setting.name, default)} | {meaning} |".replace("|  |", "| |")


if __name__ == "__main__":
    DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")

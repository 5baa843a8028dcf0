"""A script that writes the help pages of the nodes, which ComfyUI's page shows, from their classes."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FOLDER = ROOT / "rocm_nodes" / "pack" / "web" / "docs"
# What the nodes ask of ComfyUI to describe their inputs. What it has depends on the machine.
_HOST: dict[str, Any] = {
    "folder_paths": SimpleNamespace(get_filename_list=lambda kind: [], get_folder_paths=lambda kind: []),
    "comfy.samplers": SimpleNamespace(KSampler=SimpleNamespace(SAMPLERS=[], SCHEDULERS=[])),
}


def pages() -> dict[str, str]:
    """Return the help page of each node by its id."""
    from diffusers_helper.models.registry import built_in_names
    from rocm_nodes import NODE_CLASS_MAPPINGS
    from rocm_nodes.registry import NODES

    # The models that a user has added are not those of other users.
    with patch.dict(sys.modules, _HOST), patch("rocm_nodes.framepack.node.model_names", built_in_names):
        return {name: _page(NODES[name][0], kind) for name, kind in NODE_CLASS_MAPPINGS.items()}


def _page(title: str, kind: Any) -> str:
    inputs = [
        _input(label, facts) for group in kind.INPUT_TYPES().values() for label, (_, facts) in group.items()
    ]
    labels = getattr(kind, "RETURN_NAMES", kind.RETURN_TYPES)
    outputs = (f"- `{label}`: {words}\n" for label, words in zip(labels, kind.OUTPUT_TOOLTIPS, strict=False))
    parts = [f"# {title}\n", f"{kind.DESCRIPTION}\n"]
    parts += [f"## Inputs\n\n{''.join(inputs)}", f"## Outputs\n\n{''.join(outputs)}"]
    return "\n".join(parts)


def _input(name: str, facts: dict[str, Any]) -> str:
    """Return the line of an input; "" for one without effect, which only old workflows have.

    The line has the first sentence of the description, which the page shows as a whole beside the input.
    """
    from rocm_nodes.page import NO_EFFECT

    words = re.split(r"(?<=[^.]\.) (?=[A-Z0-9])", facts["tooltip"])[0]
    default = facts.get("default", "")
    if words.startswith(NO_EFFECT):
        return ""
    value = str(default).lower() if isinstance(default, bool) else str(default)
    return f"- `{name}`{f' ({value})' if value else ''}: {words}\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for node, text in pages().items():
        (FOLDER / f"{node}.md").write_text(text, encoding="utf-8")

"""The built pack: a copy of the nodes for ComfyUI whose modules have no name at the top level.

ComfyUI loads the nodes of all authors into one process, where the names `cache`, `app` or `training` may be
others'. The imports of the copy are therefore rewritten to relative ones, as pip does with what it vendors.
Other names of modules in the source are relative already.
"""

import hashlib
import re
import secrets
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "longtake_rocm"
PACKED = ("cache", "diffusers_helper", "rocm_nodes")
INIT_TEXT = b"""# Built by Longtake's install-comfyui-nodes; changes here are lost when it runs again.
from ._vendor.rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

WEB_DIRECTORY = "./web"  # the help pages are in its folder docs
__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
"""
_FOLDER = "_vendor"
# What lies beside the modules, in these folders: what the Registry and ComfyUI's page read, and a model.
_DEMO = "assets/demo_model"
_DATA_FOLDERS = {
    "rocm_nodes/pack": "", "example_workflows": "example_workflows/", _DEMO: f"{_FOLDER}/{_DEMO}/",
}  # fmt: skip
_STAMP = ".stamp"
IMPORT = re.compile(rb"^([ \t]*from )((?:%s)\b[\w.]* import\b)" % "|".join(PACKED).encode(), re.MULTILINE)


def write_pack(folder: Path, root: Path = ROOT) -> None:
    """Write the pack as a folder, in the place of an older one, as a whole or not at all.

    Until it is complete, its name has the ending of folders that ComfyUI does not load.
    """
    names = (f".{folder.name}.{secrets.token_hex(4)}.disabled" for _ in range(2))
    new_folder, old_folder = map(folder.with_name, names)
    try:
        for name, data in pack_files(root).items():
            (new_folder / name).parent.mkdir(parents=True, exist_ok=True)
            (new_folder / name).write_bytes(data)
        if folder.exists():
            folder.rename(old_folder)
        new_folder.rename(folder)
    finally:
        if old_folder.exists() and not folder.exists():
            old_folder.rename(folder)
        for leftover in (new_folder, old_folder):
            shutil.rmtree(leftover, ignore_errors=True)


def refresh_pack(folder: Path) -> None:
    """Write the pack unless it was built from these files, as their names, sizes and times say."""
    entries = [
        (str(file), file.stat().st_size, file.stat().st_mtime_ns)
        for top in (*PACKED, *_DATA_FOLDERS, "app/commands")
        for file in sorted((ROOT / top).rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    ]
    stamp = hashlib.sha256(repr(entries).encode()).hexdigest()
    file = folder / _STAMP
    if not file.is_file() or file.read_text(encoding="ascii") != stamp:
        write_pack(folder)
        file.write_text(stamp, encoding="ascii")


def pack_files(root: Path = ROOT) -> dict[str, bytes]:
    files = {"__init__.py": INIT_TEXT, f"{_FOLDER}/__init__.py": b""}
    if (root / "LICENSE").is_file():  # a wheel keeps it elsewhere
        files["LICENSE"] = (root / "LICENSE").read_bytes()
    for source, target in _DATA_FOLDERS.items():
        sources = (file for file in (root / source).rglob("*") if file.is_file())
        files |= {target + file.relative_to(root / source).as_posix(): file.read_bytes() for file in sources}
    for file in (file for top in PACKED for file in (root / top).rglob("*.py")):
        files[f"{_FOLDER}/{file.relative_to(root).as_posix()}"] = rewritten(file, root)
    return dict(sorted(files.items()))


def rewritten(file: Path, root: Path) -> bytes:
    """Put the dots that lead to the root of the pack before the name of each module of ours in an import."""
    depth = len(file.relative_to(root).parts)
    return IMPORT.sub(rb"\1" + b"." * depth + rb"\2", file.read_bytes())

"""Tests of the pack in the real ComfyUI, beside packs of others and put there in each way.

`COMFYUI_PACKS` may name checkouts of other packs, with the separator of `PATH` between them.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from app.commands.pack import NAME, pack_files
from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.comfyui_client import Server
from tests.support.comfyui_graphs import EXAMPLES, framepack
from tests.support.comfyui_process import ABSENT, COMFYUI, install, running
from tests.support.layers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMFYUI, reason=ABSENT)]
PACKS = [Path(name) for name in os.environ.get("COMFYUI_PACKS", "").split(os.pathsep) if name]
SHARED = "ROCMMemoryOptimizer"
# A pack that puts its modules, which have the names of ours, first on the path and has one of our ids.
NEIGHBOUR = f"""
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
import cache, diffusers_helper.errors, rocm_nodes
assert cache.IS_THEIRS and rocm_nodes.IS_THEIRS and diffusers_helper.errors.IS_THEIRS
class Node:
    RETURN_TYPES, FUNCTION, CATEGORY = ("STRING",), "run", "theirs"
    @classmethod
    def INPUT_TYPES(cls):
        return {{"required": {{}}}}
    def run(self):
        return ("theirs",)
NODE_CLASS_MAPPINGS = {{"{SHARED}": Node}}
"""


def make_neighbour(folder: Path) -> None:
    packages = ("rocm_nodes/__init__.py", "diffusers_helper/__init__.py", "diffusers_helper/errors.py")
    for name in ("cache.py", *packages):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("IS_THEIRS = True\n")
    (folder / "__init__.py").write_text(NEIGHBOUR)


def make_video(server: Server) -> None:
    assert len(server.run(framepack(steps=1, seconds=1.0))["3"]["images"]) == 37


@pytest.mark.parametrize("packs", [(), PACKS], ids=["made", "real"])
@pytest.mark.parametrize("is_last", [True, False])
def test_packs_with_our_names_and_ours_leave_each_other_alone(
    tmp_path: Path, packs: list[Path], is_last: bool
) -> None:
    """ComfyUI loads the packs of the folder that is named in a file of paths after those of its own."""
    if packs is PACKS and not PACKS:
        pytest.skip("COMFYUI_PACKS names no packs")
    base, other = tmp_path / "base", tmp_path / "other"
    (other / "custom_nodes").mkdir(parents=True)
    base.mkdir()
    names = [pack.name for pack in packs] or ["neighbour"]

    def place(folder: Path) -> None:
        ours, theirs = (other, folder) if is_last else (folder, other)
        install(ours)
        for pack in packs:
            shutil.copytree(pack, theirs / "custom_nodes" / pack.name)
        if not packs:
            make_neighbour(theirs / "custom_nodes" / "neighbour")

    paths = tmp_path / "paths.yaml"
    paths.write_text(f"others:\n  base_path: {other}\n  custom_nodes: custom_nodes\n")
    with running(base, "--extra-model-paths-config", str(paths), place=place) as server:
        info = server.get("/object_info")
        # ComfyUI leaves out a node of another pack that cannot describe itself.
        owners = {
            name: info[name]["python_module"].removeprefix("custom_nodes.")
            for name in NODE_CLASS_MAPPINGS
            if name in info or is_last
        }
        assert owners["ROCMFramePackVideo"] == NAME
        shared = owners[SHARED]
        assert shared == NAME if is_last else shared in names
        log = (base / "log.txt").read_text(errors="replace")
        assert packs or "IMPORT FAILED" not in log  # some packs of others need a GPU to be imported
        assert (f"Longtake is replaced by {shared} in" in log) is not is_last
        make_video(server)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("what", ["pack", "checkout"])
def test_a_clone_among_comfyuis_nodes_has_all_nodes_and_examples(tmp_path: Path, what: str) -> None:
    source = ROOT
    if what == "pack":
        source = tmp_path / "source"
        for name, data in pack_files().items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        git(source, "init")
        git(source, "add", ".")
        git(source, "commit", "-m", "pack")

    def place(base: Path) -> None:
        git(base, "clone", "--no-local", "--depth=1", source.as_uri(), str(base / "custom_nodes" / "cloned"))

    (tmp_path / "base").mkdir()
    with running(tmp_path / "base", place=place) as server:
        info = server.get("/object_info")
        assert {info[name]["python_module"] for name in NODE_CLASS_MAPPINGS} == {"custom_nodes.cloned"}
        assert sorted(server.get("/workflow_templates")["cloned"]) == EXAMPLES
        assert server.get("/api/workflow_templates/cloned/framepack.json")["nodes"]
        page = server.text("/extensions/cloned/docs/ROCMOptimizedKSampler.md")
        assert page.startswith("# ROCm KSampler\n")
        make_video(server)

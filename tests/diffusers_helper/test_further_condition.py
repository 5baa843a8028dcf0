"""A test that a further kind of condition, here a depth picture, takes changes in at most six files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT
from tests.support.making import write_scene

_SETTING = """    depth_image: Annotated[str, SettingInfo(
        "Depth Picture", "The depth of the first frame.", "What to make", unit="file", scope="input",
        crop="depth_crop")] = ""
    depth_crop: Annotated[float, SettingInfo(
        "Crop Position of the Depth Picture", "The part that is kept, like `crop`.", "What to make", low=0,
        high=1, step=0.01, scope="input")] = 0.5
    # fmt: on

    def __post_init__"""
# What the double changes: a file, the text before and the text after. The latent of the depth picture is a
# further clean latent of each section, at the place of the start picture's.
CHANGES = (
    ("diffusers_helper/request.py", "    # fmt: on\n\n    def __post_init__", _SETTING),
    ("diffusers_helper/framepack/work.py", "    return LatentHistory(\n", "    made = LatentHistory(\n"),
    (
        "diffusers_helper/framepack/work.py",
        "section_starts=section_starts, references=references,\n    )  # fmt: skip\n",
        "section_starts=section_starts, references=references,\n    )  # fmt: skip\n"
        '    made.depth = encodings.get("start_depth_image")\n'
        "    return made\n",
    ),
    (
        "diffusers_helper/framepack/history.py",
        "        return CleanLatents(indices, start, history_1x, history_2x, history_4x)",
        "        if getattr(self, 'depth', None) is not None:\n"
        "            start = torch.cat([start, self.depth], dim=2)\n"
        "            indices = replace(indices, start=indices.start * 2)\n"
        "        return CleanLatents(indices, start, history_1x, history_2x, history_4x)",
    ),
    ("app/ui/form/form.html", "$end_strength\n", "$end_strength\n$depth_image\n"),
)


@pytest.mark.slow
def test_a_depth_picture_takes_four_files(tiny_model: Path, tmp_path: Path) -> None:
    assert len({file for file, *_ in CHANGES}) <= 6
    product = tmp_path / "product"
    for folder in ("app", "cache", "diffusers_helper"):
        shutil.copytree(ROOT / folder, product / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, before, after in CHANGES:
        text = (product / file).read_text()
        assert text.count(before) == 1, file
        (product / file).write_text(text.replace(before, after))
    scene, depth = write_scene(tmp_path / "scene.png"), write_scene(tmp_path / "depth.png", 48, 96)
    few = ["--model", tiny_model, "--prompt", "a ball", "--seconds", "1", "--steps", "1", "--image", scene]
    plain = _generate(product, *few)
    made = _generate(product, *few, "--depth-image", depth, "--depth-crop", "0")
    again = _generate(product, "--model", tiny_model, "--recipe", made)
    assert made.read_bytes() == again.read_bytes() != plain.read_bytes()
    kept = made.parent
    assert (kept / "depth_image.png").is_file()
    assert json.loads((kept / "request.json").read_text())["depth_crop"] == 0.0
    shown = "from app.ui.catalogue import Catalogue; from app.ui.form.controls import form_markup; " + (
        "print('set-depth_image' in form_markup(Catalogue()))"
    )
    assert _run(product, "-c", shown).strip() == "True"


def _generate(product: Path, *arguments: object) -> Path:
    given = ("generate", "--in-process", "--out", product / "outputs", *arguments)
    return Path(_run(product, "-m", "app", *map(str, given)).splitlines()[-1])


def _run(product: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=product, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

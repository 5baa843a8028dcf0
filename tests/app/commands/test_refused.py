"""What each command says of arguments that it cannot use, whole: one line, before anything is made."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.request import GenerationRequest
from tests.app.commands.test_origin import write_still
from tests.app.conftest import Longtake
from tests.support.jobs import ROOT, write_blank_model, write_picture

MAKE = "generate --image picture.png --prompt x --model model"
ARGUMENTS = f"""
generate
generate --image picture.png
--nonsense
generate --bogus
plan --bogus
doctor --bogus
jobs list --bogus
models
page --bogus
{MAKE} --seconds nan
{MAKE} --seconds 0
{MAKE} --steps 2.5
{MAKE} --steps many
{MAKE} --steps
{MAKE} --vram-cap-gb -1
{MAKE} --vae-tile 100
{MAKE} --model nope
{MAKE} --image ../away/no.png
{MAKE} --end-image gone.png
{MAKE} --pictures '2.4s: gone.png'
{MAKE} picture.png
{MAKE} --image '' --prompt ''
{MAKE} --out picture.png
{MAKE} --colour red
{MAKE} --preset ''
{MAKE} --save-preset ''
{MAKE} --variants 0
generate --video gone.mp4 --prompt x
generate --recipe still.png
generate --recipe none.mp4
generate --recipe text.txt
generate --recipe request.json
generate --recipe ''
generate --recipe still.png --resume x
generate --batch ''
generate --batch none.csv
generate --resume ''
generate --resume x
generate --resume x --prompt other
generate --resume x --preset mine
generate --resume x --steps 3
generate --resume x --dry-run
generate --resume x --variants 2
generate --branch ''
generate --branch x
generate --branch x --keep 1
generate --branch x --keep 1 --longer 2
generate --branch x --keep 1 --variants 2
generate --branch x --keep 1 --dry-run
generate --keep 2
generate --longer 1.2 --prompt a
jobs add
jobs list
jobs reorder x
jobs takes x --count many
plan --card gfx1100
plan --card voodoo:24
plan --card gfx1100:nan
plan --card gfx1100:-1
plan --seconds 0
plan --model nope
plan --image no.png
plan --model framepack-f1 --mode inverted
plan --model framepack-i2v --card gfx1100:24 --vram-cap-gb 3
plan --model framepack-i2v --card gfx1100:2 --recommended
plan --model framepack-i2v --card gfx1100:24 --vae-tile 1024 --vram-cap-gb 4
tune --resolution 8
tune --aspect 16/9
tune --aspect 0:1
tune --aspect 1:0
tune --aspect 1:10000
tune --model nothing
finish picture.png
finish gone.mp4 --reverse
finish picture.png --enlarge 5
export gone.mp4 a.mp4
export picture.png a.avi
export picture.png a.webm --codec hevc
export picture.png text.txt
inspect gone.safetensors
replay gone
models remove demo --yes
models verify nope
models add demo --base demo --transformer picture.png
models add framepack-f1 --base demo --transformer picture.png
models add ../mine --base demo --transformer picture.png
models add mine --base demo --transformer picture.png
models add mine --base demo --transformer gone.safetensors
models add mine --base nope --transformer picture.png
bench --report gone/a.json
install-comfyui-nodes gone
uninstall-comfyui-nodes .
join
doctor --out ~nosuchuser/x
plan --image ~nosuchuser/x
page --port 0 --out ~nosuchuser/x
--lang xx plan
"""


@pytest.mark.parametrize("is_generate", [True, False], ids=["generate", "others"])
def test_what_cannot_be_used_is_refused_in_one_line(
    is_generate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake,
    snapshot: SnapshotAssertion,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "picture.png")
    write_blank_model(tmp_path / "model")
    write_still(tmp_path / "still.png")
    (tmp_path / "text.txt").write_text("a letter")
    (tmp_path / "request.json").write_text(GenerationRequest(image="gone.png").to_json())
    before, lines = sorted(tmp_path.rglob("*")), list[str]()
    for command in ARGUMENTS.splitlines()[:-1]:
        if command.startswith("generate") == is_generate:
            output = longtake.refused(command).replace(str(tmp_path), "TMP").replace(str(ROOT), "ROOT")
            assert output.count("\n") == 1, output
            lines.append(f"{command.replace(MAKE, 'generate ...')} => {output.strip()}")
            assert sorted(tmp_path.rglob("*")) == before, command
    assert "\n".join(lines) == snapshot

"""Tests that the documents name commands and variables that exist, and that the examples can be run."""

import contextlib
import re
import shlex
import shutil
from pathlib import Path

import pytest

from app.cli import command_parser
from app.web.server import page_parser
from diffusers_helper.request import SETTINGS
from tests.support.jobs import ROOT
from tests.support.program import Program, answer

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "assets").rglob("*.md"))
)
SOURCES = ("app", "diffusers_helper", "cache", "rocm_nodes", "scripts")
# The job whose id stands in the examples
JOB = "20261121-081530-3f9a"


def blocks(text: str, *languages: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in fenced if language in languages]


def commands(text: str, program: str = r"(?:\S*/bin/)?longtake") -> list[list[str]]:
    """Return the arguments of each command of Longtake in a document's text, without what is only a name."""
    lines = [line for block in blocks(text, "bash", "") for line in block.replace("\\\n", "").splitlines()]
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    matches = (re.match(rf"(?:LONGTAKE_\w+=\S+ )?{program} (.*)", line) for line in lines)
    return [shlex.split(match[1].replace("…", ""), comments=True) for match in matches if match]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_one_of_the_program(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for arguments in commands(text):
        if arguments[0] == "page":
            page_parser("longtake page").parse_args(arguments[1:])
        elif not arguments[-1].isupper():  # the place of a verb or a name
            with contextlib.suppress(SystemExit):  # also the end of --help
                command_parser().parse_args(arguments)
            problem = capsys.readouterr().err
            # A sentence may leave out what a command is applied to.
            assert not problem or re.search("is missing|are required", problem), arguments
    for arguments in commands(text, r"\./webui.sh"):
        page_parser("webui.sh").parse_args([argument for argument in arguments if argument != "--setup-only"])


def test_the_commands_are_found() -> None:
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    assert ["generate", "--recipe", "video.mp4", "--seed", "7", "--seconds", "10"] in commands(usage)
    assert ["--server", "0.0.0.0"] in commands(usage, r"\./webui.sh")
    assert len([arguments for name in DOCUMENTS for arguments in commands((ROOT / name).read_text())]) > 50


def test_every_variable_is_read_somewhere() -> None:
    files = [
        file for folder in SOURCES for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".sh")
    ]
    sources = "\n".join(file.read_text(encoding="utf-8") for file in [*files, ROOT / "compose.yaml"])
    for document in DOCUMENTS:
        for name in re.findall(
            r"LONGTAKE_(?!TEST_)[A-Z0-9_]+", (ROOT / document).read_text(encoding="utf-8")
        ):
            assert re.search(rf"\b{name}\b", sources), f"{document}: {name}"


@pytest.mark.slow
def test_the_examples_run(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path, tiny_model)
    monkeypatch.chdir(tmp_path)
    for name in ("photo.jpg", "boat.png"):
        shutil.copy(program.picture, tmp_path / name)
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    examples = [*blocks(usage, "bash"), *blocks((ROOT / "README.md").read_text(encoding="utf-8"), "bash")]
    first, *others = (arguments for example in examples for arguments in commands(f"```bash\n{example}```"))
    code, out, err = program.run(*first, "--model", str(tiny_model), "--steps", "1")
    assert code == 0, err
    video = Path(out.splitlines()[-1])
    assert video.parent.parent == tmp_path / "outputs"
    shutil.copy(video, tmp_path / "video.mp4")
    json_lines, table = (block for block in blocks(usage, "") if "boat.png" in block)
    (tmp_path / "videos.jsonl").write_text(json_lines, encoding="utf-8")
    (tmp_path / "videos.csv").write_text(table, encoding="utf-8")
    others += [["generate", "--batch", name] for name in ("videos.jsonl", "videos.csv")]
    assert len(others) >= 7
    for example in others:
        arguments = [video.parent.name if argument == JOB else argument for argument in example]
        if "--branch" in arguments:  # which keeps its model, and cannot be tried without being made
            code, out, err = program.run(*arguments)
        else:
            code, out, err = answer(capsys, *arguments, "--model", str(tiny_model), "--dry-run")
        assert code == 0, (arguments, err)
        assert len(out.splitlines()) == (2 if "--batch" in arguments else 1), out


@pytest.mark.parametrize(
    ("setting", "document"),
    [("step_cache", "usage.md"), ("attention", "amd-memory.md"), ("weight_dtype", "weights.md")],
)
def test_every_choice_of_a_setting_is_explained(setting: str, document: str) -> None:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    cells = "".join(re.findall(r"^\| (`.+?) \|", text, re.MULTILINE))
    choices = set(SETTINGS[setting].choices or ()) - {"off"}
    assert choices
    assert {choice for choice in choices if f"`{choice}`" not in cells} == set()


def test_every_command_and_verb_is_in_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    for arguments, pattern in (((), r"longtake {}\b"), (("jobs",), r"^\|.*`{}\b")):
        _, _, err = answer(capsys, *arguments)
        names = re.findall(r"[\w-]+", err.partition("expected one of ")[2].partition(". See")[0])
        assert len(names) > 10
        for name in names:
            assert re.search(pattern.format(name), texts, re.MULTILINE), name

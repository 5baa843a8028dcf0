"""Tests that the files about packages agree, and that no file names a host or a machine it must not name."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import diffusers_helper
from tests.support.fresh_checkout import REPOSITORY, FreshCheckout


def pyproject() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def extra(name: str) -> list[str]:
    requirements: list[str] = pyproject()["project"]["optional-dependencies"][name]
    return requirements


def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def requirements() -> list[str]:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def repository_files() -> list[Path]:
    """Return every text file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    texts = [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]
    assert len(texts) > 100
    return texts


def test_constraints_are_names_and_versions_only() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line), line


def test_constraints_hold_every_requirement_to_a_version_it_allows() -> None:
    held = constraints()
    assert requirements()
    assert extra("test")
    for line in requirements() + extra("test"):
        requirement = Requirement(line)
        version = held[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), line


def test_the_tests_run_with_the_versions_of_the_constraints() -> None:
    import torch

    assert Version(torch.__version__).public == constraints()["torch"]


def test_pyproject_reads_the_one_list_of_requirements() -> None:
    tables = pyproject()
    assert {"version", "dependencies"} <= set(tables["project"]["dynamic"])
    assert tables["tool"]["setuptools"]["dynamic"]["dependencies"] == {"file": ["requirements.txt"]}


@pytest.mark.parametrize("name", ["rocm", "cuda", "cpu"])
def test_the_extras_ask_for_the_torch_that_the_set_up_installs(tmp_path: Path, name: str) -> None:
    shell = FreshCheckout(tmp_path).shell('echo "${torch_folder[rocm]}"')
    suffix = f"+{shell.stdout.strip()}" if name == "rocm" else ""
    assert extra(name) == [f"torch=={constraints()['torch']}{suffix}"]


def test_the_set_up_reads_the_packages_of_the_tests_from_pyproject(tmp_path: Path) -> None:
    assert FreshCheckout(tmp_path).shell("test_requirements").stdout.splitlines() == extra("test")


def test_the_changelog_starts_with_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", text, flags=re.MULTILINE)
    assert newest[1] == diffusers_helper.__version__


def test_the_torch_index_is_named_in_one_place_and_no_other_registry_anywhere() -> None:
    torch_hosts = ["download.pytorch" + ".org", "repo.amd" + ".com"]
    registries = [
        "pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".", "repo.radeon" + ".com", "conda" + ".io",
    ]  # fmt: skip
    for host in torch_hosts:
        paths = [path for path in repository_files() if host in path.read_text(errors="replace")]
        assert [path.relative_to(REPOSITORY).as_posix() for path in paths] == ["scripts/setup.sh"]
        assert (REPOSITORY / "scripts/setup.sh").read_text().count(host) == 1
    for path in repository_files():
        text = path.read_text(errors="replace")
        assert [name for name in registries if name in text] == [], path


def test_no_file_names_a_path_of_the_machine_it_was_made_on() -> None:
    machine = re.compile(r"(?<![\w.~])/(?:root|work|home/\w+|Users/\w+|opt/wheels|opt/pypi)/")
    for path in repository_files():
        assert machine.search(path.read_text(errors="replace")) is None, path


def documents() -> dict[Path, str]:
    return {path: path.read_text() for path in repository_files() if path.suffix == ".md"}


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = (re.sub(r"[^\w\- ]", "", line).strip() for line in re.findall(r"^#+ (.+)$", prose, re.M))
    return {heading.lower().replace(" ", "-") for heading in headings}


def test_links_in_the_documents_lead_somewhere() -> None:
    texts = documents()
    for path, text in texts.items():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            if "://" in target:
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.exists(), f"{path.name}: {target}"
            assert not anchor or anchor in anchors(texts[file]), f"{path.name}: {target}#{anchor}"


def test_the_glossary_has_each_term_once_in_a_line() -> None:
    lines = (REPOSITORY / "docs/glossary.md").read_text().splitlines()
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", "\n".join(lines), re.MULTILINE)
    assert 0 < len(terms) <= 40
    assert len(set(terms)) == len(terms)

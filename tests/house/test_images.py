"""Tests of the files for images: what is copied, who runs it, and who can reach it."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.layers import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
TARGETS = ("rocm", "cuda", "cpu")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_all_that_runs_is_copied_and_nothing_private() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    package_settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    packages = {pattern.rstrip("*") for pattern in package_settings["find"]["include"]}
    assert packages | {"assets", "scripts", "demo_gradio.py", "requirements.txt", "constraints.txt"} <= kept
    assert all((ROOT / name).exists() for name in kept)
    assert not kept & {".git", ".env", ".venv", "outputs", "models", "tests"}


def test_each_target_installs_the_torch_of_its_name() -> None:
    stages = dict(re.findall(r"^FROM base AS (\w+)\nRUN (.+)$", DOCKERFILE, flags=re.MULTILINE))
    assert tuple(stages) == TARGETS
    setup = (ROOT / "scripts/setup.sh").read_text(encoding="utf-8")
    folders = re.search(r"^declare -A torch_folder=\((.+)\)$", setup, flags=re.MULTILINE)
    assert folders is not None
    for name, command in stages.items():
        assert f"[{name}]=" in folders[1]
        assert f". scripts/setup.sh; find_hardware() {{ echo {name}; }}; set_up torch requirements" in command


def test_nobody_is_root_and_only_this_machine_reaches_the_page(compose: dict[str, Any]) -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, flags=re.MULTILINE) == ["$UID"]
    assert compose["services"].keys() == set(TARGETS)
    for name, service in compose["services"].items():
        assert service["build"]["target"] == name
        assert service["profiles"] == [name]
        assert service["ports"] == ["127.0.0.1:${LONGTAKE_PORT:-7860}:7860"]
        assert service["environment"]["LONGTAKE_AUTH"].startswith("${LONGTAKE_AUTH:?")
        assert "privileged" not in service
    card = compose["services"]["rocm"]
    assert card["devices"] == ["/dev/kfd", "/dev/dri"]
    assert [group[: group.index(":")] for group in card["group_add"]] == ["${VIDEO_GROUP", "${RENDER_GROUP"]

"""Tests that only the page's scripts are served, unchanged, at an address that changes with them."""

import re
from pathlib import Path

import pytest

import app.ui
from app.jobs.service import JobService
from app.ui import scripts
from app.web import serving
from tests.support.asking import ask
from tests.support.pages import Stand, free_port

FOLDER = Path(app.ui.__file__).parent
MODULES = sorted(FOLDER.rglob("*.js"))


def address(module: Path) -> str:
    return f"/{scripts.folder()}/{module.relative_to(FOLDER).as_posix()}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_a_script_imports_only_modules_that_are_there(module: Path) -> None:
    text = module.read_text()
    found = re.findall(r"^import .*?from '(.+?)';$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == len(re.findall(r"\bimport\b(?=[ {(*])", text))
    for name in found:
        assert (module.parent / name).is_file(), name


def test_what_the_document_names_is_served(served: Stand) -> None:
    named = re.findall(r'(?:href|src)="(scripts/[^"]+)"', ask(served.url).text)
    assert {Path(one).suffix for one in named} == {".js", ".css", ".svg"}
    assert [one.partition("/")[2].partition("/")[2] for one in named if one.endswith(".js")] == ["page.js"]
    for one in named:
        assert ask(served.url, f"/{one}").status == 200, one


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_each_script_is_served_as_one(served: Stand, module: Path) -> None:
    answer = ask(served.url, address(module))
    assert answer.status == 200
    assert answer.body == module.read_bytes()
    assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert answer.headers["Cache-Control"] == "private, max-age=31536000, immutable"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert str(FOLDER).encode() not in answer.body


@pytest.mark.parametrize(
    "name",
    [
        "live/live.html", "page.html", "page.py", "", "live", "live/", "../page.js",
        "form/../form/form.js", "form/form.js/", "/form/form.js", "form/form.js%00",
    ],
)  # fmt: skip
def test_nothing_else_is_served_beside_them(served: Stand, name: str) -> None:
    version = address(MODULES[0]).split("/")[2]
    assert ask(served.url, f"/scripts/{version}/{name}").status == 404


def test_another_version_is_not_there(served: Stand) -> None:
    version = address(FOLDER / "form/form.js").split("/")[2]
    for other in ("0" * 12, version.upper() + "x", "latest"):
        assert ask(served.url, f"/scripts/{other}/form/form.js").status == 404
    assert ask(served.url, f"/scripts/{version}/form/form.js", method="POST", body=b"").status == 404


def test_the_address_changes_with_any_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = address(FOLDER / "form/form.js")
    (tmp_path / "form").mkdir()
    (tmp_path / "form/form.js").write_text("export default function start() {}\n")
    (tmp_path / "text.js").write_text("export const one = 1;\n")
    monkeypatch.setattr(scripts, "_FOLDER", tmp_path)
    seen = {before}
    try:
        for text in ("export const one = 1;\n", "export const one = 2;\n"):
            (tmp_path / "text.js").write_text(text)
            scripts._files.cache_clear()
            scripts.version.cache_clear()
            seen.add(f"/{scripts.folder()}/form/form.js")
    finally:
        scripts._files.cache_clear()
        scripts.version.cache_clear()
    assert len(seen) == 3


def test_they_are_behind_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    outputs = tmp_path / "outputs"
    page, url = serving.open_page(JobService(outputs), outputs, port=free_port(), auth=("anna", "geheim"))
    try:
        assert ask(url, address(MODULES[0])).status == 401
    finally:
        serving.close_page(page)

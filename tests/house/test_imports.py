"""Tests that importing has no effect on devices, files, connections, processes or the environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.layers import CORE, HEAVY, PRODUCT, ROOT, is_below, module_name, python_files

PROBE = ROOT / "tests" / "support" / "import_probe.py"


def modules() -> list[str]:
    files = python_files(*PRODUCT)
    files += ["demo_gradio.py"] if (ROOT / "demo_gradio.py").is_file() else []
    return [module_name(file) for file in files]


def is_light(module: str) -> bool:
    """Return whether the page's process imports it: all of `app` but the engine, and what that may import."""
    if module == "diffusers_helper":
        return True
    if module.split(".")[0] in ("app", "demo_gradio"):
        return module != "app.engine"
    return any(is_below(module, prefix) for prefix in CORE)


def probe(folder: Path, names: list[str], warm_up: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Import the modules in a fresh process whose home and working directory are new and empty."""
    work, home, report = folder / "work", folder / "home", folder / "report.json"
    for path in (work, home):
        path.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_"))}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", str(PROBE), str(report), ",".join(warm_up), ",".join(names)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_core_and_the_jobs_import_without_torch_or_gradio_and_do_nothing(tmp_path: Path) -> None:
    names = [name for name in modules() if is_light(name) and is_below(name, "diffusers_helper")]
    names += [name for name in modules() if is_below(name, "app.jobs")]
    assert {"diffusers_helper.families.packing", "diffusers_helper.request", "app.jobs"} <= set(names)
    seen = probe(tmp_path, names, warm_up=("numpy",))
    assert not seen["findings"], "\n".join(seen["findings"])
    assert not set(seen["loaded"]) & (HEAVY | {"gradio"})


@pytest.mark.slow
def test_the_page_imports_without_torch_and_does_nothing(tmp_path: Path) -> None:
    names = [name for name in modules() if name.split(".")[0] in ("app", "demo_gradio") and is_light(name)]
    seen = probe(tmp_path, names, warm_up=("gradio",))
    assert not seen["findings"], "\n".join(seen["findings"])
    assert not set(seen["loaded"]) & HEAVY


@pytest.mark.slow
def test_the_rest_imports_without_a_device_and_does_nothing(tmp_path: Path) -> None:
    names = [name for name in modules() if not is_light(name)]
    assert "diffusers_helper.sampling.unipc" in names
    # diffusers' pipeline prints on import that torchvision is missing; the product must not silence that.
    pipeline = "diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack"
    seen = probe(tmp_path, names, warm_up=("torch", "av", "transformers", pipeline))
    assert not seen["findings"], "\n".join(seen["findings"])


NOISY = """
import os, pathlib, threading, torch
os.environ["LONGTAKE"] = "1"
pathlib.Path("outputs").mkdir()
pathlib.Path("note.txt").write_text("x")
torch.nn.Conv3d.forward = lambda self, x: x
torch.set_num_threads(torch.get_num_threads() + 1)
threading.Thread(target=threading.Event().wait, name="worker", daemon=True).start()
os.write(2, b"hello from below")
raise SystemExit(3)
"""


@pytest.mark.slow
def test_the_probe_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rocm_nodes.py").write_text(NOISY, encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    findings = "\n".join(probe(tmp_path / "run", ["rocm_nodes"], warm_up=("torch",))["findings"])
    for sign in (
        "changed the environment", "did os.mkdir", "changed the files", "note.txt for writing",
        "changed torch's functions", "changed torch's defaults", "changed the threads",
        "hello from below", "cannot be imported",
    ):  # fmt: skip
        assert sign in findings, sign

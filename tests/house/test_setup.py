"""Tests of webui.sh and scripts/setup.sh on machines where only the interpreters are stand-ins."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.fresh_checkout import FreshCheckout

pytestmark = pytest.mark.slow
DISK_FULL = "echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1"


@pytest.fixture
def bare(tmp_path: Path) -> FreshCheckout:
    """Return a checkout on a machine without Python."""
    return FreshCheckout(tmp_path)


@pytest.fixture
def checkout(bare: FreshCheckout) -> FreshCheckout:
    bare.python("python3", "3.12.3")
    return bare


@pytest.fixture
def index() -> Iterator[str]:
    with torch_index(200) as index:
        yield index


@contextmanager
def torch_index(status: int) -> Iterator[str]:
    """Serve an index on this machine that answers every request with this status."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a port on which nobody listens and which nobody else can take meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def assert_one_sentence(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.endswith(".\n")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("version", "has_venv", "environment", "words"),
    [
        ("3.9.2", True, {}, ("3.11 or newer", "3.9.2")),
        ("", True, {}, ("3.11 or newer", "found none")),
        ("3.12.3", False, {}, ("venv module", "apt install python3.12-venv")),
        ("3.12.3", True, {"PYTHON": "/no/such/python"}, ("PYTHON=/no/such/python",)),
    ],
)
def test_a_python_that_does_not_serve_ends_in_one_sentence(
    bare: FreshCheckout, version: str, has_venv: bool, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    if version:
        bare.python("python3", version, venv_module=has_venv)
    assert_one_sentence(bare.webui(**environment), *words)
    assert not bare.venv.exists()


def test_the_newest_python_that_can_make_environments_is_taken(bare: FreshCheckout) -> None:
    bare.python("python3", "3.9.2")
    bare.program("python3.14", "#!/usr/bin/env bash\nexit 127\n")
    bare.python("python3.13", "3.13.1", venv_module=False)
    wanted = bare.python("python3.12", "3.12.3")
    bare.python("python3.11", "3.11.2")
    assert bare.shell("find_python").stdout.strip() == str(wanted)


@pytest.mark.parametrize(("hardware", "gigabytes"), [("cpu", 3), ("cuda", 12), ("rocm", 20)])
def test_a_full_disk_ends_in_one_sentence(checkout: FreshCheckout, hardware: str, gigabytes: int) -> None:
    checkout.free_gigabytes(gigabytes - 0.5)
    result = checkout.shell(f"find_hardware() {{ echo {hardware}; }}; set_up torch")
    assert_one_sentence(result, f"{gigabytes} GB", hardware, str(checkout.root))
    assert not checkout.venv.exists()


def test_a_disk_that_fills_up_ends_in_one_sentence_and_is_started_over(
    checkout: FreshCheckout, index: str
) -> None:
    result = checkout.webui("--setup-only", TORCH_INDEX_URL=index, PIP_DOES=DISK_FULL)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "disk became full while installing torch" in result.stderr
    (checkout.venv / "half-written").touch()
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    assert not (checkout.venv / "half-written").exists()


def test_pip_that_fails_shows_its_complaint_and_goes_on_from_there(
    checkout: FreshCheckout, index: str
) -> None:
    fails = 'case "$*" in *requirements.txt*) echo ERROR: no such version >&2; exit 1;; esac'
    result = checkout.webui("--setup-only", TORCH_INDEX_URL=index, PIP_DOES=fails)
    assert result.returncode == 1
    assert result.stderr.splitlines()[0] == "ERROR: no such version"
    assert "installing requirements.txt" in result.stderr
    assert len(checkout.installs()) == 2
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    requirements, optional = checkout.installs()
    assert requirements.startswith("--quiet -r ")
    assert optional.startswith("--quiet --no-deps spandrel einops -c ")


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ({}, "cpu"),
        ({"rocminfo": "echo '  Name:    gfx1100'"}, "rocm"),
        ({"rocminfo": "echo '  Name:    gfx1201'"}, "rocm amd"),
        ({"rocminfo": "echo '  Name:    AMD Ryzen'"}, "cpu"),
        ({"nvidia-smi": "echo 'GPU 0: NVIDIA'"}, "cuda"),
        ({"nvidia-smi": "echo 'No devices were found'; exit 6"}, "cpu"),
        ({"nvidia-smi": "echo 'GPU 0: NVIDIA'", "rocminfo": "echo '  Name: gfx1100'"}, "rocm"),
        ({"nvidia-smi": "echo 'GPU 0: NVIDIA'", "rocminfo": "echo '  Name: gfx1036'"}, "cuda"),
    ],
)
def test_hardware_is_what_the_driver_tools_say(
    bare: FreshCheckout, programs: dict[str, str], expected: str
) -> None:
    for name, command in programs.items():
        bare.program(name, f"#!/usr/bin/env bash\n{command}\n")
    result = bare.shell("machine=/no/such; choose_torch; echo $hardware; index_of ${torch_builds%% *}")
    hardware, index = result.stdout.split()
    assert hardware == expected.partition(" ")[0]
    folder = {"cpu": "/whl/cpu", "cuda": "/whl/cu130", "rocm": "/whl/rocm7.2", "rocm amd": "/whl-next"}
    assert index.endswith(folder[expected])


def test_a_card_that_needs_it_gets_amds_build_with_its_dependencies(
    checkout: FreshCheckout, index: str
) -> None:
    checkout.shell(f"find_hardware() {{ echo rocm gfx1151; }}; amd_index={index}; set_up torch requirements")
    torch, others, _ = checkout.installs()
    assert torch == f"--index-url {index} torch[device-gfx1151]==2.13.0+rocm10.0.0"
    assert others.endswith(f"--extra-index-url {index}")


def test_a_card_that_runs_under_another_name_gets_the_kernels_of_that_name(bare: FreshCheckout) -> None:
    chosen = "find_hardware() { echo rocm gfx1032; }; choose_torch; torch_of ${torch_builds%% *}"
    for version, devices in (
        ("10.3.0", "device-gfx1032,device-gfx1030"), ("10.3.2", "device-gfx1032"), ("0x1", "device-gfx1032"),
    ):  # fmt: skip
        torch = bare.shell(chosen, HSA_OVERRIDE_GFX_VERSION=version).stdout.strip()
        assert torch == f"torch[{devices}]==2.13.0+rocm10.0.0"


def test_another_card_adds_its_package_and_a_card_that_is_away_keeps_it(
    checkout: FreshCheckout, index: str
) -> None:

    def start(cards: str) -> list[str]:
        checkout.shell(
            f"find_hardware() {{ echo rocm {cards}; }}; amd_index={index}; set_up torch requirements"
        )
        return [line.rpartition(" ")[2] for line in checkout.installs() if "torch[" in line]

    assert start("gfx1103") == ["torch[device-gfx1103]==2.13.0+rocm10.0.0"]
    (checkout.venv / "kept").touch()
    assert start("gfx1201") == ["torch[device-gfx1103,device-gfx1201]==2.13.0+rocm10.0.0"]
    assert start("gfx1103") == start("gfx1201") == start("gfx1201 gfx1103") == []
    assert (checkout.venv / "kept").exists()


@pytest.mark.parametrize(
    ("moment", "words"), [("IMPORT_DOES", "libamdhip64.so.7 is missing"), ("PIP_DOES", "no such wheel")]
)
def test_a_build_that_does_not_work_is_told_and_the_other_is_taken(
    checkout: FreshCheckout, index: str, moment: str, words: str
) -> None:
    fault = {moment: f"case $(tail -n 1 $PIP_LOG) in *rocm10.0.0*) echo {words} >&2; exit 1;; esac"}
    result = checkout.shell(
        f"find_hardware() {{ echo rocm gfx1201; }}; amd_index={index} torch_indexes={index}/torch; "
        "set_up torch requirements", **fault,
    )  # fmt: skip
    assert result.returncode == 0
    assert words in result.stderr
    assert "Taking another build of torch instead." in result.stdout
    torch = checkout.installs()[1]
    assert torch == f"--force-reinstall --index-url {index}/torch/rocm7.2 torch==2.13.0"
    assert (checkout.venv / "torch-source").read_text() == f"--extra-index-url {index}/torch/rocm7.2\n"


def test_torch_comes_from_the_index_that_answers(checkout: FreshCheckout, index: str) -> None:
    result = checkout.webui("--setup-only", TORCH_INDEX_URL=index + "/", TORCH_VERSION="2.12.1")
    assert (result.returncode, result.stderr) == (0, "")
    torch, others, _ = checkout.installs()
    assert torch == f"--no-deps --index-url {index} torch==2.12.1"
    assert others.endswith(f"--extra-index-url {index}")
    held = (checkout.venv / "constraints.txt").read_text().splitlines()
    assert [line for line in held if line.startswith("torch==")] == ["torch==2.13.0+cpu"]
    assert any(line.startswith("diffusers==") for line in held)


@pytest.mark.parametrize("status", [401, 407])
def test_an_index_that_asks_for_a_password_is_left_to_pip(checkout: FreshCheckout, status: int) -> None:
    with torch_index(status) as index:
        checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    assert index in checkout.installs()[0]


@pytest.mark.parametrize("status", [None, 404, 503])
def test_without_the_torch_index_the_default_one_is_taken(
    checkout: FreshCheckout, status: int | None
) -> None:
    if status is None:
        with closed_port() as port:
            index = f"http://127.0.0.1:{port}/whl/cpu"
            result = checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    else:
        with torch_index(status) as index:
            result = checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    assert (result.returncode, result.stderr) == (0, "")
    assert len([line for line in result.stdout.splitlines() if f"{index} cannot be reached" in line]) == 1
    torch, others, _ = checkout.installs()
    assert torch == "--no-deps torch==2.13.0"
    assert "index-url" not in others


def test_an_index_that_never_answers_is_given_up(checkout: FreshCheckout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/whl/cpu"
        result = checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    assert "cannot be reached" in result.stdout


def test_a_second_start_installs_nothing(checkout: FreshCheckout) -> None:
    with torch_index(200) as index:
        assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
        assert len(checkout.installs()) == 3
    # The index is gone; the choice that was once made is not reported a second time.
    for environment in ({}, {"TORCH_INDEX_URL": index}, {"PYTHON": "python3"}):
        result = checkout.webui("--setup-only", **environment)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert checkout.installs() == []


def test_optional_packages_come_to_machines_that_have_them_and_their_lack_ends_nothing(
    checkout: FreshCheckout, index: str
) -> None:
    checkout.program("rocminfo", "#!/usr/bin/env bash\necho '  Name:    gfx1100'\n")
    fails = 'case "$*" in *-kernels.txt*|*spandrel*) echo ERROR: no wheel >&2; exit 1;; esac'
    result = checkout.webui("--setup-only", TORCH_INDEX_URL=index, PIP_DOES=fails)
    assert (result.returncode, result.stderr) == (0, "")
    assert "optional kernels cannot be had for this machine" in result.stdout
    assert "spandrel, which reads networks of your own, cannot be had" in result.stdout
    assert "requirements-kernels.txt" in checkout.installs()[-1]


def test_changed_requirements_are_added_to_what_is_there(checkout: FreshCheckout, index: str) -> None:
    checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    checkout.installs()
    (checkout.venv / "kept").touch()
    with (checkout.root / "requirements.txt").open("a") as file:
        file.write("tqdm>=4\n")
    checkout.webui("--setup-only")
    checkout.shell("set_up torch requirements test_requirements")
    changed, _, for_tests = checkout.installs()
    assert "requirements.txt" in changed
    assert "pytest>=9" in for_tests.split()
    assert (checkout.venv / "kept").exists()


@pytest.mark.parametrize("change", ["python", "index", "version"])
def test_another_python_or_torch_starts_over(checkout: FreshCheckout, index: str, change: str) -> None:
    checkout.python("other", "3.13.1")
    checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    (checkout.venv / "from before").touch()
    changes = {
        "python": {"PYTHON": "other"},
        "index": {"TORCH_INDEX_URL": index.replace("cpu", "rocm7.2")},
        "version": {"TORCH_VERSION": "2.12.1"},
    }
    assert checkout.webui("--setup-only", **changes[change]).returncode == 0
    assert not (checkout.venv / "from before").exists()


def test_a_set_up_that_was_killed_is_started_over(checkout: FreshCheckout, index: str) -> None:
    killed = checkout.webui("--setup-only", TORCH_INDEX_URL=index, PIP_DOES="kill -9 0")
    assert killed.returncode != 0
    assert (checkout.venv / ".longtake-unfinished").exists()
    (checkout.venv / "half-written").touch()
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    assert not (checkout.venv / "half-written").exists()
    assert not (checkout.venv / ".longtake-unfinished").exists()


def test_the_page_gets_the_other_arguments_and_the_callers_folder(
    checkout: FreshCheckout, index: str
) -> None:
    assert checkout.webui("--setup-only", "--share", TORCH_INDEX_URL=index).returncode == 0
    result = checkout.webui("--port", "8000", "--outputs", "my videos")
    folder, script, *arguments = result.stdout.splitlines()
    assert folder == str(checkout.elsewhere)
    assert script == str(checkout.root / "demo_gradio.py")
    assert arguments == ["--port", "8000", "--outputs", "my videos"]


def test_an_environment_of_an_earlier_version_is_kept(checkout: FreshCheckout, index: str) -> None:
    checkout.webui("--setup-only", TORCH_INDEX_URL=index)
    checkout.installs()
    # So the set-up wrote it before builds of several makers were known.
    stamp = checkout.venv / ".longtake-torch"
    assert stamp.read_text() == f"cpu 2.13.0 {index} 2.13.0\n"
    checkout.webui("--setup-only")
    assert checkout.installs() == []


def test_the_command_of_the_checkout_runs_in_any_folder(bare: FreshCheckout) -> None:
    program = bare.root / "app" / "__main__.py"
    program.parent.mkdir()
    program.write_text("import os, sys\n\ndef start():\n    print(os.getcwd(), *sys.argv, sep='|')\n")
    python, command = (bare.venv / "bin" / name for name in ("python", "longtake"))
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    bare.shell("write_command")
    done = subprocess.run(
        [command, "plan", "two words"], cwd=bare.elsewhere, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{bare.elsewhere}|longtake|plan|two words\n"


def test_the_set_up_writes_the_command_and_leaves_that_of_pip(checkout: FreshCheckout, index: str) -> None:
    command = checkout.venv / "bin" / "longtake"
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    assert os.access(command, os.X_OK)
    command.write_text("pip's")
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    assert command.read_text() == "pip's"
    command.unlink()
    assert checkout.webui("--setup-only", TORCH_INDEX_URL=index).returncode == 0
    assert command.exists()

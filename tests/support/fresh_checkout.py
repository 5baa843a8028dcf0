"""A checkout with only the set-up files, on a machine with only certain programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.jobs import TIMEOUT

REPOSITORY = Path(__file__).resolve().parents[2]
_FILES = (
    *("webui.sh", "scripts/setup.sh", "requirements.txt", "requirements-kernels.txt", "constraints.txt"),
    "pyproject.toml",
)
_TOOLS = (
    *("bash", "cat", "chmod", "cp", "df", "dirname", "du", "env", "flock", "grep", "mkdir", "readlink"),
    *("mv", "rm", "sed", "sleep", "tail", "timeout", "touch"),
)
# A stand-in for an interpreter, which copies itself as a virtual environment and records what pip is asked to
# install. PIP_DOES holds the commands that pip then runs, and IMPORT_DOES those of an import of torch, which
# needs packages beside it.
_PYTHON = """\
#!/usr/bin/env bash
case "$*" in
    *sys.version_info*) echo {version} ;;
    *ensurepip*) exit {without_venv} ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"-m pip install "*) all="$*"; echo "${{all#*install }}" >>"$PIP_LOG"; eval "${{PIP_DOES:-}}" ;;
    *'version("torch")'*) echo torch==2.13.0+cpu ;;
    *"-c import torch")
        case $(tail -n 1 "$PIP_LOG") in
            *--no-deps*torch==*) echo "No module named 'typing_extensions'" >&2; exit 1 ;;
        esac
        eval "${{IMPORT_DOES:-}}" ;;
    *demo_gradio.py*) printf '%s\\n' "$PWD" "$@" ;;
    "-I - "*) exec "{python}" "$@" ;;
esac
"""


class FreshCheckout:
    """A copy of the set-up files in a folder whose name has a space, with its own PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.programs = folder / "programs"
        self.elsewhere = folder / "else where"
        self.pip_log = folder / "pip.log"
        for name in _FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, self.root / name)
        self.programs.mkdir()
        self.elsewhere.mkdir()
        for name in _TOOLS:
            if found := shutil.which(name):
                (self.programs / name).symlink_to(found)
        self.free_gigabytes(100)

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    def python(self, name: str, version: str, *, venv_module: bool = True) -> Path:
        script = _PYTHON.format(version=version, without_venv=int(not venv_module), python=sys.executable)
        return self.program(name, script)

    def free_gigabytes(self, gigabytes: float) -> None:
        blocks = int(gigabytes * 1000 * 1000)
        self.program("df", f"#!/usr/bin/env bash\necho header\necho disk 1 1 {blocks} 1% /\n")

    def webui(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run webui.sh from another folder."""
        return self._run([str(self.root / "webui.sh"), *arguments], environment)

    def shell(self, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run commands in a shell that has sourced scripts/setup.sh."""
        source = f'set -euo pipefail; source "{self.root}/scripts/setup.sh"; '
        return self._run(["bash", "-c", source + commands], environment)

    def installs(self) -> list[str]:
        """Return what pip was asked to install since the last call of this method."""
        if not self.pip_log.exists():
            return []
        lines = self.pip_log.read_text().splitlines()
        self.pip_log.unlink()
        return lines

    def _run(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        unset = ("PYTHON", "TORCH_INDEX_URL", "TORCH_VERSION")
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        return subprocess.run(
            command,
            cwd=self.elsewhere,
            env=inherited | {"PATH": str(self.programs), "PIP_LOG": str(self.pip_log)} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            start_new_session=True,  # a test kills the whole group
            check=False,
        )

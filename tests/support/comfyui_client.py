"""A client of a running ComfyUI: it queues workflows and waits for what they give."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.support.comfyui_events import CLIENT

Graph = dict[str, Any]


def node(kind: str, /, **inputs: Any) -> Any:
    return {"class_type": kind, "inputs": inputs}


def wait_until(is_done: Callable[[], bool]) -> None:
    """Ask again and again, as there is nothing to wait for in another program."""
    deadline = time.monotonic() + 300
    while not is_done():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.05)


class Server:
    """A running ComfyUI."""

    def __init__(self, base: Path, port: int) -> None:
        self.base, self.address = base, f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, data: Any) -> Any:
        request = urllib.request.Request(
            self.address + path, json.dumps(data).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        return json.loads(text) if text else None

    def answers(self) -> bool:
        try:
            self.get("/system_stats")
        except OSError:
            return False
        return True

    def start(self, graph: Graph) -> str:
        answer = self.post("/prompt", {"prompt": graph, "client_id": CLIENT})
        assert "prompt_id" in answer, answer
        return answer["prompt_id"]

    def wait(self, run: str) -> Any:
        wait_until(lambda: run in self.get(f"/history/{run}"))
        return self.get(f"/history/{run}")[run]

    def run(self, graph: Graph) -> Any:
        """Run a workflow to its end, which must be a good one, and return the outputs of its nodes."""
        history = self.wait(self.start(graph))
        assert history["status"]["status_str"] == "success", history["status"]["messages"][-1]
        return history["outputs"]

    def fail(self, graph: Graph) -> Any:
        """Run a workflow that fails, and return the message that the page gets."""
        messages = self.wait(self.start(graph))["status"]["messages"]
        return next(data for name, data in messages if name in ("execution_error", "execution_interrupted"))

    def kept(self, name: str) -> Tensor:
        return load_file(self.base / "output" / name)["value"]

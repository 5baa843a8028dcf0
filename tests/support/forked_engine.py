"""Engines that are forked from a process with their libraries, whose import takes an engine seconds."""

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs import stdio

_PROGRAM = Path(__file__).with_name("forking.py")
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Forks:
    """A program that forks engines, which become children of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen((sys.executable, "-P", str(_PROGRAM)), stdin=theirs, env=environ)

    def start(self, request: dict[str, Any], *streams: int) -> int:
        """Start a program with these standard streams, and return its id."""
        prctl = ctypes.CDLL(None).prctl  # makes this process adopt what the program leaves behind
        with self._lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            pid, _ = (self._socket.recv(64) for _ in range(2))
            prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return int(pid)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        """Have the engines of this process forked."""
        forks = self

        class Popen(subprocess.Popen[bytes]):
            def _execute_child(self, args: Any, *rest: Any) -> None:
                if args[1:4] != ("-P", "-m", "app.engine"):
                    super()._execute_child(args, *rest)  # pyright: ignore[reportAttributeAccessIssue]
                    return
                request = {"module": args[3], "arguments": args[4:], "environ": rest[5]}
                ends = rest[9], rest[12], rest[14]  # the child's ends of its three pipes
                self.pid = forks.start(request, *ends)
                self._child_created = True
                for end in ends:
                    os.close(end)

        patch.setattr(stdio, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Popen}))

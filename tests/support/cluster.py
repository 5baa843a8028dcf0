"""A cluster of Ray, whose machines are namespaces of this one: networks, processes and folders of Ray."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.cluster import ClusterTask, watch_cards
from app.jobs.service import JobService
from tests.support.jobs import ROOT

HOME, PORT = "10.77.41.1", "26379"
ADDRESS = f"{HOME}:{PORT}"
_RAY = str(Path(sys.executable).with_name("ray"))
_MEMORY = f"--object-store-memory={100 * 2**20}"
_BRIDGE = "longtake0"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Machine:
    """A process with a process namespace of its own, whose end is that of all its processes."""

    def __init__(self, *command: str, inside: tuple[str, ...] = (), log: Path) -> None:
        self.log = log
        alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                (*inside, *alone, *command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT
            )

    def kill(self) -> None:
        """End all processes of the machine at once, as a power cut does."""
        self._process.kill()
        self._process.wait()


class Lan:
    """A head, on this machine, and other machines, each with a network of its own that can be cut."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.machines = folder, dict[str, Machine]()
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{HOME}/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        self.start_head()

    def start_head(self) -> None:
        command = (
            _RAY, "start", "--head", f"--node-ip-address={HOME}", f"--port={PORT}", "--num-gpus=0",
            "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", "--block", _MEMORY,
        )  # fmt: skip
        self.machines["head"] = Machine(*command, log=self._folder / "head.log")

    def add(self, name: str, devices: str) -> None:
        """Have another machine join, with a network of its own."""
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"{name}-a", "type", "veth", "peer", "name", f"{name}-b")
        run("ip", "link", "set", f"{name}-b", "netns", name)
        run("ip", "link", "set", f"{name}-a", "master", _BRIDGE, "up")
        inside = ("ip", "netns", "exec", name)
        address = f"10.77.41.{len(self.machines) + 1}/24"
        run(*inside, "ip", "address", "add", address, "dev", f"{name}-b")
        run(*inside, "ip", "link", "set", f"{name}-b", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        self.join(name, devices)

    def join(self, name: str, devices: str) -> None:
        own = ("sh", "-c", 'mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && exec "$@"', "sh")
        join = (sys.executable, "-m", "app", "join", ADDRESS, "--name", name, "--devices", devices)
        network, log = ("ip", "netns", "exec", name), self._folder / f"{name}.log"
        self.machines[name] = Machine(*own, *join, inside=network, log=log)

    def cut(self, name: str) -> None:
        run("ip", "link", "set", f"{name}-a", "down")

    def mend(self, name: str) -> None:
        run("ip", "link", "set", f"{name}-a", "up")

    def close(self) -> None:
        for machine in self.machines.values():
            machine.kill()
        for name in self.machines.keys() - {"head"}:
            run("ip", "link", "delete", f"{name}-a")  # the network's own end comes later
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", _BRIDGE)


@contextmanager
def served(service: JobService) -> Iterator[JobService]:
    """Start a service that also uses the cluster's cards."""
    ended = threading.Event()
    service.expect_cards("The other machines are not there yet.")
    service.start()
    threading.Thread(target=watch_cards, args=(ClusterTask(ADDRESS), service, ended), daemon=True).start()
    try:
        yield service
    finally:
        ended.set()
        service.stop()


@pytest.fixture
def lan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lan]:
    if find_spec("ray") is None:
        pytest.skip("needs Ray: pip install ray")
    test = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "true")
    if os.geteuid() or subprocess.run(test, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make networks and processes of its own, as root has")
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    lan = Lan(tmp_path)
    try:
        yield lan
    finally:
        lan.close()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all machines of a cluster prove by certificates who they are, and encrypt what they send."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, asked = tmp_path / "machine.key", tmp_path / "machine.asked"
    authority, certificate, names = tmp_path / "ca.crt", tmp_path / "machine.crt", tmp_path / "names"
    names.write_text(f"subjectAltName=IP:{HOME},IP:10.77.41.2,IP:127.0.0.1,DNS:localhost")
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes")
    run(*new, "-x509", "-keyout", str(tmp_path / "ca.key"), "-out", str(authority), "-subj", "/CN=authority")
    run(*new, "-keyout", str(key), "-out", str(asked), "-subj", "/CN=machine")
    signed = ("-CA", str(authority), "-CAkey", str(tmp_path / "ca.key"), "-CAcreateserial")
    run(
        "openssl", "x509", "-req", "-in", str(asked), *signed, "-extfile", str(names), "-out",
        str(certificate),
    )  # fmt: skip
    files = {"SERVER_CERT": certificate, "SERVER_KEY": key, "CA_CERT": authority}
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, file in files.items():
        monkeypatch.setenv(f"RAY_TLS_{name}", str(file))

"""The time to load a transformer of several GB, from the disk and from the kernel's memory.

    python benchmarks/loading.py [--gb 4] [--folder FOLDER] [--repeat 3] [--json]

It writes a checkpoint with the names and shapes of FramePack's transformer and as many of its blocks as the
size allows, and loads it in fresh processes: as the engine does (`ours`), and by diffusers' `from_pretrained`
(`diffusers`). Both then copy every weight once, as for a device; compare the times with this use, since
mapping alone reads nothing. The file is also read once from the beginning to the end (`read`), and as many
bytes are copied in memory (`copy`). Before a cold run, the file's pages are dropped by `posix_fadvise`.
Before a warm one, the file is read completely.

It reports the medians, and the speeds as ratios of runs that followed each other. The exit code is 1 if ours
is below 80 % of the speed of `read` when cold or of `copy` when warm, or needs over 2 GB of its own memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

import torch  # noqa: E402
from diffusers import HunyuanVideoFramepackTransformer3DModel  # noqa: E402

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.bench import context as stand_ins  # noqa: E402
from diffusers_helper.cancel import CancelToken  # noqa: E402
from diffusers_helper.families.framepack import CONFIGS  # noqa: E402
from diffusers_helper.loading.networks import empty_network, load_network  # noqa: E402
from diffusers_helper.loading.reading import anonymous_bytes, drop_pages, read_ahead  # noqa: E402

KINDS = ("read", "ours", "diffusers", "copy")
GOAL, GOAL_PRIVATE_BYTES = 0.8, 2e9
_PIECE_BYTES = 64 * 1024**2
_BLOCK_BYTES = {"num_layers": 2 * 339_831_296, "num_single_layers": 2 * 141_591_808}
Figures = dict[str, Any]


def write_checkpoint(folder: Path, num_bytes: float) -> int:
    """Write a transformer of at least this size with random weights, and return the file's size."""
    config: dict[str, Any] = {**CONFIGS["transformer"], "num_layers": 1, "num_single_layers": 1}
    size = 2 * sum(tensor.numel() for tensor in empty_network("transformer", config).state_dict().values())
    while size < num_bytes:
        # The published model has two single blocks for each dual one.
        is_single = config["num_single_layers"] < 2 * config["num_layers"]
        kind = "num_single_layers" if is_single else "num_layers"
        config[kind] += 1
        size += _BLOCK_BYTES[kind]
    return stand_ins.write_network("transformer", config, folder)


def read(folder: Path) -> None:
    """Read the file once."""
    buffer = bytearray(1024**2)
    with (folder / stand_ins.WEIGHTS_FILE).open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def load_ours(folder: Path) -> torch.nn.Module:
    """Load the network as the engine does."""
    network = load_network("transformer", folder).network
    read_ahead([folder / stand_ins.WEIGHTS_FILE], CancelToken())
    return network


def load_diffusers(folder: Path) -> torch.nn.Module:
    """Load the network by diffusers alone."""
    return HunyuanVideoFramepackTransformer3DModel.from_pretrained(folder, dtype=torch.bfloat16)


def copy(folder: Path) -> None:
    """Copy as many bytes as the file has from one buffer to another."""
    source, target = (torch.ones(_PIECE_BYTES * 4, dtype=torch.uint8) for _ in range(2))
    left = (folder / stand_ins.WEIGHTS_FILE).stat().st_size
    while left > 0:
        target[:left].copy_(source[:left])
        left -= len(source)


def use(network: torch.nn.Module) -> None:
    """Copy every weight to a buffer."""
    weights = list(network.parameters())
    buffer = torch.empty(max(weight.numel() for weight in weights), dtype=torch.bfloat16)
    for weight in weights:
        buffer[: weight.numel()].copy_(weight.detach().flatten())


class Most:
    """The most of the process's own memory since the beginning, looked at fifty times a second."""

    def __init__(self) -> None:
        self.num_bytes, self._before, self._is_over = 0, anonymous_bytes(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self.num_bytes = max(self.num_bytes, anonymous_bytes() - self._before)

    def end(self) -> int:
        """Stop looking, and return the most bytes."""
        self._is_over.set()
        return self.num_bytes


def measure(kind: str, folder: Path) -> Figures:
    """Run one kind in this process, and return its seconds and memory."""
    most = Most()
    runs: dict[str, Callable[[Path], Any]] = {
        "read": read, "ours": load_ours, "diffusers": load_diffusers, "copy": copy,
    }  # fmt: skip
    if kind == "copy":
        copy(folder)  # the first writes to new memory take longer
    from_disk = stand_ins.disk_bytes()
    begin = time.perf_counter()
    network = runs[kind](folder)
    loaded = time.perf_counter()
    if network is not None:
        use(network)
    used = time.perf_counter()
    return {
        "seconds": loaded - begin, "with_use": used - begin, "private_bytes": most.end(),
        "disk_bytes": stand_ins.disk_bytes() - from_disk,
    }  # fmt: skip


def in_child(kind: str, folder: Path) -> Figures:
    """Measure one kind in a fresh process."""
    command = [sys.executable, __file__, "--child", kind, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout.splitlines()[-1])


def compare(folder: Path, repeat: int, rows: Rows) -> dict[str, dict[str, Figures]]:
    """Return the medians of all kinds, cold and warm, with the ratios of their speeds; each run is a row."""
    found: dict[str, dict[str, Figures]] = {}
    for state in ("cold", "warm"):
        rounds: list[dict[str, Figures]] = []
        for number in range(repeat):
            figures: dict[str, Figures] = {}
            # The host of a virtual disk may keep what was read, so that the order matters.
            for kind in (*KINDS[number % len(KINDS) :], *KINDS[: number % len(KINDS)]):
                if state == "cold":
                    drop_pages(folder / stand_ins.WEIGHTS_FILE)
                else:
                    read(folder)
                figures[kind] = in_child(kind, folder)
                rows.add({"state": state, "kind": kind, **figures[kind]})
            for kind in ("ours", "diffusers"):
                one = figures[kind]
                for other in ("read", "copy"):
                    one[f"of_{other}"] = figures[other]["seconds"] / one["seconds"]
            figures["ours"]["of_diffusers"] = figures["diffusers"]["with_use"] / figures["ours"]["with_use"]
            rounds.append(figures)
        found[state] = {
            kind: {key: statistics.median(one[kind][key] for one in rounds) for key in rounds[0][kind]}
            for kind in KINDS
        }
    return found


def table(size: int, found: dict[str, dict[str, Figures]]) -> str:
    """Return the figures as text."""
    lines = [f"{size / 1e9:.2f} GB; speeds are ratios, medians of the rounds"]
    for state, kinds in found.items():
        for kind, one in kinds.items():
            ratios = ", ".join(
                f"{one[key]:.2f} of {key.removeprefix('of_')}" for key in one if key.startswith("of_")
            )
            lines.append(
                f"{state} {kind}: {one['seconds']:.2f} s ({size / 1e9 / one['seconds']:.2f} GB/s), "
                f"{one['with_use']:.2f} s with use, {one['private_bytes'] / 1e6:.0f} MB private, "
                f"{one['disk_bytes'] / 1e9:.2f} GB from the disk{'; ' + ratios if ratios else ''}"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the figures; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=4, help="size of the checkpoint in 10^9 bytes")
    parser.add_argument("--folder", type=Path, help="where to write it (default: that of temporary files)")
    parser.add_argument("--repeat", type=int, default=3, help="number of rounds")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.stdout.write(json.dumps(measure(arguments.child, arguments.folder)) + "\n")
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name, Rows(__file__) as rows:
        size = write_checkpoint(Path(name), arguments.gb * 1e9)
        found = compare(Path(name), arguments.repeat, rows)
    if rows.is_interrupted:
        return rows.exit_code()
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if arguments.json else table(size, found))
    cold, warm = found["cold"]["ours"], found["warm"]["ours"]
    is_lean = max(cold["private_bytes"], warm["private_bytes"]) <= GOAL_PRIVATE_BYTES
    return 0 if cold["of_read"] >= GOAL and warm["of_copy"] >= GOAL and is_lean else 1


if __name__ == "__main__":
    raise SystemExit(main())

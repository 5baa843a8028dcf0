"""The main memory that `generate` takes for itself, apart from the page cache of its weights.

    python benchmarks/host_memory.py [--folder DIR] [--scale 1] [--jobs 10] [--cap-gb 1.5] [--json]

It writes checkpoints of random weights in the layout of the published ones (sharded, bf16 and fp16), in two
sizes. Then it measures, each in a separate process: one video by the small and one by the large model, a
short and a long video by the demo model, and several in a row. Scale 1 temporarily needs up to 4 GB of disk
space.

"Private" is anonymous memory (RssAnon). Without a GPU it includes the accounting device's tensors; "host" is
the rest, computed for each sample, and thus what a machine with a GPU would need. "Files" is RssFile, the
pages of mapped files, which the kernel can drop at any time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from benchmarks.whole_jobs import write_picture  # noqa: E402
from diffusers_helper.cancel import CancelToken  # noqa: E402
from diffusers_helper.events import Event, Finished  # noqa: E402
from diffusers_helper.loading.loaders import load_models  # noqa: E402
from diffusers_helper.memory.device import Device  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402

GB, MB = 1024**3, 1024**2
WIDTH, HEADS = 2048, 16
SHARD_BYTES = 512 * MB
# The numbers of dual, single and Llama's blocks. Blocks and activations are as large in both models.
SMALL, LARGE = (1, 1, 3), (5, 10, 8)
GOAL_BYTES = 3 * GB


@dataclass(frozen=True)
class Figures:
    """The peaks in bytes of one process, and its private memory after each job."""

    private: int
    host: int
    files: int
    device: int
    before: int
    after_jobs: list[int]
    streamed: int
    seconds: float


def resident() -> tuple[int, int]:
    """Return the private and the mapped bytes of this process that are in memory."""
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(found[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))  # type: ignore[return-value]


class Watch:
    """A thread that samples this process's memory many times a second."""

    def __init__(self) -> None:
        self.private = self.host = self.files = self.device = 0
        self.devices: list[Device] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        on_device = sum(device.allocated_bytes() for device in self.devices if not device.has_gpu)
        private, files = resident()
        self.private, self.files = max(self.private, private), max(self.files, files)
        self.device = max(self.device, on_device)
        self.host = max(self.host, private - on_device)

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            self.look()

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        """Sample within the context, and include accounting devices that are opened there."""
        opened, init = self.devices, Device.__init__

        def remember(device: Device, *arguments: Any) -> None:
            init(device, *arguments)
            opened[:] = [device]

        with patch.object(Device, "__init__", remember):
            self._thread.start()
            try:
                yield self
            finally:
                self._stopped.set()
                self._thread.join()


def run_jobs(model: str, seconds: float, steps: int, jobs: int, cap_gb: float | None) -> Figures:
    """Make videos one after the other with one set of loaded parts, as the engine does."""
    began, streamed, after = time.monotonic(), 0, list[int]()

    def on_event(event: Event) -> None:
        nonlocal streamed
        if isinstance(event, Finished):
            streamed += event.bytes_streamed

    models = load_models(find_model(model, allow_folder=True))
    before = resident()[0]
    with tempfile.TemporaryDirectory() as scratch, Watch().watching() as watch:
        picture = Path(scratch, "picture.png")
        write_picture(picture, models.info.side, models.info.side)
        request = GenerationRequest(
            image=str(picture), prompt="the red ball moves right", model=model, mode=models.info.modes[0],
            seconds=seconds, steps=steps, vram_cap_gb=cap_gb, preserved_gb=None if cap_gb is None else 0,
        )  # fmt: skip
        models.load(CancelToken())
        for number in range(jobs):
            folder = Path(scratch, str(number))
            generate(request, models, folder=folder, on_event=on_event)
            shutil.rmtree(folder)
            after.append(resident()[0])
    return Figures(
        watch.private, watch.host, watch.files, watch.device, before, after, streamed,
        time.monotonic() - began,
    )  # fmt: skip


def write_model(folder: Path, dual: int, single: int, layers: int) -> int:
    """Write a model folder with random weights in sharded files; return the bytes of its weights."""
    from diffusers import HunyuanVideoFramepackTransformer3DModel
    from transformers import LlamaConfig, LlamaModel

    from tests.support.tiny_model import TEXT_DIM, VOCABULARY, write_tiny_model

    write_tiny_model(folder)
    with torch.device("meta"):
        transformer = HunyuanVideoFramepackTransformer3DModel(
            num_attention_heads=HEADS, attention_head_dim=WIDTH // HEADS, rope_axes_dim=(16, 56, 56),
            num_layers=dual, num_single_layers=single, num_refiner_layers=1, text_embed_dim=WIDTH,
            pooled_projection_dim=TEXT_DIM, image_proj_dim=TEXT_DIM, has_image_proj=True,
            has_clean_x_embedder=True,
        )  # fmt: skip
        llama = LlamaModel(
            LlamaConfig(
                vocab_size=len(VOCABULARY), hidden_size=WIDTH, intermediate_size=4 * WIDTH,
                num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=HEADS,
                max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                dtype=torch.float16,
            )
        )  # fmt: skip
    (folder / "transformer" / "config.json").write_text(transformer.to_json_string())
    llama.config.architectures = ["LlamaModel"]
    llama.config.save_pretrained(folder / "text_encoder")
    return write_shards(
        transformer, folder / "transformer", "diffusion_pytorch_model", torch.bfloat16
    ) + write_shards(llama, folder / "text_encoder", "model", torch.float16)


def write_shards(module: torch.nn.Module, folder: Path, stem: str, dtype: torch.dtype) -> int:
    """Write random weights for a module in files of at most about `SHARD_BYTES`, and return their bytes."""
    from safetensors.torch import save_file

    (folder / f"{stem}.safetensors").unlink()
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in module.state_dict().items():
        size += tensor.numel() * dtype.itemsize
        if size > SHARD_BYTES:
            shards.append({})
            size = tensor.numel() * dtype.itemsize
        shards[-1][name] = tensor
    files = {
        name: f"{stem}-{n:05}-of-{len(shards):05}.safetensors"
        for n, shard in enumerate(shards, 1)
        for name in shard
    }
    total = 0
    for shard in shards:
        made = {name: (torch.randn(tensor.shape) * 0.02).to(dtype) for name, tensor in shard.items()}
        save_file(made, folder / files[next(iter(shard))], metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in made.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def in_child(*arguments: Any) -> dict[str, Any]:
    """Call `run_jobs` in a fresh process, and return its figures."""
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, scale: float, jobs: int, cap_gb: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make all runs, and yield their names and figures."""
    for name, blocks in {"small": SMALL, "large": LARGE}.items():
        scaled = [max(least, round(count * scale)) for least, count in zip(SMALL, blocks, strict=True)]
        weights = write_model(folder / name, *scaled)
        found = in_child(str(folder / name), 1.0, 1, 1, cap_gb)
        shutil.rmtree(folder / name)
        yield name, {**found, "weights": weights}
    for name, seconds, count in (("short", 2.0, 1), ("long", 20.0, 1), ("in a row", 2.0, jobs)):
        yield name, in_child("demo", seconds, 2, count, None)


def say(name: str, found: dict[str, Any]) -> None:
    """Print the figures of one process."""
    sizes = {key: found[key] / MB for key in ("private", "host", "files", "device", "before", "streamed")}
    weights = f"{found['weights'] / MB:.0f} MB of weights, " if "weights" in found else ""
    row = " ".join(f"{after / MB:.0f}" for after in found["after_jobs"])
    sys.stderr.write(
        f"{name}: {weights}private {sizes['private']:.0f} MB (host {sizes['host']:.0f}, device "
        f"{sizes['device']:.0f}), files {sizes['files']:.0f}, streamed {sizes['streamed']:.0f}; before "
        f"{sizes['before']:.0f}, after each job {row}; {found['seconds']:.0f} s\n"
    )


def main() -> int:
    """Print the figures of all processes; return 1 if one needs more memory than the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help="where to write the models (default: the folder for temporary files)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the large model's number of blocks"
    )
    parser.add_argument("--jobs", type=int, default=10, help="number of videos in a row")
    parser.add_argument(
        "--cap-gb", type=float, default=1.5, help="cap of the device for the two written models"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.stdout.write(json.dumps(asdict(run_jobs(*json.loads(arguments.child)))) + "\n")
        return 0
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, Rows(__file__) as rows:
        for name, found in measure(Path(folder), arguments.scale, arguments.jobs, arguments.cap_gb):
            results[name] = found
            rows.add({"name": name, **found})
            say(name, found)
    if arguments.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    return rows.exit_code(int(any(row["host"] > GOAL_BYTES for row in rows)))


if __name__ == "__main__":
    raise SystemExit(main())

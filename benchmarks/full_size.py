"""A step of FramePack's transformer at its full size, with all its blocks streamed from a mapped file.

    python benchmarks/full_size.py [--gb 25.7] [--latent 16] [--steps 1] [--folder FOLDER] [--json]

It writes a checkpoint with the names and shapes of the published transformer and random weights, drops it
from the kernel's memory, loads it as the engine does, and runs steps with small latents. The folder needs as
much free space. Main memory may be smaller: blocks are read again in each step then. `--gb` below 25.7 takes
fewer blocks. It reports the times, the bytes read from the disk and copied to the device, and the process's
own memory, in which mapped files do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

import torch  # noqa: E402

from benchmarks.loading import NAME, Most, disk_bytes, drop, write_checkpoint  # noqa: E402
from benchmarks.streaming import arguments_of_a_step  # noqa: E402
from diffusers_helper.loading.networks import load_network  # noqa: E402
from diffusers_helper.memory.residency import Residency  # noqa: E402

FULL_GB = 25.7


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write, load and run the network, and return the figures."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.perf_counter()
    size = write_checkpoint(folder, arguments.gb * 1e9)
    written = time.perf_counter()
    drop(folder / NAME)
    most = Most()
    loading = time.perf_counter()
    network: Any = load_network("transformer", folder).network
    blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
    residency = Residency(device)
    residency.move_model_to_device_with_memory_preservation(
        network, blocks=blocks, streamed=range(len(blocks))
    )
    loaded = time.perf_counter()
    config = network.config
    given = arguments_of_a_step(
        arguments.latent, device, config.text_embed_dim, config.pooled_projection_dim, config.image_proj_dim
    )
    rows: list[dict[str, Any]] = []
    for _ in range(arguments.steps):
        from_disk, copied, start = disk_bytes(), residency.bytes_streamed, time.perf_counter()
        with torch.inference_mode():
            result = network(**given)[0]
        if not bool(torch.isfinite(result).all()):
            raise RuntimeError("the step's result is not finite.")
        rows.append({
            "seconds": time.perf_counter() - start, "disk_bytes": disk_bytes() - from_disk,
            "copied_bytes": residency.bytes_streamed - copied,
        })  # fmt: skip
    residency.unload_complete_models()
    return {
        "device": str(device), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "file_bytes": size, "blocks": len(blocks), "written_seconds": written - begin,
        "loaded_seconds": loaded - loading, "own_bytes": most.end(), "steps": rows,
    }  # fmt: skip


def as_text(found: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    lines = [
        f"{found['file_bytes'] / 1e9:.2f} GB, {found['blocks']} blocks, all streamed, {found['device']}: "
        f"written in {found['written_seconds']:.0f} s, loaded in {found['loaded_seconds']:.2f} s, "
        f"at most {found['own_bytes'] / 1e9:.2f} GB of own memory"
    ]
    for number, row in enumerate(found["steps"], start=1):
        lines.append(
            f"step {number}: {row['seconds']:.1f} s, {row['disk_bytes'] / 1e9:.2f} GB from the disk, "
            f"{row['copied_bytes'] / 1e9:.2f} GB copied"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=FULL_GB, help="the least size of the file, in 10^9 bytes")
    parser.add_argument("--latent", type=int, default=16, help="side of the latents; a multiple of 16")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="the folder for the temporary file")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = measure(arguments, Path(folder))
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if arguments.json else as_text(found))


if __name__ == "__main__":
    main()

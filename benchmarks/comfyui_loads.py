"""What the diffusion loader of the ROCm nodes adds to ComfyUI's own loader, in time and in memory.

    COMFYUI_PYTHON benchmarks/comfyui_loads.py COMFYUI_ROOT [--gb 1.05] [--pairs 10] [--json]

It is run by ComfyUI's Python. It writes a Wan transformer of random weights in bf16, and loads it on the CPU
with ComfyUI's loader and with the node in turn, after one load that does not count. "Added" is the time of
the node without the call of ComfyUI's loader within it, so that it does not depend on how the speed of loads
varies; "processor" is the processor time of the same. Each loader's peak of main memory is measured in a
process of its own.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
NAME = "wan.safetensors"
WIDTH, HIDDEN = 1536, 8960


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comfyui", type=Path, help="the folder of ComfyUI")
    parser.add_argument("--gb", type=float, default=1.05, help="the size of the file")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", choices=("stock", "node"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    start_comfyui(given.comfyui)
    with torch.inference_mode():
        if given.peak:
            loaders(given.folder)[given.peak]()
            sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")
            return 0
        from benchmarks.rows import Rows

        with tempfile.TemporaryDirectory() as folder, Rows(__file__) as rows:
            size = write_model(Path(folder), given.gb)
            facts = {"file_bytes": size, **pairs_of(Path(folder), given.pairs, rows.add)}
            facts |= {f"{kind}_peak": peak_of(kind, given.comfyui, folder) for kind in ("stock", "node")}
    if not rows.is_interrupted:
        sys.stdout.write(json.dumps(facts) + "\n" if given.json else words(facts))
    return rows.exit_code()


def start_comfyui(root: Path) -> None:
    """Let ComfyUI's modules be imported, on the CPU, before Longtake's."""
    sys.argv = [sys.argv[0], "--cpu"]
    sys.path.insert(0, str(ROOT))
    from tests.support.comfyui_server import declare_torchaudio, declare_torchvision

    declare_torchvision()
    declare_torchaudio()
    # ComfyUI has packages of the same names as Longtake.
    sys.path.remove(str(ROOT))
    sys.path[:0] = [str(root)]
    sys.path.append(str(ROOT))
    import comfy.options  # type: ignore[import-not-found]

    comfy.options.enable_args_parsing()


def write_model(folder: Path, gb: float) -> int:
    """Write a Wan transformer with as many blocks as the size needs, and return the size of its file."""
    import comfy.ops  # type: ignore[import-not-found]
    from comfy.ldm.wan.model import WanModel  # type: ignore[import-not-found]

    block_bytes = 2 * (8 * WIDTH**2 + 2 * WIDTH * HIDDEN)
    layers = max(1, round(gb * 1024**3 / block_bytes))
    model = WanModel(
        dim=WIDTH, ffn_dim=HIDDEN, num_heads=12, num_layers=layers,
        operations=comfy.ops.disable_weight_init, dtype=torch.bfloat16, device="cpu",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: value.normal_(std=0.02, generator=generator) for name, value in model.state_dict().items()
    }
    save_file(weights, folder / NAME)
    return (folder / NAME).stat().st_size


def loaders(folder: Path) -> dict[str, Any]:
    """Return both loaders of the model in a folder."""
    import comfy.sd  # type: ignore[import-not-found]
    import folder_paths  # type: ignore[import-not-found]

    from rocm_nodes.loaders import ROCMOptimizedUNetLoader

    folder_paths.add_model_folder_path("diffusion_models", str(folder))
    path = str(folder / NAME)
    return {
        "stock": lambda: comfy.sd.load_diffusion_model(path, model_options={}),
        "node": lambda: ROCMOptimizedUNetLoader().load_unet(unet_name=NAME),
    }


def pairs_of(folder: Path, count: int, keep: Callable[[dict[str, float]], None]) -> dict[str, list[float]]:
    """Load with both loaders in turn, and return their times, and what the node adds; keep each pair."""
    import comfy.sd  # type: ignore[import-not-found]

    both, plain = loaders(folder), comfy.sd.load_diffusion_model
    inner: list[tuple[float, float]] = []

    def timed(*call: Any, **named: Any) -> Any:
        begin = now()
        result = plain(*call, **named)
        inner.append(since(begin))
        return result

    both["node"]()
    comfy.sd.load_diffusion_model = timed
    found: dict[str, list[float]] = {"stock": [], "node": [], "added": [], "processor": []}
    for _ in range(count):
        for kind, load in both.items():
            gc.collect()
            begin = now()
            model = load()
            taken = since(begin)
            found[kind].append(taken[0])
            del model  # its memory is given back outside of the time
        found["added"].append(taken[0] - inner[-1][0])
        found["processor"].append(taken[1] - inner[-1][1])
        keep({kind: times[-1] for kind, times in found.items()})
    return found


def now() -> tuple[float, float]:
    """Return the time, and the processor time of this thread."""
    return time.perf_counter(), time.thread_time()


def since(begin: tuple[float, float]) -> tuple[float, float]:
    """Return the time and the processor time since then."""
    end = now()
    return end[0] - begin[0], end[1] - begin[1]


def peak_of(kind: str, comfyui: Path, folder: str) -> int:
    """Return the peak of a process that loads the model once."""
    command = [sys.executable, __file__, str(comfyui), "--peak", kind, "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def words(facts: dict[str, Any]) -> str:
    """Return the figures as lines."""
    stock, added = facts["stock"], facts["added"]
    shares = [100 * more / whole for more, whole in zip(added, stock, strict=True)]
    middle = statistics.median
    return (
        f"file: {facts['file_bytes'] / 1024**3:.2f} GB, {len(stock)} pairs\n"
        f"ComfyUI's loader: {middle(stock):.3f} s (median)\n"
        f"node: {middle(facts['node']):.3f} s, of which added: {1000 * middle(added):.1f} ms "
        f"({1000 * min(added):.1f} to {1000 * max(added):.1f}), processor "
        f"{1000 * middle(facts['processor']):.1f} ms\n"
        f"share: {middle(shares):.2f} % (median), {max(shares):.2f} % (most)\n"
        f"peak: {facts['stock_peak'] / 1e6:.0f} MB, node {facts['node_peak'] / 1e6:.0f} MB\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())

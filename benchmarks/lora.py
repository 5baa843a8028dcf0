"""The time of a transformer's step with LoRAs of several ranks.

    python benchmarks/lora.py [--heads 8] [--double 4] [--single 8] [--latent 32] [--ranks 0 16 64]

The network has random bf16 weights, as in `streaming.py`, and the LoRAs change all linear layers of its
blocks. The ranks take turns, so that the load of other programs meets all of them.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from benchmarks.streaming import TEXT_TOKENS, make_network, time_of  # noqa: E402
from diffusers_helper.bench.steps import step_arguments  # noqa: E402
from diffusers_helper.loading.lora_adapters import Loras  # noqa: E402
from diffusers_helper.weights.lora_files import loras_of  # noqa: E402


def write_lora(file: Path, network: nn.Module, rank: int) -> None:
    """Write a LoRA with random values for all linear layers of the blocks."""
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith(("transformer_blocks", "single_transformer")):
            for part, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
                tensors[f"transformer.{name}.lora_{part}.weight"] = torch.randn(shape).bfloat16() * 0.01
    save_file(tensors, file)


def measure(arguments: argparse.Namespace, folder: Path, rows: Rows) -> dict[int, tuple[float, float, int]]:
    """Return the fastest step in wall time and in CPU time, and the bytes of the branches, by rank."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = make_network(arguments, folder / "network")
    side = 8 * arguments.latent
    step = step_arguments(network.config, side, side, device, text=TEXT_TOKENS, vision=TEXT_TOKENS)
    weights = sum(one.nbytes for one in network.parameters())
    found: dict[int, tuple[float, float, int]] = {}
    for _ in range(arguments.repeat):
        for rank in arguments.ranks:
            file = folder / f"{rank}.safetensors"
            if rank and not file.exists():
                write_lora(file, network, rank)
            with ExitStack() as stack:
                loras = stack.enter_context(Loras(loras_of(str(file) if rank else "")))
                loras.attach(network, torch.bfloat16)
                network.to(device)
                more = sum(one.nbytes for one in network.parameters()) - weights
                with torch.inference_mode():
                    times, _ = time_of(lambda: network(**step)[0], arguments.steps, device)
            wall, cpu, _ = found.get(rank, (float("inf"), float("inf"), 0))
            rows.add({"rank": rank, "bytes": more, **times})
            found[rank] = min(wall, *times["seconds"]), min(cpu, *times["cpu_seconds"]), more
    return found


def main() -> int:
    """Print a line for each rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("heads", 8), ("double", 4), ("single", 8), ("latent", 32), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 16, 64])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Rows(__file__) as rows:
        found = measure(arguments, Path(folder), rows)
    if rows.is_interrupted:
        return rows.exit_code()
    wall, cpu, _ = found[min(found)]
    for rank, (seconds, cpu_seconds, num_bytes) in found.items():
        sys.stdout.write(
            f"rank {rank}: {seconds:.3f} s a step ({seconds / wall:.3f} times), {cpu_seconds:.3f} s of CPU "
            f"({cpu_seconds / cpu:.3f} times), {num_bytes / 2**20:.1f} MiB\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A transformer's step with all weights on the device against steps with blocks that are streamed.

    python benchmarks/streaming.py [--heads 8] [--double 4] [--single 8] [--latent 32] [--steps 3] [--json]

Random weights in bf16, written to a temporary folder and memory-mapped as a model's are; `--heads 24
--double 20 --single 40 --latent 80` is the published transformer. For each share of streamed blocks: seconds
of a step, bytes copied against the plan's, whether the result is that of the resident step to the bit; and
from a trace of what began and ended when, how long copying took, which part of it lay within the computation
of blocks, and how long blocks waited for their weights. On a GPU, diffusers' group offloading and a copy of
every module just before it runs, as FramePack swaps, are measured beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.hooks import apply_group_offloading
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, Python looks in benchmarks/ only

from diffusers_helper.memory.budget import Budget, Stage, Weights, plan_stage  # noqa: E402
from diffusers_helper.memory.residency import Residency  # noqa: E402

_TEXT = 64
Span = tuple[float, float]


def make_network(arguments: argparse.Namespace, folder: Path) -> HunyuanVideoFramepackTransformer3DModel:
    """Written block by block of random values, and loaded as the product does."""
    with torch.device("meta"):
        network = HunyuanVideoFramepackTransformer3DModel(
            num_attention_heads=arguments.heads,
            num_layers=arguments.double,
            num_single_layers=arguments.single,
            num_refiner_layers=1,
            text_embed_dim=256,
            pooled_projection_dim=256,
            image_proj_dim=256,
            has_image_proj=True,
            has_clean_x_embedder=True,
        )
    network = cast(Any, network).to(torch.bfloat16).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.02, generator=generator)
    network.save_pretrained(folder)
    del network
    loaded = HunyuanVideoFramepackTransformer3DModel.from_pretrained(folder, dtype=torch.bfloat16)
    return loaded.eval().requires_grad_(False)


def arguments_of_a_step(side: int, device: torch.device) -> dict[str, Any]:
    """Latents of side x side, with history and conditions as the pipeline gives them."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    return {
        "hidden_states": random(1, 16, 9, side, side),
        "timestep": torch.tensor([500.0], device=device),
        "guidance": torch.tensor([10000.0], device=device),
        "encoder_hidden_states": random(1, _TEXT, 256),
        "encoder_attention_mask": torch.ones(1, _TEXT, dtype=torch.bool, device=device),
        "pooled_projections": random(1, 256),
        "image_embeds": random(1, _TEXT, 256),
        "indices_latents": torch.arange(1, 10),
        "latents_clean": random(1, 16, 2, side, side),
        "indices_latents_clean": torch.tensor([0, 10]),
        "latents_history_2x": random(1, 16, 2, side, side),
        "indices_latents_history_2x": torch.tensor([11, 12]),
        "latents_history_4x": random(1, 16, 16, side, side),
        "indices_latents_history_4x": torch.arange(13, 29),
        "return_dict": False,
    }


def seconds_of(run: Callable[[], Tensor], steps: int, device: torch.device) -> tuple[float, Tensor]:
    """The median of `steps` after one that does not count, and the result."""
    seconds: list[float] = []
    result = run()
    for _ in range(steps):
        begin = time.perf_counter()
        result = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), result.cpu()


class Timeline:
    """When copies and blocks began and ended. On a GPU the host's view: when they were handed over."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], float] = {}
        self.copies: list[Span] = []
        self.runs: list[Span] = []
        self.waits: list[Span] = []

    def watch(self, index: int, block: nn.Module) -> list[Any]:
        """Notes the runs of a block, streamed or not."""
        return [
            block.register_forward_pre_hook(lambda *_: self._begin("computing", index)),
            block.register_forward_hook(lambda *_: self._end("computing", index, self.runs)),
        ]

    def __call__(self, what: str, index: int) -> None:
        """The streamer's trace."""
        if what in ("copy", "wait"):
            self._begin(what, index)
        elif what == "copied":
            self._end("copy", index, self.copies)
        elif what == "run":
            self._end("wait", index, self.waits)

    def _begin(self, what: str, index: int) -> None:
        self._begun[what, index] = time.perf_counter()

    def _end(self, what: str, index: int, spans: list[Span]) -> None:
        spans.append((self._begun[what, index], time.perf_counter()))

    def hidden(self) -> float:
        """The part of the copying, 0 to 1, during which a block computed."""
        both = sum(
            max(0.0, min(copy[1], run[1]) - max(copy[0], run[0])) for copy in self.copies for run in self.runs
        )
        copying = sum(end - begin for begin, end in self.copies)
        return both / copying if copying else 1.0


def measure_streamed(
    network: nn.Module,
    blocks: Sequence[nn.Module],
    weights: Weights,
    share: float,
    steps: int,
    run: Callable[[], Tensor],
    device: torch.device,
) -> dict[str, Any]:
    """The step with about this share of the blocks streamed, as a plan for a cap would have it."""
    kept = weights.fixed_bytes + int((1 - share) * sum(weights.block_bytes))
    cap = 2 * weights.total_bytes
    plan = plan_stage(Budget(cap, cap, cap - kept, 0), Stage("sample", weights, 0))
    timeline = Timeline()
    residency = Residency(device, timeline)
    residency.move_model_to_device_with_memory_preservation(
        network, blocks=blocks, streamed=plan.streamed_blocks
    )
    # After the streamer's own hooks, so that waiting for a copy is not taken for computing.
    hooks = [hook for index, block in enumerate(blocks) for hook in timeline.watch(index, block)]
    seconds, result = seconds_of(run, steps, device)
    for hook in hooks:
        hook.remove()
    residency.unload_complete_models()
    return {
        "streamed_blocks": len(plan.streamed_blocks),
        "resident_bytes": plan.resident_bytes,
        "seconds": seconds,
        "planned_bytes": plan.streamed_bytes,
        "copied_bytes": residency.bytes_streamed / (steps + 1),
        "copying_seconds": sum(end - begin for begin, end in timeline.copies) / (steps + 1),
        "waiting_seconds": sum(end - begin for begin, end in timeline.waits) / (steps + 1),
        "hidden": timeline.hidden(),
        "result": result,
    }


def measure_others(
    network: Any, run: Callable[[], Tensor], steps: int, device: torch.device
) -> dict[str, float]:
    """diffusers' group offloading, and modules that are fetched as they run. They need a GPU."""
    found: dict[str, float] = {}
    hosts = {parameter: parameter.data for parameter in network.parameters()}

    def fetch(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = hosts[parameter].to(device)

    def drop(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = hosts[parameter]

    hooks = [
        hook
        for module in network.modules()
        for hook in (module.register_forward_pre_hook(fetch), module.register_forward_hook(drop))
    ]
    found["swapped as they run"] = seconds_of(run, steps, device)[0]
    for hook in hooks:
        hook.remove()
    apply_group_offloading(
        network, onload_device=device, offload_type="block_level", num_blocks_per_group=1, use_stream=True,
        low_cpu_mem_usage=True,
    )  # fmt: skip
    found["diffusers' group offloading"] = seconds_of(run, steps, device)[0]
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = make_network(arguments, folder)
    blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
    sizes = [sum(parameter.nbytes for parameter in block.parameters()) for block in blocks]
    total = sum(parameter.nbytes for parameter in network.parameters())
    weights = Weights("transformer", total, tuple(sizes))
    given = arguments_of_a_step(arguments.latent, device)

    def run() -> Tensor:
        with torch.inference_mode():
            return network(**given)[0]

    residency = Residency(device)
    residency.load_model_as_complete(network)
    seconds, resident = seconds_of(run, arguments.steps, device)
    residency.unload_complete_models()
    rows: list[dict[str, Any]] = []
    for share in arguments.shares:
        row = measure_streamed(network, blocks, weights, share, arguments.steps, run, device)
        row["same_bits"] = torch.equal(row.pop("result"), resident)
        row["ratio"] = row["seconds"] / seconds
        rows.append(row)
    others = measure_others(network, run, arguments.steps, device) if device.type == "cuda" else {}
    return {
        "device": str(device), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "blocks": len(blocks), "weights_bytes": total, "resident_seconds": seconds,
        "streamed": rows, "others_seconds": others,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", type=int, default=8, help="of 128 values each")
    parser.add_argument("--double", type=int, default=4)
    parser.add_argument("--single", type=int, default=8)
    parser.add_argument("--latent", type=int, default=32, help="side of the latents; a multiple of 16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.25, 0.5, 1.0], help="of blocks to stream"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder))
    if arguments.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.write(
            f"{result['blocks']} blocks, {result['weights_bytes'] / 2**20:.0f} MiB: "
            f"resident {result['resident_seconds']:.3f} s a step\n"
        )
        for row in result["streamed"]:
            sys.stdout.write(
                f"{row['streamed_blocks']:>3} streamed: {row['seconds']:.3f} s, {row['ratio']:.3f} of "
                f"resident; {row['copied_bytes'] / 2**20:.1f} of {row['planned_bytes'] / 2**20:.1f} MiB a "
                f"step in {row['copying_seconds']:.3f} s, {row['hidden']:.0%} of it while blocks computed; "
                f"{row['waiting_seconds']:.3f} s of waiting; "
                f"{'the same bits' if row['same_bits'] else 'OTHER BITS'}\n"
            )
        for name, seconds in result["others_seconds"].items():
            sys.stdout.write(f"{name}: {seconds:.3f} s\n")
    is_right = all(
        row["same_bits"] and row["copied_bytes"] == row["planned_bytes"] for row in result["streamed"]
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())

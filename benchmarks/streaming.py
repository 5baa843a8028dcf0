"""The time of a transformer's step with all weights on the device, and with streamed blocks.

    python benchmarks/streaming.py [--heads 8] [--double 4] [--single 8] [--latent 32] [--steps 3] [--json]
    python benchmarks/streaming.py --published --latent 80

The weights are random bf16, written to a temporary folder and memory-mapped like those of a model;
`--published` is the published transformer, of which one block's file stands for all. For each share of
streamed blocks it reports: the fastest step in wall time and in CPU time, which other programs disturb less;
the bytes copied and planned; whether the result is bit-identical to that of the resident step; how long
copying took, during which part of it the network computed, and how long blocks waited for their weights. For
comparison it also copies every module just before its use, as FramePack does, and runs diffusers' group
offloading.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.hooks import apply_group_offloading
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.bench.context import stand_in  # noqa: E402
from diffusers_helper.bench.steps import step_arguments  # noqa: E402
from diffusers_helper.memory.residency import Resident  # noqa: E402
from diffusers_helper.memory.staging import Staging  # noqa: E402
from diffusers_helper.memory.streaming import Streamer  # noqa: E402
from diffusers_helper.models.sizes import Weights  # noqa: E402
from diffusers_helper.planning.budget import Budget, Stage, plan_stage  # noqa: E402

TEXT_TOKENS, _WIDTH = 64, 256
Span = tuple[float, float]
Times = dict[str, list[float]]


def make_network(arguments: argparse.Namespace, folder: Path) -> HunyuanVideoFramepackTransformer3DModel:
    """Write the network block by block with random values, and load it as the product does."""
    if arguments.published:
        return cast(HunyuanVideoFramepackTransformer3DModel, stand_in("transformer", folder))
    with torch.device("meta"):
        network = HunyuanVideoFramepackTransformer3DModel(
            num_attention_heads=arguments.heads,
            num_layers=arguments.double,
            num_single_layers=arguments.single,
            num_refiner_layers=1,
            text_embed_dim=_WIDTH,
            pooled_projection_dim=_WIDTH,
            image_proj_dim=_WIDTH,
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


def time_of(run: Callable[[], Tensor], steps: int, device: torch.device) -> tuple[Times, Tensor]:
    """Return the times of `steps` runs after a warm-up run, and the result."""
    times: Times = {"seconds": [], "cpu_seconds": []}
    result = run()
    for _ in range(steps):
        begin, cpu = time.perf_counter(), time.process_time()
        result = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times["seconds"].append(time.perf_counter() - begin)
        times["cpu_seconds"].append(time.process_time() - cpu)
    return times, result.cpu()


class Timeline:
    """The times of copies, waits and forward passes; on a GPU, the times at which the host issued them."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], float] = {}
        self.copies: list[Span] = []
        self.waits: list[Span] = []
        self.passes: list[Span] = []

    def watch(self, network: nn.Module) -> list[Any]:
        """Record the network's forward passes, and return the hooks for that."""
        return [
            network.register_forward_pre_hook(lambda *_: self._begin("pass", 0)),
            network.register_forward_hook(lambda *_: self._end("pass", 0, self.passes)),
        ]

    @contextmanager
    def watching_copies(self) -> Iterator[None]:
        """Record the copies of all streamers, and how long blocks wait for them."""

        def timed(method: Callable[..., Any], what: str, spans: list[Span]) -> Callable[..., Any]:
            def run(streamer: Streamer, index: int, *others: Any) -> Any:
                self._begin(what, index)
                result = method(streamer, index, *others)
                self._end(what, index, spans)
                return result

            return run

        with (
            patch.object(Streamer, "_copy", timed(Streamer._copy, "copy", self.copies)),
            patch.object(Streamer, "_wait_for_slot", timed(Streamer._wait_for_slot, "wait", self.waits)),
        ):
            yield

    def _begin(self, what: str, index: int) -> None:
        self._begun[what, index] = time.perf_counter()

    def _end(self, what: str, index: int, spans: list[Span]) -> None:
        spans.append((self._begun[what, index], time.perf_counter()))

    def hidden(self) -> float:
        """Return the share of the copying time, 0 to 1, during which the network computed."""
        copying = total(self.copies)
        computing = shared(self.copies, self.passes) - shared(self.copies, self.waits)
        return computing / copying if copying else 1.0


def total(spans: Sequence[Span]) -> float:
    """Return the total seconds of all spans."""
    return sum(end - begin for begin, end in spans)


def shared(some: Sequence[Span], others: Sequence[Span]) -> float:
    """Return the seconds that the spans in `some` and those in `others` have in common."""
    pairs = ((one, other) for one in some for other in others)
    return sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one, other in pairs)


def measure_streamed(
    network: nn.Module,
    blocks: Sequence[nn.Module],
    weights: Weights,
    share: float,
    steps: int,
    run: Callable[[], Tensor],
    device: torch.device,
) -> dict[str, Any]:
    """Measure the step with about this share of blocks streamed, chosen as in a plan."""
    kept = weights.fixed_bytes + int((1 - share) * sum(weights.block_bytes))
    cap = 2 * weights.total_bytes
    plan = plan_stage(Budget(cap, cap, cap - kept, 0), Stage("sample", weights, 0))
    timeline = Timeline()
    # These hooks precede the streamer's, so that they see the true beginning of a pass.
    hooks = timeline.watch(network)
    with timeline.watching_copies():
        resident = Resident(network, Staging(device), blocks=blocks, streamed=plan.streamed_blocks)
        times, result = time_of(run, steps, device)
        for hook in hooks:
            hook.remove()
        resident.close()
    return {
        "streamed_blocks": len(plan.streamed_blocks),
        "resident_bytes": plan.resident_bytes,
        **times,
        "planned_bytes": plan.streamed_bytes,
        "copied_bytes": resident.bytes_streamed / (steps + 1),
        "copying_seconds": total(timeline.copies) / (steps + 1),
        "waiting_seconds": total(timeline.waits) / (steps + 1),
        "hidden": timeline.hidden(),
        "result": result,
    }


def measure_others(
    network: Any, run: Callable[[], Tensor], steps: int, device: torch.device, folder: Path
) -> dict[str, tuple[Times, Tensor]]:
    """Measure a network whose modules are copied before each use, and diffusers' group offloading.

    Group offloading overlaps copies with computing only on a GPU. Elsewhere it copies nothing: it maps each
    block's weights from files that it has written to `folder`.

    Returns:
        The times and the result of each method, by name.
    """
    found: dict[str, tuple[Times, Tensor]] = {}
    hosts = {parameter: parameter.data for parameter in network.parameters()}

    def fetch(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = hosts[parameter].to(device, copy=True)

    def drop(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = hosts[parameter]

    hooks = [
        hook
        for module in network.modules()
        for hook in (module.register_forward_pre_hook(fetch), module.register_forward_hook(drop))
    ]
    found["copied as they run"] = time_of(run, steps, device)
    for hook in hooks:
        hook.remove()
    options: dict[str, Any] = {"offload_to_disk_path": str(folder)}
    if device.type == "cuda":
        options = {"use_stream": True, "low_cpu_mem_usage": True}
    apply_group_offloading(
        network, onload_device=device, offload_type="block_level", num_blocks_per_group=1, **options
    )
    found["diffusers' group offloading"] = time_of(run, steps, device)
    return found


def measure(arguments: argparse.Namespace, folder: Path, kept: Rows) -> dict[str, Any]:
    """Measure the resident step, streamed steps and the other methods, of which each is a row."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = make_network(arguments, folder)
    blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
    sizes = [sum(parameter.nbytes for parameter in block.parameters()) for block in blocks]
    total_bytes = sum(parameter.nbytes for parameter in network.parameters())
    weights = Weights("transformer", total_bytes, tuple(sizes))
    side = 8 * arguments.latent
    given = step_arguments(network.config, side, side, device, text=TEXT_TOKENS, vision=TEXT_TOKENS)

    def run() -> Tensor:
        with torch.inference_mode():
            return network(**given)[0]

    def resident() -> tuple[Times, Tensor]:
        with closing(Resident(network, Staging(device))):
            return time_of(run, arguments.steps, device)

    whole, expected = resident()
    kept.add({"way": "resident", **whole})
    rows: list[dict[str, Any]] = []
    for share in arguments.shares:
        row = measure_streamed(network, blocks, weights, share, arguments.steps, run, device)
        row["same_bits"] = torch.equal(row.pop("result"), expected)
        rows.append(row)
        kept.add({"way": "streamed", **row})
        # These runs alternate with the others, so that other load on the machine affects all of them.
        for kind, more in resident()[0].items():
            whole[kind] += more
    others = {
        name: {**times, "same_bits": torch.equal(result, expected)}
        for name, (times, result) in measure_others(network, run, arguments.steps, device, folder).items()
    }
    for name, found in others.items():
        kept.add({"way": name, **found})
    for found in (*rows, *others.values()):
        found["ratio"], found["cpu_ratio"] = (min(found[kind]) / min(whole[kind]) for kind in whole)
    return {
        "device": str(device), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "blocks": len(blocks), "weights_bytes": total_bytes, "resident": whole,
        "streamed": rows, "others": others,
    }  # fmt: skip


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    lines = [
        f"{result['blocks']} blocks, {result['weights_bytes'] / 2**20:.0f} MiB: "
        f"resident {min(result['resident']['seconds']):.3f} s a step, "
        f"{min(result['resident']['cpu_seconds']):.3f} s of the CPU's time"
    ]

    def reported(found: dict[str, Any]) -> str:
        bits = "the same bits" if found["same_bits"] else "OTHER BITS"
        ratios = f"{found['ratio']:.3f} of resident, {found['cpu_ratio']:.3f} of its CPU time"
        return f"{min(found['seconds']):.3f} s, {ratios}; {bits}"

    for row in result["streamed"]:
        lines.append(
            f"{row['streamed_blocks']:>3} streamed: {reported(row)}; {row['copied_bytes'] / 2**20:.1f} of "
            f"{row['planned_bytes'] / 2**20:.1f} MiB a step in {row['copying_seconds']:.3f} s, "
            f"{row['hidden']:.0%} of it while the network computed; {row['waiting_seconds']:.3f} s of waiting"
        )
    lines += [f"{name}: {reported(other)}" for name, other in result["others"].items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the figures; return 1 if a result or a count of bytes is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", type=int, default=8, help="number of attention heads, of 128 values each")
    parser.add_argument("--double", type=int, default=4)
    parser.add_argument("--single", type=int, default=8)
    parser.add_argument("--published", action="store_true", help="take the published transformer's size")
    parser.add_argument("--latent", type=int, default=32, help="side of the latents; a multiple of 16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.25, 0.5, 1.0], help="of blocks to stream"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Rows(__file__) as rows:
        result = measure(arguments, Path(folder), rows)
    if rows.is_interrupted:
        return rows.exit_code()
    sys.stdout.write(json.dumps(result, indent=2) + "\n" if arguments.json else as_text(result))
    is_right = all(
        row["same_bits"] and row["copied_bytes"] == row["planned_bytes"] for row in result["streamed"]
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The cost of the convolution ladder if nothing fails: decodes with and without it, side by side.

    python benchmarks/conv_ladder.py [--model demo] [--size 128] [--latents 5] [--repeat 15] [--json]

Runs of both kinds alternate, in changing order, after two warm-up runs of each. A second figure has less
noise: the time that the ladder adds to one call, multiplied by the number of calls of a decode. Both kinds
must give the same bytes.

    python benchmarks/conv_ladder.py --rungs fp32 bf16 fp16

This measures the time that each rung takes for all convolutions of that decode, and the error of its results
compared with fp64, in roundings of the dtype (root mean square; a single rounding at the end gives 1).
"""

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from cache.conv_rungs import RUNGS, ConvCase, Convolution  # noqa: E402
from diffusers_helper.loading.loaders import load_models  # noqa: E402
from diffusers_helper.miopen_fallback import initialize_miopen_fallback  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402

GOAL = 0.01
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """Return the wall time of one run, until the device has finished it."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def side_by_side(vae: Any, latents: Tensor, repeat: int, rows: Rows) -> dict[str, Any]:
    """Return the seconds of decodes with and without the ladder, of which each is a row."""
    handler = initialize_miopen_fallback()
    seconds: dict[str, list[float]] = {"plain": [], "ladder": []}
    results: dict[str, Tensor] = {}

    def decode(name: str) -> None:
        results[name] = vae.decode(latents, return_dict=False)[0]

    for number in range(-2, repeat):
        for name in ("plain", "ladder") if number % 2 else ("ladder", "plain"):
            if name == "ladder":
                handler.install(vae)
            taken = seconds_of(lambda name=name: decode(name), latents.device)
            handler.remove()
            if number >= 0:
                seconds[name].append(taken)
                rows.add({"way": name, "seconds": taken})
    assert torch.equal(results["plain"], results["ladder"])
    pairs = [ladder / plain for ladder, plain in zip(seconds["ladder"], seconds["plain"], strict=True)]
    assert handler.ladder is not None
    return {
        "seconds": seconds,
        "ratio_of_medians": statistics.median(seconds["ladder"]) / statistics.median(seconds["plain"]),
        "ratio_of_fastest": min(seconds["ladder"]) / min(seconds["plain"]),
        "median_of_ratios": statistics.median(pairs),
        "calls": handler.ladder.successes["miopen"] // (repeat + 2),
    }


def added_to_a_call(device: torch.device) -> float:
    """Return the seconds that the ladder adds to a call, from the fastest runs of a tiny convolution."""
    conv, x = nn.Conv3d(1, 1, 1).to(device), torch.zeros(1, 1, 1, 1, 1, device=device)

    def thousand() -> None:
        for _ in range(1000):
            conv(x)

    handler, taken = initialize_miopen_fallback(), {"plain": [], "ladder": []}
    for _ in range(20):
        taken["plain"].append(seconds_of(thousand, device))
        with handler.install(conv):
            taken["ladder"].append(seconds_of(thousand, device))
    return (min(taken["ladder"]) - min(taken["plain"])) / 1000


def time_rungs(vae: Any, latents: Tensor, dtypes: list[str], repeat: int) -> Iterator[dict[str, Any]]:
    """Yield the time and the error of each rung in each dtype, one row each."""
    cases: dict[ConvCase, None] = {}
    with initialize_miopen_fallback(on_first_call=lambda case, _: cases.setdefault(case)).install(vae):
        vae.decode(latents, return_dict=False)
    for name in dtypes:
        rungs = {rung: {"milliseconds": 0.0, "roundings": 0.0} for rung in RUNGS}
        for case in cases:
            call, exact = random_call(case, DTYPES[name], latents.device)
            # The error of rounding to nearest is uniform up to half a step: 1 / sqrt(12) of a step (rms).
            step = torch.finfo(DTYPES[name]).eps * exact.abs().log2().floor().exp2()
            for rung, row in rungs.items():
                if not RUNGS[rung].supports(case):
                    continue
                found = RUNGS[rung].run(*call)
                error = (found.double().cpu() - exact).square().mean() * 12 / step.square().mean()
                row["roundings"] = max(row["roundings"], float(error.sqrt()))
                run = functools.partial(RUNGS[rung].run, *call)
                row["milliseconds"] += 1000 * min(seconds_of(run, latents.device) for _ in range(repeat))
        tried = {rung: row for rung, row in rungs.items() if row["milliseconds"]}  # some need another card
        yield from ({"dtype": name, "rung": rung, "shapes": len(cases), **row} for rung, row in tried.items())


def random_call(
    case: ConvCase, dtype: torch.dtype, device: torch.device
) -> tuple[tuple[Tensor, Convolution], Tensor]:
    """Return a random input and convolution for a case, and their result in fp64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.shape, generator=generator).to(dtype)
    weight = (torch.randn(case.weight, generator=generator) / math.prod(case.weight[1:]) ** 0.5).to(dtype)
    bias = torch.randn(case.weight[0], generator=generator).to(dtype)
    rest = (case.stride, case.padding, case.dilation, case.groups)
    exact = functional.conv3d(x.double(), weight.double(), bias.double(), *rest)
    return (x.to(device), Convolution(weight.to(device), bias.to(device), *rest)), exact


def print_rungs(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print a line for each row, or all rows as JSON."""
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for row in rows:
        sys.stdout.write(
            f"{row['dtype']} {row['rung']:<7} {row['milliseconds']:9.1f} ms for {row['shapes']} shapes, "
            f"{row['roundings']:.2f} roundings\n"
        )


def main() -> int:
    """Print the figures; return 1 if the ladder costs more than the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--size", type=int, default=128, help="side of the video in pixels")
    parser.add_argument("--latents", type=int, default=5, help="latent frames")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--rungs", nargs="+", choices=tuple(DTYPES), metavar="DTYPE", help="time every rung instead"
    )
    arguments = parser.parse_args()
    off = initialize_miopen_fallback(rung="off")
    models = load_models(find_model(arguments.model, allow_folder=True), convolutions=off)
    vae, device = models.component("vae").to(models.device), models.device
    shape = (1, 16, arguments.latents, arguments.size // 8, arguments.size // 8)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, vae.dtype)
    with torch.inference_mode(), Rows(__file__) as rows:
        if arguments.rungs:
            for row in time_rungs(vae, latents, arguments.rungs, arguments.repeat):
                rows.add(row)
        else:
            figures = side_by_side(vae, latents, arguments.repeat, rows)
            figures["seconds_added_to_a_call"] = added_to_a_call(device)
    if arguments.rungs:
        print_rungs(rows, arguments.json)
    if arguments.rungs or rows.is_interrupted:
        return rows.exit_code()
    plain = min(figures["seconds"]["plain"])
    figures["share"] = figures["calls"] * figures["seconds_added_to_a_call"] / plain
    if arguments.json:
        facts = {"model": arguments.model, "torch": torch.__version__, "device": str(device)}
        sys.stdout.write(json.dumps({**facts, **figures}, indent=2) + "\n")
    else:
        sys.stdout.write(
            f"decode {plain:.3f} s, with the ladder times {figures['median_of_ratios']:.4f} (pairs), "
            f"{figures['ratio_of_medians']:.4f} (medians), {figures['ratio_of_fastest']:.4f} (fastest)\n"
            f"{figures['calls']} calls, {figures['seconds_added_to_a_call'] * 1e6:.1f} us added to each: "
            f"{figures['share']:.3%} of a decode; goal below {GOAL:.0%}\n"
        )
    return 0 if figures["share"] < GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())

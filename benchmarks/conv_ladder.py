"""What the convolution ladder costs where nothing fails: decodes with it and without it, side by side.

    python benchmarks/conv_ladder.py [--model demo] [--size 128] [--latents 5] [--repeat 15] [--json]

Runs of both alternate, in turns of changing order, after two that do not count. Next to it, and with less
noise: the time that the ladder adds to one call, times the calls of a decode. Both must give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, Python looks in benchmarks/ only

from diffusers_helper.loaders import load_models  # noqa: E402
from diffusers_helper.miopen_fallback import initialize_miopen_fallback  # noqa: E402
from diffusers_helper.registry import find_model  # noqa: E402

GOAL = 0.01


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one run, with all that it has put on the device."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def side_by_side(vae: Any, latents: Tensor, repeat: int) -> dict[str, Any]:
    """Seconds of decodes with and without the ladder."""
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
    """Seconds that the ladder adds to a convolution so small that nothing else counts, the least of many."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--size", type=int, default=128, help="pixels a side")
    parser.add_argument("--latents", type=int, default=5, help="latent frames")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    off = initialize_miopen_fallback(rung="off")
    models = load_models(find_model(arguments.model, allow_folder=True), convolutions=off)
    vae, device = models.part("vae").to(models.device), models.device
    shape = (1, 16, arguments.latents, arguments.size // 8, arguments.size // 8)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, vae.dtype)
    with torch.inference_mode():
        figures = side_by_side(vae, latents, arguments.repeat)
        figures["seconds_added_to_a_call"] = added_to_a_call(device)
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

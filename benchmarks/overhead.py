"""The wall times of `generate` and of diffusers' own pipeline for the same work, in one process.

    python benchmarks/overhead.py [--model demo] [--seconds 5] [--steps 10] [--repeat 5] [--json]

Both use the same loaded parts, Euler steps, picture, prompt and length, and both end with an MP4 of as many
frames: `generate` writes its growing video, previews and latents; diffusers' frames are encoded once, at the
end, with the same encoder settings. The runs alternate after one warm-up run of each.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from benchmarks.whole_jobs import load_whole, read_arguments, request_of  # noqa: E402
from diffusers_helper.families.framepack import PARTS  # noqa: E402
from diffusers_helper.families.packing import plan_sections  # noqa: E402
from diffusers_helper.loading.loaders import Models  # noqa: E402
from diffusers_helper.output.video import GrowingVideo  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402

SAMPLING_TYPES = {"inverted": "inverted_anti_drifting", "forward": "vanilla"}


def diffusers_run(models: Models, request: GenerationRequest, folder: Path) -> int:
    """Make the video with diffusers' pipeline, and return its number of frames."""
    parts: dict[str, Any] = {name: models.part(name) for name in PARTS}
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipeline = HunyuanVideoFramepackPipeline(**parts, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    picture = Image.open(request.image)
    frames = pipeline(
        image=picture,
        prompt=request.prompt,
        height=picture.height,
        width=picture.width,
        num_frames=33 * len(plan_sections(request.seconds)),
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        sampling_type=SAMPLING_TYPES[request.mode],
        output_type="np",
    ).frames[0]
    video = GrowingVideo(
        folder, width=picture.width, height=picture.height, mode=request.mode, crf=request.crf
    )
    video.add_section((frames * 255).round().astype(np.uint8))
    video.finish()
    return len(frames)


def our_run(models: Models, request: GenerationRequest, folder: Path) -> int:
    """Make the video with `generate`, and return its number of frames."""
    return generate(request, models, folder=folder).frames


def measure(
    models: Models, request: GenerationRequest, repeat: int, scratch: Path, rows: Rows
) -> dict[str, Any]:
    """Run both in turn, each time with a row, and return their seconds without the first run of each."""
    runs: dict[str, Callable[[Models, GenerationRequest, Path], int]] = {
        "longtake": our_run, "diffusers": diffusers_run,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeat + 1):
        names = list(runs) if number % 2 else list(runs)[::-1]
        for name in names:
            start = time.perf_counter()
            frames = runs[name](models, request, scratch / f"{name}-{request.mode}-{number}")
            seconds[name].append(time.perf_counter() - start)
            rows.add({"mode": request.mode, "way": name, "number": number, "seconds": seconds[name][-1]})
            assert frames == plan_sections(request.seconds).total_frames
    counted = {name: values[1:] for name, values in seconds.items()}
    medians = {name: statistics.median(values) for name, values in counted.items()}
    return {
        "mode": request.mode,
        "frames": plan_sections(request.seconds).total_frames,
        "steps": request.steps,
        "seconds": counted,
        "median": medians,
        "fastest": {name: min(values) for name, values in counted.items()},
        "ratio": medians["longtake"] / medians["diffusers"],
        "ratio_of_fastest": min(counted["longtake"]) / min(counted["diffusers"]),
    }


def line(result: dict[str, Any]) -> str:
    """Return the figures of one mode as a line of text."""
    ours, theirs = result["median"]["longtake"], result["median"]["diffusers"]
    return (
        f"{result['mode']:>8}: {result['frames']} frames, {result['steps']} steps: longtake {ours:.2f} s, "
        f"diffusers {theirs:.2f} s, ratio {result['ratio']:.3f} "
        f"(of the fastest runs {result['ratio_of_fastest']:.3f})\n"
    )


def main() -> int:
    """Print the figures of each mode; return 1 if diffusers is faster in one of them."""
    arguments = read_arguments(__doc__, seconds=5.0, steps=10, repeat=5)
    models = load_whole(arguments.model)
    results = []
    with tempfile.TemporaryDirectory() as scratch, Rows(__file__) as rows:
        for mode in models.info.modes:
            request = request_of(arguments, models, Path(scratch), mode=mode, sampler="euler")
            results.append(measure(models, request, arguments.repeat, Path(scratch), rows))
    if arguments.json:
        report = {"model": arguments.model, "torch": torch.__version__, "threads": torch.get_num_threads()}
        sys.stdout.write(json.dumps({**report, "results": results}, indent=2) + "\n")
    else:
        sys.stdout.write("".join(line(result) for result in results))
    return rows.exit_code(0 if all(result["ratio"] <= 1 for result in results) else 1)


if __name__ == "__main__":
    raise SystemExit(main())

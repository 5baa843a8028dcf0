"""Measure each step cache's speed and deviation, with and without guidance, and MagCache's magnitudes.

A cache is compared with the same section without one. Times are processor time of the sampling alone. With
`--calibrate`, the magnitudes of a model are printed as `longtake.json` takes them. With `--deep`, a narrow
transformer of FramePack's depth (20 dual and 40 single blocks, random weights) tells the time alone.

    python -m benchmarks.step_caches --plot docs/media/step-caches.svg
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from benchmarks.rows import Rows
from benchmarks.whole_jobs import load_whole, write_picture
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import frame_indices
from diffusers_helper.families.step_caches import OFF, STEP_CACHES
from diffusers_helper.framepack import work
from diffusers_helper.framepack.work import FramePackCondition, FramePackDenoiser, TextCondition
from diffusers_helper.job.setup import OpenJob, open_job
from diffusers_helper.job.work import encode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import denoise
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling import sampler
from diffusers_helper.sampling.guidance import CleanLatents
from diffusers_helper.sampling.schedule import flow_sigmas, noise_for
from diffusers_helper.sampling.step_cache import PassesByBlocks, open_passes

PROMPTS = ("the red ball moves right", "the camera zooms in")
_NO_RULE = replace(STEP_CACHES["magcache"], rule=lambda steps, mag_ratios: lambda step, change: False)


@dataclass(frozen=True)
class Figure:
    """The figures of one cache: its speed and how far the latents are from those without it."""

    name: str
    cfg: float
    computed: int
    speed: float
    deviation: float

    @property
    def row(self) -> str:
        decibels = f"{-20 * math.log10(self.deviation):.1f} dB" if self.deviation else ""
        return (
            f"{self.name:16} cfg {self.cfg:g}  {self.computed:2} computed  {self.speed:.2f} times  "
            f"{f'{100 * self.deviation:.2f} %  {decibels}' if self.deviation else ''}"
        )


@contextmanager
def jobs(models: Models, steps: int, **settings: Any) -> Iterator[Iterator[tuple[OpenJob, Any, Any, Any]]]:
    """Yield, for each prompt, an open job with its first section, the section's condition and its context."""
    with tempfile.TemporaryDirectory(prefix="longtake-") as folder, torch.inference_mode():
        picture = Path(folder) / "picture.png"
        write_picture(
            picture, *models.info.family.nearest_bucket(3, 4, models.info.side, models.info.multiple)
        )

        def each() -> Iterator[tuple[OpenJob, Any, Any, Any]]:
            for number, prompt in enumerate(PROMPTS):
                request = GenerationRequest(
                    image=str(picture), prompt=prompt, model=models.info.name, seconds=1.2, steps=steps,
                    seed=100 + number, **settings,
                )  # fmt: skip
                job = open_job(request, models, folder=Path(folder) / str(number))
                with job.memory:
                    job.load()
                    encodings = encode(job, work)
                    section = job.sections[0]
                    history = work.history(job, encodings)
                    yield job, section, work.condition(job, section, encodings), history.context(section)

        yield each()


def timed(make: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Return the processor time of `make`, and what it made."""
    begin = time.process_time()
    made = make()
    return time.process_time() - begin, made


def compare(models: Models, steps: int, cfg: float, rows: Rows) -> list[Figure]:
    """Return the figures of each cache, as means over the prompts, of which each gives a row."""
    sums = {name: [0.0, 0.0, 0] for name in (OFF, *STEP_CACHES)}
    with jobs(models, steps, cfg=cfg) as opened:
        for job, section, condition, context in opened:
            denoise(job, section, condition, context)  # loads what later runs find loaded
            exact = torch.zeros(())
            for name, total in sums.items():
                one = replace(job, request=replace(job.request, step_cache=name))
                seconds, latents = timed(partial(denoise, one, section, condition, context))
                exact = latents if name == OFF else exact
                deviation = float((latents - exact).abs().mean() / exact.abs().mean())
                computed = steps - job.report.skipped
                rows.add({
                    "name": name, "cfg": cfg, "prompt": one.request.prompt, "seconds": seconds,
                    "deviation": deviation, "computed": computed,
                })  # fmt: skip
                total[0] += seconds
                total[1] += deviation / len(PROMPTS)
                total[2] += computed
    return [
        Figure(name, cfg, round(count / len(PROMPTS)), sums[OFF][0] / seconds, deviation)
        for name, (seconds, deviation, count) in sums.items()
    ]


class _Recorder(PassesByBlocks):
    """A runner that computes all passes and records the ratio of what the blocks add to that before."""

    def __init__(self, steps: int, network: Any, noisy: Tensor) -> None:
        super().__init__(_NO_RULE, steps, (1.0,), network, work.blocks(network, noisy))
        self.ratios: list[float] = []
        self._before: Tensor | None = None

    def __call__(self, branch: str, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        result = super().__call__(branch, x, compute)
        norms = self._branches[branch].tensors["added"].float().norm(dim=-1)
        self.ratios.append(1.0 if self._before is None else float((norms / self._before).mean()))
        self._before = norms
        return result


def calibrate(models: Models, steps: int, kept: Rows) -> dict[str, list[float]]:
    """Return a model's magnitudes by order, as means over the prompts; each order gives a row."""
    found: dict[str, list[float]] = {}
    for mode in models.info.modes:
        rows: list[list[float]] = []
        with jobs(models, steps, mode=mode) as opened:
            for job, section, condition, context in opened:
                record = partial(_record, job, condition, context, rows)
                job.memory.run("sample", record, section.number)
        found[mode] = [round(sum(column) / len(column), 5) for column in zip(*rows, strict=True)]
        kept.add({"mode": mode, "magnitudes": found[mode]})
    return found


def _record(job: OpenJob, condition: Any, context: Any, rows: list[list[float]], network: Any) -> Tensor:
    """Sample a section, and add its ratios to the rows."""
    request = job.request
    noisy = noise_for(request.seed, "noise", 1, job.latents_shape(job.sections.latent_window_size))
    recorder = _Recorder(request.steps, network, noisy)
    with recorder.attached():
        denoiser = work.denoiser(network, condition, context, recorder)
        made = sampler(request.sampler)(denoiser, noisy, work.sigmas(job, request))
    rows.append(recorder.ratios)
    return made


def deep(steps: int) -> Figure:
    """Return the speed of MagCache, with FramePack's own magnitudes, on 20 dual and 40 single blocks."""
    torch.manual_seed(1)
    network = HunyuanVideoFramepackTransformer3DModel(
        num_attention_heads=2, attention_head_dim=32, rope_axes_dim=(8, 12, 12), num_layers=20,
        num_single_layers=40, text_embed_dim=32, pooled_projection_dim=32, image_proj_dim=32,
        has_image_proj=True, has_clean_x_embedder=True,
    ).eval()  # fmt: skip
    start, *history = (torch.randn(1, 16, count, 16, 16) for count in (1, 1, 2, 16))
    text = TextCondition(torch.randn(1, 20, 32), torch.randn(1, 32))
    condition = FramePackCondition(
        positive=text,
        negative=None,
        image_embeds=torch.randn(1, 16, 32),
        guidance=10.0,
        cfg=1.0,
        cfg_rescale=0.0,
    )
    context = CleanLatents(frame_indices("inverted"), start, *history)
    noise = torch.randn(1, 16, 9, 16, 16)

    def run(name: str) -> tuple[float, int]:
        with open_passes(
            STEP_CACHES.get(name),
            steps,
            FRAMEPACK.mag_ratios["inverted"],
            network,
            work.blocks(network, noise),
        ) as passes:
            denoiser = FramePackDenoiser(network, condition, context, passes)
            seconds, _ = timed(lambda: sampler("unipc")(denoiser, noise, flow_sigmas(steps, 7.0)))
            return seconds, steps - passes.skipped

    with torch.inference_mode():
        run(OFF)
        whole, cached = run(OFF), run("magcache")
    return Figure("magcache", 1, cached[1], whole[0] / cached[0], 0.0)


_SIZE, _EDGE = (640, 400), 60


def plot(figures: Sequence[Figure]) -> str:
    """Return an SVG of speed to the right and deviation upwards; guidance has open circles."""
    width, height = _SIZE
    most_speed = math.ceil(max(one.speed for one in figures))
    most = max(one.deviation for one in figures) * 1.1

    def place(one: Figure) -> tuple[float, float]:
        right = (one.speed - 0.8) / (most_speed - 0.8)
        return _EDGE + right * (width - 3 * _EDGE), height - _EDGE - one.deviation / most * (
            height - 2 * _EDGE
        )

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{_EDGE} {_EDGE}V{height - _EDGE}H{width - _EDGE}" fill="none" stroke="black"/>',
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">times the speed with none</text>',
        f'<text x="{_EDGE}" y="{_EDGE - 15}">mean deviation of the latents (filled: cfg 1; open: 2)</text>',
    ]  # fmt: skip
    for speed in range(1, most_speed + 1):
        x, _ = place(Figure("", 1, 0, speed, 0))
        lines.append(f'<text x="{x:.0f}" y="{height - _EDGE + 18}" text-anchor="middle">{speed}</text>')
    for one in figures:
        x, y = place(one)
        fill = "black" if one.cfg == 1 else "white"
        lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{fill}" stroke="black"/>')
        lines.append(f'<text x="{x + 8:.0f}" y="{y + 4:.0f}">{one.name} {100 * one.deviation:.1f} %</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def measure(arguments: argparse.Namespace, rows: Rows) -> None:
    """Measure what the command line asks for, and print it."""
    if arguments.deep:
        figure = deep(arguments.steps)
        rows.add(asdict(figure))
        sys.stdout.write(f"{figure.row}\n")
        return
    models = load_whole(arguments.model)
    if arguments.calibrate:
        sys.stdout.write(json.dumps({"magnitudes": calibrate(models, arguments.steps, rows)}) + "\n")
        return
    figures = [one for cfg in arguments.cfg for one in compare(models, arguments.steps, cfg, rows)]
    for one in figures:
        sys.stdout.write(f"{one.row}\n")
    if arguments.plot:
        arguments.plot.write_text(plot(figures), encoding="utf-8")


def main() -> int:
    """Read the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--cfg", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--calibrate", action="store_true", help="print the model's magnitudes")
    parser.add_argument("--deep", action="store_true", help="time a network of FramePack's depth")
    parser.add_argument("--plot", type=Path, help="the SVG to write")
    with Rows(__file__) as rows:
        measure(parser.parse_args(), rows)
    return rows.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())

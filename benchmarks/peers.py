"""The same video by this product, by diffusers' pipeline, and by the schedule of the original FramePack.

    python benchmarks/peers.py [--model demo|mid|full] [--sections 1 4] [--steps 10] [--plot SVG] [--json]

Each run has a process of its own, which first loads the model and makes one section with one step; only the
rest is measured. All runs have the same weights, picture, prompt, seed and number of sections, use Euler
steps and the same encoder, and no lossy cache. In all of them, threads sleep while they wait, so that the
processor's time is that of work. Ours have the other variables, too, with which the product starts its
engine. "chosen" has what a person can choose for speed, and "again" is a second job with the prompt and
picture of the first.

- diffusers: its pipeline, whose frames are encoded once, at the end.
- original: the original program cannot be imported without CUDA, so its schedule is replayed with the latents
  of our job: after each section it decodes as many latents, blends all pixels so far, and encodes all frames
  from the first one. The time of the encoders and of the transformer is that of diffusers' run. As it does
  in each step, the section's latents become colours by a linear map, and a picture as its page sends it.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from app.machine import this_profile  # noqa: E402
from benchmarks.rows import Rows  # noqa: E402
from benchmarks.whole_jobs import FULL, load_whole, request_of  # noqa: E402
from diffusers_helper.events import Event, Finished, SectionFinished, StepDone  # noqa: E402
from diffusers_helper.families.framepack import COMPONENTS  # noqa: E402
from diffusers_helper.families.packing import plan_sections  # noqa: E402
from diffusers_helper.loading.loaders import Models  # noqa: E402
from diffusers_helper.machine.limits import peak_host_bytes  # noqa: E402
from diffusers_helper.machine.local import Local  # noqa: E402
from diffusers_helper.output.previews import to_uint8  # noqa: E402
from diffusers_helper.output.video import GrowingVideo  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.planning.variables import engine_environment  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402

OURS = ("longtake", "chosen", "again")
PEERS = (*OURS, "diffusers", "original")
CHOSEN = {"attention": "sliced"}
SECONDS_PER_SECTION = 1.2
GOAL_OF_ALL, GOAL_OUTSIDE = 0.60, 0.5


@dataclass
class Run:
    """The figures of one run.

    Attributes:
        wall, cpu: The seconds that it took, and the processor's seconds in the whole process.
        forwards_wall, forwards_cpu: The share of the transformer's forward passes in these.
        encoders_wall, encoders_cpu: The share of the encoders of texts and of the picture.
        first_preview, first_video: The seconds until something could be seen, and played; None for never.
        device_bytes, own_bytes: The peak of the tensors, where they are counted, and of the process.
        streamed_bytes: The bytes of weights that were copied to the device while it computed.
        decoded, encoded: The numbers of frames.
        encoders: The number of times that an encoder of texts or of the picture's content has run.
    """

    peer: str
    sections: int
    wall: float = 0.0
    cpu: float = 0.0
    forwards_wall: float = 0.0
    forwards_cpu: float = 0.0
    encoders_wall: float = 0.0
    encoders_cpu: float = 0.0
    first_preview: float | None = None
    first_video: float | None = None
    device_bytes: int = 0
    own_bytes: int = 0
    streamed_bytes: int = 0
    decoded: int = 0
    encoded: int = 0
    encoders: int = 0

    @property
    def outside(self) -> float:
        """Return the processor's seconds outside of the transformer's forward passes."""
        return self.cpu - self.forwards_cpu


@dataclass
class Watch:
    """A watch of a model's networks and of the encoder of video, which fills in a run."""

    run: Run
    begun: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))

    @property
    def now(self) -> float:
        return time.perf_counter() - self.begun[0]

    @contextmanager
    def over(self, models: Models) -> Iterator[None]:
        """Count within the context."""
        run, at = self.run, [0.0, 0.0]

        def before(*_: Any) -> None:
            at[:] = time.perf_counter(), time.process_time()

        def after(*_: Any) -> None:
            run.forwards_wall += time.perf_counter() - at[0]
            run.forwards_cpu += time.process_time() - at[1]

        def encoded_with(*_: Any) -> None:
            run.encoders_wall += time.perf_counter() - at[0]
            run.encoders_cpu += time.process_time() - at[1]

        def decoded(module: Any, inputs: Any, frames: torch.Tensor) -> None:
            run.decoded += frames.shape[2]

        def encoder_ran(*_: Any) -> None:
            run.encoders += 1

        encode = GrowingVideo._encode  # pyright: ignore[reportPrivateUsage]

        def encoded(video: GrowingVideo, path: Path, frames: np.ndarray, x264: str) -> None:
            run.encoded += len(frames)
            encode(video, path, frames, x264)

        transformer, vae = models.component("transformer"), models.component("vae")
        encoders = [models.component(name) for name in ("text_encoder", "text_encoder_2", "image_encoder")]
        hooks = [
            *(part.register_forward_pre_hook(before) for part in (transformer, vae.encoder, *encoders)),
            transformer.register_forward_hook(after),
            vae.decoder.register_forward_hook(decoded),
            *(part.register_forward_hook(encoded_with) for part in (vae.encoder, *encoders)),
            *(part.register_forward_hook(encoder_ran) for part in encoders),
        ]
        with ExitStack() as stack:
            for hook in hooks:
                stack.callback(hook.remove)
            stack.enter_context(patch.object(GrowingVideo, "_encode", encoded))
            yield
            run.wall, run.cpu = self.now, time.process_time() - self.begun[1]
            run.own_bytes = peak_host_bytes()


def by_longtake(
    models: Models, request: GenerationRequest, folder: Path, watch: Watch, local: Local | None = None
) -> None:
    """Make the video with `generate`, and keep its latents for the replay."""
    run = watch.run

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.preview and run.first_preview is None:
            run.first_preview = watch.now
        elif isinstance(event, SectionFinished) and run.first_video is None:
            run.first_video = watch.now
        elif isinstance(event, Finished):
            run.device_bytes, run.streamed_bytes = event.peak_device_bytes, event.bytes_streamed

    result = generate(request, models, folder=folder, on_event=on_event, local=local)
    save_file({"latents": result.latents.contiguous()}, folder.parent / "latents.safetensors")


def plain_vae(models: Models) -> Any:
    """Return the model's VAE as diffusers makes it, without our enlargement."""
    ours = models.component("vae")
    plain = type(ours).from_config(ours.config).eval().requires_grad_(False)
    plain.load_state_dict(ours.state_dict())
    return torch.nn.Module.to(plain, ours.dtype)


def by_diffusers(models: Models, request: GenerationRequest, folder: Path, watch: Watch) -> None:
    """Make the video with diffusers' pipeline, and encode it at the end."""
    from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoFramepackPipeline

    parts: dict[str, Any] = {name: models.component(name) for name in COMPONENTS}
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipeline: Any = HunyuanVideoFramepackPipeline(**parts, scheduler=scheduler).to(models.device)
    pipeline.set_progress_bar_config(disable=True)
    picture = Image.open(request.image)
    frames = pipeline(
        image=picture, prompt=request.prompt, height=picture.height, width=picture.width,
        num_frames=33 * len(plan_sections(request.seconds)), num_inference_steps=request.steps,
        guidance_scale=request.guidance, generator=torch.Generator("cpu").manual_seed(request.seed),
        sampling_type="inverted_anti_drifting", output_type="np",
    ).frames[0]  # fmt: skip
    _one_shot(folder, (frames * 255).round().astype(np.uint8), request)
    watch.run.first_video = watch.now
    if models.device.type == "cuda":
        watch.run.device_bytes = torch.cuda.max_memory_allocated()


def by_original(models: Models, request: GenerationRequest, folder: Path, watch: Watch) -> None:
    """Do what the original does between its transformer's passes, in inverted order."""
    latents = load_file(folder.parent / "latents.safetensors")["latents"]
    vae, count = models.component("vae"), len(plan_sections(request.seconds))
    dtype = models.compute_dtype("vae") or models.stored_dtype("vae")
    window, pixels = (latents.shape[2] - 1) // count, None
    for number in range(1, count + 1):
        begin = 0 if number == count else latents.shape[2] - number * window
        size = (2 if number > 1 else 1) * window + (number == count)
        for _ in range(request.steps):
            _show(latents[:, :, begin : begin + window])
            watch.run.first_preview = watch.run.first_preview or watch.now
        with torch.inference_mode():
            part = latents[:, :, begin : begin + size] / vae.config.scaling_factor
            made = vae.decode(part.to(models.device, dtype)).sample.float().cpu()
        if pixels is None:
            pixels = made
        else:
            overlap = 4 * window - 3
            weight = torch.linspace(1, 0, overlap).view(1, 1, -1, 1, 1)
            met = weight * made[:, :, -overlap:] + (1 - weight) * pixels[:, :, :overlap]
            pixels = torch.cat([made[:, :, :-overlap], met, pixels[:, :, overlap:]], dim=2)
        _one_shot(folder / str(number), to_uint8(pixels[0].permute(1, 2, 3, 0)), request)
        watch.run.first_video = watch.run.first_video or watch.now


def _show(latents: torch.Tensor) -> None:
    """Make a preview of latents (1, 16, T, h, w) as the original does, with some linear map."""
    colours = torch.nn.functional.conv3d(latents.float(), torch.full((3, 16, 1, 1, 1), 1 / 16)).clamp(0, 1)
    frames = (colours * 255).numpy().astype(np.uint8)[0].transpose(2, 1, 3, 0)  # (h, T, w, 3)
    Image.fromarray(frames.reshape(len(frames), -1, 3)).save(io.BytesIO(), "WEBP")


def _one_shot(folder: Path, frames: np.ndarray, request: GenerationRequest) -> None:
    height, width = frames.shape[1:3]
    folder.mkdir(parents=True)
    video = GrowingVideo(folder, width=width, height=height, mode=request.mode, crf=request.crf)
    video.add_section(frames)
    video.finish()


def measure(arguments: argparse.Namespace) -> Run:
    """Make one run in this process."""
    peer, scratch = arguments.peer, Path(arguments.scratch)
    arguments.seconds = SECONDS_PER_SECTION * arguments.sections[0]
    device = "cpu" if arguments.cpu else None
    models = load_whole(arguments.model, device, scratch.parent / FULL)
    settings = {"mode": "inverted", "sampler": "euler"} | (CHOSEN if peer == "chosen" else {})
    request = request_of(arguments, models, scratch, **settings)
    shorter = argparse.Namespace(**{**vars(arguments), "seconds": SECONDS_PER_SECTION, "steps": 1})
    short = request_of(shorter, models, scratch, **settings)
    work: Callable[..., None] = {"diffusers": by_diffusers, "original": by_original}.get(peer, by_longtake)
    options = {"local": Local({}, scratch / "cache")} if peer == "again" else {}
    first = short if peer != "again" else request  # the first job, which fills the cache of encodings
    if peer in ("diffusers", "original"):  # `generate` casts the weights itself
        plain, ours = plain_vae(models), models.component
        patch.object(models, "component", lambda name: plain if name == "vae" else ours(name)).start()
        for name in COMPONENTS:
            if isinstance(models.component(name), torch.nn.Module) and (dtype := models.compute_dtype(name)):
                models.component(name).to(dtype)
        plain.to(models.device)
    if peer != "original":
        work(models, first, scratch / f"{peer}-first", Watch(Run(peer, 1)), **options)
    watch = Watch(Run(peer, arguments.sections[0]))
    with watch.over(models):
        work(models, request, scratch / peer, watch, **options)
    return watch.run


def completed(runs: dict[str, Run], steps: int) -> None:
    """Add the encoders and the transformer of diffusers' run to the replay of the original's schedule."""
    replay, whole = runs["original"], runs["diffusers"]
    replay.forwards_wall, replay.forwards_cpu = whole.forwards_wall, whole.forwards_cpu
    replay.wall += whole.forwards_wall + whole.encoders_wall
    replay.cpu += whole.forwards_cpu + whole.encoders_cpu
    replay.encoders = whole.encoders
    a_section = whole.forwards_wall / replay.sections
    replay.first_video = (replay.first_video or 0) + whole.encoders_wall + a_section
    replay.first_preview = (replay.first_preview or 0) + whole.encoders_wall + a_section / steps


def table(runs: Sequence[Run]) -> str:
    """Return the figures as a table, with the ratios that have goals."""
    lines = [
        "peer      sections  wall s   cpu s  outside  preview    video  tensors      own  streamed  decoded"
        "  encoded  encoders"
    ]
    for run in runs:
        times = (run.first_preview, run.first_video)
        seen = [" never" if value is None else f"{value:6.2f}" for value in times]
        sizes = [f"{size / 1e6:5.0f} MB" for size in (run.device_bytes, run.own_bytes, run.streamed_bytes)]
        lines.append(
            f"{run.peer:10}{run.sections:8}{run.wall:8.2f}{run.cpu:8.2f}{run.outside:9.2f}   {seen[0]}   "
            f"{seen[1]} {sizes[0]} {sizes[1]}  {sizes[2]}{run.decoded:9}{run.encoded:9}{run.encoders:10}"
        )
    for count in sorted({run.sections for run in runs}):
        by_peer = {run.peer: run for run in runs if run.sections == count}
        ours = by_peer["longtake"]
        of_all, chosen = (by_peer[peer].cpu / by_peer["diffusers"].cpu for peer in ("longtake", "chosen"))
        lines.append(
            f"{count} sections: {of_all:.2f} of diffusers' processor time, {chosen:.2f} with what a person "
            f"can choose (goal {GOAL_OF_ALL}); outside of the transformer "
            f"{ours.outside / by_peer['original'].outside:.2f} of the original's (goal {GOAL_OUTSIDE})"
        )
    return "\n".join(lines) + "\n"


MEASURES = {
    "cpu": "processor time, s", "outside": "outside the transformer, s", "wall": "wall time, s",
    "first_preview": "first preview, s", "first_video": "first playable video, s",
    "own_bytes": "own memory, bytes", "streamed_bytes": "copied weights, bytes",
    "decoded": "decoded frames", "encoded": "encoded frames",
}  # fmt: skip
COLOURS = dict(zip(PEERS, ("#c2410c", "#15803d", "#f59e0b", "#1d4ed8", "#4b5563"), strict=True))


def plot(runs: Sequence[Run]) -> str:
    """Return an SVG picture of each measure over the number of sections, with a line for each peer."""
    longest = max(run.sections for run in runs)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 640" font-family="sans-serif">']
    for place, (peer, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{20 + 120 * place}" y="24" fill="{colour}">{peer}</text>')
    parts.append(f'<text x="520" y="24" fill="#888">1 to {longest} sections</text>')
    for place, (name, label) in enumerate(MEASURES.items()):
        most = max((getattr(run, name) or 0 for run in runs), default=0)
        parts.append(f'<g transform="translate({20 + 315 * (place % 3)} {50 + 195 * (place // 3)})">')
        parts.append('<path d="M0 20V170H290" fill="none" stroke="#888"/>')
        parts.append(f'<text y="12" font-size="13" fill="#888">{label}: up to {most:.4g}</text>')
        for peer, colour in COLOURS.items():
            points = [
                f"{290 * run.sections / longest:.1f},{170 - 145 * getattr(run, name) / (most or 1):.1f}"
                for run in runs
                if run.peer == peer and getattr(run, name) is not None
            ]
            line = f'fill="none" stroke="{colour}" stroke-width="2"'
            parts.append(f'<polyline points="{" ".join(points)}" {line}/>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def all_runs(arguments: argparse.Namespace, scratch: Path, rows: Rows) -> None:
    """Run each peer with each number of sections, each in a process of its own, and add the figures."""
    for count in arguments.sections:
        folder = scratch / str(count)
        folder.mkdir()
        runs: dict[str, Run] = {}
        for peer in PEERS:
            command = [sys.executable, __file__, "--peer", peer, "--scratch", str(folder)]
            command += ["--model", arguments.model, "--sections", str(count), "--steps", str(arguments.steps)]
            command += ["--cpu"] if arguments.cpu else []
            environ = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
            if peer in OURS:
                environ |= engine_environment(this_profile(environ).environment, environ)
            done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
            runs[peer] = Run(**json.loads(done.stdout))
        completed(runs, arguments.steps)
        for run in runs.values():
            rows.add(asdict(run))


def main() -> int:
    """Print the figures; return 1 if a goal is missed with the largest number of sections."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a model, `mid` or `full` for random weights")
    parser.add_argument("--sections", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compute on the CPU where there is a GPU, too")
    parser.add_argument("--plot", type=Path, help="write a plot of each measure to this SVG file")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        sys.stdout.write(json.dumps(asdict(measure(arguments))))
        return 0
    with tempfile.TemporaryDirectory() as scratch, Rows(__file__) as rows:
        if arguments.model == "mid":
            from tests.support.mid_model import Size, write_mid_model

            arguments.model = str(write_mid_model(Path(scratch, "mid"), Size()))
        all_runs(arguments, Path(scratch), rows)
    runs = [Run(**row) for row in rows]
    sys.stdout.write(json.dumps([asdict(run) for run in runs], indent=2) if arguments.json else table(runs))
    if arguments.plot and runs:
        arguments.plot.write_text(plot(runs), encoding="utf-8")
    by_peer = {run.peer: run for run in runs if run.sections == max(arguments.sections)}
    if not by_peer:
        return rows.exit_code(1)
    ours = by_peer["longtake"]
    of_all, outside = ours.cpu / by_peer["diffusers"].cpu, ours.outside / by_peer["original"].outside
    return rows.exit_code(0 if of_all <= GOAL_OF_ALL and outside <= GOAL_OUTSIDE else 1)


if __name__ == "__main__":
    raise SystemExit(main())

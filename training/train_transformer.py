"""The training of the transformer, and its checkpoint."""

import io
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from training.clips import Clips
from training.encoders import Encoders
from training.optim import Average, Optimizers
from training.quick import QuickTransformer, quick_dtype
from training.render import Renderer
from training.sampler import with_own_history
from training.tasks import Sides, Task, Tasks
from training.transformer import Conditions, draw_noise, flow_loss
from training.watch import Watch

LOG = logging.getLogger(__name__)
CHECKPOINT, DECODER, CURVE, SHEET = "transformer.pt", "decoder.pt", "curve.jsonl", "sheet.png"
PART_BYTES = 15 * 2**20  # what a lent machine gives back is limited to files of 16 MiB
STEPS_PER_SECOND = 3.0  # on one H100; only the change of the sides' shares depends on it


@dataclass(frozen=True)
class Plan:
    """The settings of a run: minutes of clock time, clips in a step at the smaller side, and the rest."""

    minutes: float
    clips: int = 180
    lr: float = 1.2e-3
    seed: int = 20261201
    save_seconds: float = 60.0
    sides: Sides = field(default_factory=Sides)


def factor(done: float, step: int) -> float:
    """Return the learning rate's factor: up for 60 steps, constant for 10 % of the time, then down to 3 %."""
    return min(1.0, (step + 1) / 60) * min(1.0, max(0.03, (1 - done) / 0.9))


def write_parts(path: Path, state: dict) -> None:
    """Write a checkpoint as files of limited size, ``NAME.0`` and so on, over an earlier one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, len(data), PART_BYTES)):
        part = path.with_name(f"{path.name}.{number}")
        part.with_suffix(".tmp").write_bytes(data[begin : begin + PART_BYTES])
        part.with_suffix(".tmp").replace(part)


def read_parts(path: Path) -> dict | None:
    """Return the checkpoint that ``write_parts`` wrote, or None."""
    parts = sorted(path.parent.glob(f"{path.name}.[0-9]"))
    if not parts:
        return None
    data = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    return torch.load(data, weights_only=True, map_location="cpu")


def halved(state: dict) -> dict:
    """Return an optimiser's state with its large tensors in bf16."""
    return {
        number: {name: value.bfloat16() if value.ndim > 1 else value for name, value in values.items()}
        for number, values in state.items()
    }


class Trainer:
    """A run. The number of a step determines everything random in it."""

    def __init__(
        self, start: Path, folder: Path, plan: Plan, vae: AutoencoderKLHunyuanVideo, renderer: Renderer
    ) -> None:
        self.folder, self.plan, self.device = folder, plan, renderer.device
        model = HunyuanVideoFramepackTransformer3DModel.from_pretrained(start / "transformer").float()
        self.model = model.train().to(self.device)
        self.optimiser = Optimizers(self.model, plan.lr, decay=0.02, plain=("x_embedder", "proj_out"))
        self.average = Average(self.model, 0.995)
        self.spent, self.step = 0.0, 0
        self._resume()
        dtype = quick_dtype(self.device)
        vae = vae.eval().requires_grad_(False).to(self.device, dtype)
        self.clips = Clips(vae, Encoders(start, self.device), renderer)
        self.quick = QuickTransformer(self.model, dtype)
        self.watch: Watch | None = None
        self.losses: list[torch.Tensor] = []
        self.tasks = self._tasks()
        self.encoded = self._encode_next()

    def _tasks(self) -> Iterator[Task]:
        workers = max(1, (os.cpu_count() or 1) - 2) if self.device.type != "cpu" else 0
        steps = max(1, round(60 * self.plan.minutes * STEPS_PER_SECOND))
        canvases = self.clips.renderer.count
        tasks = Tasks(self.plan.sides, self.plan.seed, self.plan.clips, canvases, steps)
        return tasks.following(self.step, workers)

    def _resume(self) -> None:
        state = read_parts(self.folder / CHECKPOINT)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.average.steps = self.step = state["step"]
            for name, value in state["average"].items():
                self.average.weights[name].copy_(value)
            self.spent = state["spent"]

    def save(self) -> None:
        """Write everything that a run needs to go on; what needs no precision is in bf16."""
        optimiser = self.optimiser.state_dict()
        for part in optimiser.values():
            part["state"] = halved(part["state"])
        average = {name: value.bfloat16() for name, value in self.average.weights.items()}
        state = {"model": self.model.state_dict(), "optimiser": optimiser, "average": average}
        write_parts(self.folder / CHECKPOINT, state | {"spent": self.spent, "step": self.step})

    def done(self) -> float:
        """Return the share of this run that is done."""
        return self.spent / (60 * self.plan.minutes)

    def _encode_next(self) -> tuple[Task, torch.Tensor, Conditions, Conditions]:
        task = next(self.tasks)
        return task, *self.clips.encode(task.batch)

    def train_step(self) -> None:
        """Make one step with the clips that are encoded, and encode the next ones."""
        task, latents, conditions, conditions_before = self.encoded
        generator = torch.Generator(self.device).manual_seed(task.seed)
        has_picture = task.batch.wanted[0] == 0
        if not has_picture:
            latents[:, :, :1] = draw_noise(latents[:, :, :1], generator)
        if task.before is not None:
            latents = with_own_history(self.quick, task.before, latents, conditions_before, generator)
        from_noise = not has_picture and task.section.start == 0
        losses = flow_loss(self.quick, task.section, latents, conditions, generator, from_noise=from_noise)
        losses.mean().backward()
        # A GPU is still busy with the backward pass. It gets its next work before the optimiser waits for it.
        self.encoded = self._encode_next()
        self.quick.pass_gradients()
        self.optimiser.step(factor(self.done(), self.step))
        self.quick.refresh()
        self.average.update(self.model)
        self.losses.append(losses.detach().mean())
        self.step += 1

    def report(self, videos: bool = False) -> None:
        """Log the loss and, by motion, the projections of the mean weights; with ``videos``, draw a sheet."""
        side = self.plan.sides.large
        if self.watch is None:
            self.watch = Watch.make(self.clips, (side, side))
        probe = HunyuanVideoFramepackTransformer3DModel.from_config(self.model.config).to(self.device)
        self.average.copy_to(probe)
        quick = QuickTransformer(probe.eval().requires_grad_(False), quick_dtype(self.device))
        line = {"step": self.step, "seconds": round(self.spent)}
        line |= {"loss": round(float(torch.stack(self.losses).mean()) if self.losses else 0.0, 4)}
        line |= {name: round(share, 2) for name, share in self.watch.projections(quick).items()}
        if videos:
            self.watch.draw_sheet(quick, self.clips.vae, self.folder / SHEET)
        text = json.dumps(line)
        LOG.info("%s", text)
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        self.losses = []

    def run(self, until: float) -> None:
        """Train until the time is spent or the clock shows ``until``; write a checkpoint each minute."""
        saved = time.perf_counter()
        while self.done() < 1 and time.perf_counter() < until:
            began = time.perf_counter()
            self.train_step()
            self.spent += time.perf_counter() - began
            if time.perf_counter() - saved > self.plan.save_seconds:
                self.save()
                self.report()
                saved = time.perf_counter()
        self.save()
        self.report(videos=self.done() >= 1)

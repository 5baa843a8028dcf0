"""The training of the transformer: small pictures first, then pictures of the product's size and shapes."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from training.clips import Clips, Size
from training.encoders import Encoders
from training.fast_conv import install
from training.optim import Average, Optimizers
from training.parallel import agree, mean_gradients
from training.quick import QuickTransformer, quick_dtype
from training.render import Renderer, make_canvas_sets
from training.sampler import with_own_history
from training.tasks import CANVASES, PHASES, Phase, Task, Tasks, stretch_of
from training.transformer import Conditions, StretchedRope, build_transformer, flow_loss
from training.vae import build_vae, save_state
from training.watch import Watch

LOG = logging.getLogger(__name__)
TRAIN_SEED = 47
CHECKPOINT = "transformer.pt"
CURVE = "curve.jsonl"
# How many times as many clips a step on a GPU has as one on a processor core, and the sets of bitmaps for
# backgrounds, because the same bitmap comes as many times as often.
GPU_CLIPS = 30
GPU_CANVAS_SETS = 12


@dataclass(frozen=True)
class Plan:
    """The settings of a run: the total minutes, the learning rate, the seed and the device.

    Minutes are processor time on the CPU, so that a run can be paused, and clock time on a GPU. Runs of
    different ``seed`` draw different clips. The mean of their weights is often better than either's.
    """

    minutes: float
    lr: float = 7.0e-4
    seed: int = TRAIN_SEED
    save_minutes: float = 3.0
    look_minutes: float = 40.0
    steps: int = 4
    device: str = "cpu"


def phase_at(place: float) -> Phase:
    """Return the phase at a share (0..1) of a whole run."""
    return next((phase for phase in PHASES if place < phase.until), PHASES[-1])


def factor(done: float, step: int) -> float:
    """Return the learning rate's factor: up for 60 steps, constant for 10 % of the time, then down to 3 %."""
    return min(1.0, (step + 1) / 60) * min(1.0, max(0.03, (1 - done) / 0.9))


class Trainer:
    """One process of the training.

    The number of a step determines everything random in it, so a stopped run resumes exactly.
    """

    def __init__(self, rank: int, world: int, root: Path, plan: Plan) -> None:
        self.rank, self.world, self.root, self.plan = rank, world, root, plan
        self.device = torch.device(plan.device)
        self.on_gpu = self.device.type != "cpu"
        self.model = self._untrained()
        self.optimiser = Optimizers(self.model, plan.lr, decay=0.02, plain=("x_embedder", "proj_out"))
        self.average = Average(self.model, 0.995)
        # ``learned`` is the share of all phases that the weights at the start have behind them.
        self.spent, self.step, self.learned = 0.0, 0, 0.0
        vae = install(build_vae())
        state = torch.load(root / "vae_frozen.pt", weights_only=True)
        vae.load_state_dict(state["weights"])
        vae.register_to_config(scaling_factor=state["scaling_factor"])
        self.vae = vae.eval().requires_grad_(False).to(self.device, quick_dtype(self.device))
        self.encoders = Encoders(root / "model", self.device)
        self.clips = Clips(self.vae, self.encoders, Renderer(self._canvases().to(self.device)))
        self._resume()
        self.quick = QuickTransformer(self.model, quick_dtype(self.device))
        self.watches: dict[Size, Watch] = {}
        self.losses: list[torch.Tensor] = []
        self.tasks = self._tasks()
        self.encoded = self._encode_next()

    def _untrained(self) -> torch.nn.Module:
        model = build_transformer()
        model.rope = StretchedRope(model.rope)
        return model.to(self.device)

    def _canvases(self) -> torch.Tensor:
        """Return the bitmaps of the backgrounds, which a run stores because drawing takes half a minute."""
        path = self.root / f"canvases_{self.rank}.pt"
        if not path.exists():
            sets = GPU_CANVAS_SETS if self.on_gpu else 1
            bitmaps = make_canvas_sets(self.plan.seed + self.rank, CANVASES, sets)
            save_state(path, {"bitmaps": bitmaps})
        return torch.load(path, weights_only=True)["bitmaps"]

    def _tasks(self) -> Iterator[Task]:
        """Yield the task of each step."""
        workers = max(1, (os.cpu_count() or 1) - 2) if self.on_gpu else 0
        step = self.step
        while True:
            phase = self.phase()
            clips = phase.batch * (GPU_CLIPS if self.on_gpu else 1)
            tasks = Tasks(phase, self.plan.seed, self.rank, clips, self.clips.renderer.count)
            for task in tasks.following(step, workers):
                if self.phase() is not phase:
                    break
                step += 1
                yield task

    def _resume(self) -> None:
        path = self.root / CHECKPOINT
        if path.exists():
            state = torch.load(path, weights_only=True, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.average = Average(self.model, 0.995)
            if "optimiser" in state:
                self.optimiser.load_state_dict(state["optimiser"])
                self.average.weights, self.average.steps = state["average"], state["step"]
            self.spent, self.step, self.learned = state["spent"], state["step"], state["learned"]

    def save(self) -> None:
        """Write everything that a run needs to resume."""
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
            state |= {"average": self.average.weights, "learned": self.learned}
            save_state(self.root / CHECKPOINT, state | {"spent": self.spent, "step": self.step})

    def done(self) -> float:
        """Return the share of this run that is done."""
        return self.spent / (60 * self.plan.minutes)

    def phase(self) -> Phase:
        """Return the present phase."""
        return phase_at(self.learned + (1 - self.learned) * self.done())

    def now(self) -> float:
        """Return the clock of the run in seconds."""
        return time.perf_counter() if self.on_gpu else time.process_time()

    def _encode_next(self) -> tuple[Task, torch.Tensor, Conditions]:
        task = next(self.tasks)
        return task, *self.clips.encode(task.batch)

    def train_step(self) -> None:
        """Make one step with the clips that are encoded, and encode the next ones."""
        task, latents, conditions = self.encoded
        generator = torch.Generator(self.device).manual_seed(task.seed)
        self.model.rope.stretch = self.quick.model.rope.stretch = stretch_of(task.batch.size)
        known = None
        if task.own_history:
            known = with_own_history(self.quick, task.section, latents, conditions, generator)
        losses = flow_loss(self.quick, task.section, latents, conditions, generator, task.frames, known)
        losses.mean().backward()
        # A GPU is still busy with the backward pass. It gets its next work before the optimiser waits for it.
        self.encoded = self._encode_next()
        self.quick.pass_gradients()
        mean_gradients(self.optimiser.params, self.world)
        self.optimiser.step(factor(self.done(), self.step))
        self.quick.refresh()
        self.average.update(self.model)
        self.losses.append(losses.detach().mean())
        self.step += 1

    def watch(self, videos: bool) -> None:
        """Log the loss and the projections of the averaged weights; with ``videos``, also the accuracy."""
        sizes = self.phase().sizes
        size = max(sizes, key=sizes.__getitem__)
        if size not in self.watches:
            self.watches[size] = Watch.make(self.vae, self.encoders, size)
        probe = self._untrained()
        probe.rope.stretch = stretch_of(size)
        self.average.copy_to(probe)
        quick = QuickTransformer(probe.eval().requires_grad_(False), quick_dtype(self.device))
        line = {"step": self.step, "seconds": round(self.spent), "side": size[0]}
        line |= {"loss": round(float(torch.stack(self.losses).mean()) if self.losses else 0.0, 4)}
        line |= {name: round(share, 2) for name, share in self.watches[size].projections(quick).items()}
        if videos:
            sheet = self.root / "sheets" / f"step_{self.step:06d}.png"
            share, misses = self.watches[size].look(quick, self.vae, self.plan.steps, sheet)
            line |= {"right": round(share, 3), "misses": misses}
        text = json.dumps(line)
        LOG.info("%s", text)
        with (self.root / CURVE).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        self.losses = []

    def run(self) -> None:
        """Train until the time is spent; write checkpoints and, less often, evaluate videos."""
        saved = looked = self.now()
        between = 60 * min(self.plan.save_minutes, self.plan.minutes / 10)
        while self.done() < 1:
            began = self.now()
            self.train_step()
            self.spent = agree(self.spent + self.now() - began, self.world)
            # All processes save after the same step.
            if agree(self.now() - saved, self.world) > between:
                self.save()
                saved = self.now()
                if self.rank == 0:
                    videos = self.now() - looked > 60 * self.plan.look_minutes
                    self.watch(videos)
                    looked = self.now() if videos else looked
        self.save()
        if self.rank == 0:
            self.watch(True)


def train(rank: int, world: int, folder: str, plan: Plan) -> None:
    """Run one process of the training, from the last checkpoint if there is one."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    Trainer(rank, world, Path(folder), plan).run()

"""The training of the transformer: small pictures first, then pictures of the product's size and shapes."""

from __future__ import annotations

import json
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from diffusers_helper.buckets import buckets
from diffusers_helper.packing import WINDOW
from training.clips import Clips, Size
from training.encoders import Encoders
from training.fast_conv import install
from training.optim import Average, Optimizers
from training.parallel import agree, mean_gradients
from training.quick import QuickTransformer, quick_dtype
from training.render import Renderer, make_canvases
from training.sampler import with_own_history
from training.transformer import (
    StretchedRope,
    build_transformer,
    draw_frames,
    draw_section,
    flow_loss,
    times_of,
)
from training.vae import build_vae, save_state
from training.watch import Watch

LOG = logging.getLogger(__name__)
TRAIN_SEED = 47
SIDE = 128
CANVASES = 24
# The share of later sections that continue what the model itself has made.
OWN_HISTORY = 0.5
CHECKPOINT = "transformer.pt"
CURVE = "curve.jsonl"


def large_sizes() -> dict[Size, float]:
    """Return the product's picture shapes with their shares; the square has the largest one."""
    shapes = buckets(SIDE, 16)
    return {shape: 0.5 if shape == (SIDE, SIDE) else 0.5 / (len(shapes) - 1) for shape in shapes}


@dataclass(frozen=True)
class Phase:
    """A part of the run.

    Attributes:
        until: The share of the run at which the phase ends.
        sizes: The picture sizes with their shares.
        frames: The number of a section's latent frames that are trained in a step.
        batch: The number of clips in a step.
    """

    until: float
    sizes: dict[Size, float]
    frames: int
    batch: int


SMALL_SIZES = {(64, 64): 0.6, (48, 80): 0.12, (80, 48): 0.12, (64, 48): 0.08, (48, 64): 0.08}
# Three frames a step cost half as much, but weights trained so are worse at all nine, which sampling makes.
PHASES = (
    Phase(0.20, SMALL_SIZES, 3, 32),
    Phase(0.45, large_sizes(), 3, 12),
    Phase(1.00, large_sizes(), WINDOW, 6),
)


@dataclass(frozen=True)
class Plan:
    """The settings of a run: the total minutes of processor time, the learning rate and the seed.

    Runs of different `seed` draw different clips. The mean of their weights is often better than either's.
    """

    minutes: float
    lr: float = 7.0e-4
    seed: int = TRAIN_SEED
    save_minutes: float = 3.0
    look_minutes: float = 40.0
    steps: int = 8


def phase_at(place: float) -> Phase:
    """Return the phase at a share (0..1) of a whole run."""
    return next((phase for phase in PHASES if place < phase.until), PHASES[-1])


def factor(done: float, step: int) -> float:
    """Return the learning rate's factor: up for 60 steps, constant for 10 % of the time, then down to 3 %."""
    return min(1.0, (step + 1) / 60) * min(1.0, max(0.03, (1 - done) / 0.9))


def draw(rng: np.random.Generator, shares: dict[Size, float]) -> Size:
    """Return a random picture size."""
    sizes, weights = list(shares), np.array(list(shares.values()))
    return sizes[int(rng.choice(len(sizes), p=weights / weights.sum()))]


def stretch_of(size: Size) -> float:
    """Return the ratio of the product's picture side to this size's, rounded to a whole number."""
    return float(max(1, round(SIDE / math.sqrt(size[0] * size[1]))))


class Trainer:
    """One process of the training.

    The number of a step determines everything random in it, so a stopped run resumes exactly. Time is the
    process's own processor time, so a run can be paused.
    """

    def __init__(self, rank: int, world: int, root: Path, plan: Plan) -> None:
        self.rank, self.world, self.root, self.plan = rank, world, root, plan
        self.model = build_transformer()
        self.model.rope = StretchedRope(self.model.rope)
        self.optimiser = Optimizers(self.model, plan.lr, decay=0.02, plain=("x_embedder", "proj_out"))
        self.average = Average(self.model, 0.995)
        # ``learned`` is the share of all phases that the weights at the start have behind them.
        self.spent, self.step, self.learned = 0.0, 0, 0.0
        vae = install(build_vae())
        state = torch.load(root / "vae_frozen.pt", weights_only=True)
        vae.load_state_dict(state["weights"])
        vae.register_to_config(scaling_factor=state["scaling_factor"])
        self.vae = vae.eval().requires_grad_(False).to(quick_dtype())
        self.encoders = Encoders(root / "model")
        self.clips = Clips(self.vae, self.encoders, Renderer(self._canvases()))
        self._resume()
        self.quick = QuickTransformer(self.model, quick_dtype())
        self.watches: dict[Size, Watch] = {}
        self.losses: list[float] = []

    def _canvases(self) -> torch.Tensor:
        """Return the bitmaps of the backgrounds, which a run stores because drawing takes half a minute."""
        path = self.root / f"canvases_{self.rank}.pt"
        if not path.exists():
            save_state(path, {"bitmaps": make_canvases(self.plan.seed + self.rank, CANVASES)})
        return torch.load(path, weights_only=True)["bitmaps"]

    def _resume(self) -> None:
        path = self.root / CHECKPOINT
        if path.exists():
            state = torch.load(path, weights_only=True)
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

    def train_step(self) -> None:
        """Draw clips and make one step."""
        done = self.done()
        phase = phase_at(self.learned + (1 - self.learned) * done)
        # All processes draw the same sizes, so that none waits for the longer step of another.
        size = draw(np.random.default_rng([self.plan.seed, self.step]), phase.sizes)
        rng = np.random.default_rng([self.plan.seed, self.step, 1 + self.rank])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        section, frames = draw_section(rng), draw_frames(generator, phase.frames)
        own_history = section.before is not None and rng.random() < OWN_HISTORY
        wanted = times_of(section, frames, own_history)
        latents, conditions = self.clips.draw(rng, size, phase.batch, wanted)
        self.model.rope.stretch = self.quick.model.rope.stretch = stretch_of(size)
        known = None
        if own_history:
            known = with_own_history(self.quick, section, latents, conditions, generator)
        losses = flow_loss(self.quick, section, latents, conditions, generator, frames, known)
        losses.mean().backward()
        self.quick.pass_gradients()
        mean_gradients(self.optimiser.params, self.world)
        self.optimiser.step(factor(done, self.step))
        self.quick.refresh()
        self.average.update(self.model)
        self.losses.append(float(losses.detach().mean()))
        self.step += 1

    def watch(self, videos: bool) -> None:
        """Log the loss and the projections of the averaged weights; with ``videos``, also the accuracy."""
        place = self.learned + (1 - self.learned) * self.done()
        size = max(phase_at(place).sizes, key=lambda s: phase_at(place).sizes[s])
        if size not in self.watches:
            self.watches[size] = Watch.make(self.vae, self.encoders, size)
        probe = build_transformer()
        probe.rope = StretchedRope(probe.rope)
        probe.rope.stretch = stretch_of(size)
        self.average.copy_to(probe)
        quick = QuickTransformer(probe.eval().requires_grad_(False), quick_dtype())
        line = {"step": self.step, "seconds": round(self.spent), "side": size[0]}
        line |= {"loss": round(float(np.mean(self.losses or [0])), 4)}
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
        saved = looked = time.process_time()
        between = 60 * min(self.plan.save_minutes, self.plan.minutes / 10)
        while self.done() < 1:
            began = time.process_time()
            self.train_step()
            self.spent = agree(self.spent + time.process_time() - began, self.world)
            # All processes save after the same step.
            if agree(time.process_time() - saved, self.world) > between:
                self.save()
                saved = time.process_time()
                if self.rank == 0:
                    videos = time.process_time() - looked > 60 * self.plan.look_minutes
                    self.watch(videos)
                    looked = time.process_time() if videos else looked
        self.save()
        if self.rank == 0:
            self.watch(True)


def train(rank: int, world: int, folder: str, plan: Plan) -> None:
    """Run one process of the training, from the last checkpoint if there is one."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    Trainer(rank, world, Path(folder), plan).run()

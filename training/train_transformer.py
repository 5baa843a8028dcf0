"""Trains the transformer: small pictures first, then pictures of the product's size and shapes."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from diffusers_helper.buckets import buckets
from training.attention import plain_attention_in_training
from training.encoders import Encoders
from training.fast_conv import install
from training.optim import Average, Optimizers
from training.parallel import agree, mean_gradients
from training.pool import Pool
from training.render import Renderer, canvases
from training.transformer import StretchedRope, build_transformer, draw_section, flow_loss, shift_of
from training.vae import build_vae, save_state
from training.watch import Watch

LOG = logging.getLogger(__name__)
TRAIN_SEED = 41
SMALL_SIZES = {(64, 64): 0.6, (48, 80): 0.12, (80, 48): 0.12, (64, 48): 0.08, (48, 64): 0.08}
CHECKPOINT = "transformer.pt"
# Motion is decided at high noise: training spends more of its time there than sampling does.
SHIFT_FACTOR = 5.0
SIDE = 128


@dataclass(frozen=True)
class Plan:
    """How a run goes: minutes in all, the share at small size, learning rate, clips per process and step."""

    minutes: float
    small: float = 0.66
    lr: float = 1.5e-3
    batch_small: int = 18
    batch_large: int = 5
    most_clips: int = 120
    watch_minutes: float = 25.0
    steps: int = 6


def large_sizes() -> dict[tuple[int, int], float]:
    """The product's picture shapes; most are square."""
    shapes = buckets(128, 16)
    weights = {shape: 0.4 / (len(shapes) - 1) for shape in shapes}
    weights[(128, 128)] = 0.6
    return weights


def draw(rng: np.random.Generator, weights: dict[tuple[int, int], float]) -> tuple[int, int]:
    """A picture size at random."""
    sizes = list(weights)
    shares = np.array(list(weights.values()))
    return sizes[int(rng.choice(len(sizes), p=shares / shares.sum()))]


def stretch_of(size: tuple[int, int]) -> float:
    """How much smaller a picture is than the product's, as a whole number."""
    return float(max(1, round(SIDE / math.sqrt(size[0] * size[1]))))


def factor(done: float, step: int) -> float:
    """Learning-rate factor: warm-up over 100 steps, flat to 45 % of the time, then down to 3 %."""
    return min(1.0, step / 100) * min(1.0, max(0.03, (1 - done) / 0.55))


class Trainer:
    """One process of the training."""

    def __init__(self, rank: int, world: int, root: Path, plan: Plan) -> None:
        self.rank, self.world, self.root, self.plan = rank, world, root, plan
        self.model = build_transformer()
        self.model.rope = StretchedRope(self.model.rope)
        self.optimiser = Optimizers(self.model, plan.lr, decay=0.02, plain=("x_embedder", "proj_out"))
        self.average = Average(self.model, 0.998)
        self.spent, self.step = 0.0, 0
        self._resume()
        vae = install(build_vae())
        state = torch.load(root / "vae_frozen.pt", weights_only=True)
        vae.load_state_dict(state["weights"])
        vae.register_to_config(scaling_factor=state["scaling_factor"])
        self.vae = vae.eval().requires_grad_(False)
        encoders = Encoders(root / "model")
        renderer = Renderer(canvases(TRAIN_SEED + rank, 24))
        self.rng = np.random.default_rng([TRAIN_SEED, rank, self.step])
        # Sizes are drawn alike in all processes, so that none waits for a longer one.
        self.shared = np.random.default_rng([TRAIN_SEED, 99, self.step])
        self.generator = torch.Generator().manual_seed(TRAIN_SEED + 1000 * rank + self.step)
        self.pool = Pool(self.vae, encoders, renderer, self.rng, plan.most_clips)
        self.encoders = encoders
        self.pool_file = root / f"pool_{rank}.pt"
        if self.pool_file.exists():
            self.pool.load(self.pool_file)
        self.watches: dict[tuple[int, int], Watch] = {}
        self.losses: list[float] = []

    def _resume(self) -> None:
        path = self.root / CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        if "optimiser" in state:
            self.optimiser.load_state_dict(state["optimiser"])
            self.average.weights, self.average.steps = state["average"], 1000
        self.spent, self.step = state["spent"], state["step"]

    def save(self) -> None:
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        state |= {"average": self.average.weights, "spent": self.spent, "step": self.step}
        save_state(self.root / CHECKPOINT, state)

    def fill(self, done: float) -> None:
        """Add clips of the sizes in use; each is trained on three to five times before it is forgotten."""
        small = done < self.plan.small
        sizes, first, fresh = (SMALL_SIZES, 90, 6) if small else (large_sizes(), 40, 1)
        for size, share in sizes.items():
            wanted = max(int(first * share), 3)
            have = len(self.pool.items.get(size, []))
            if have < wanted:
                self.pool.add(size, wanted - have)
        for _ in range(fresh):
            self.pool.add(draw(self.rng, sizes))

    def train_step(self, done: float) -> None:
        small = done < self.plan.small
        size = draw(self.shared, SMALL_SIZES if small else large_sizes())
        section = draw_section(self.rng)
        self.model.rope.stretch = stretch_of(size)
        batch = self.plan.batch_small if small else self.plan.batch_large
        latents, start, conditions = self.pool.batch(size, batch)
        shift = SHIFT_FACTOR * shift_of((9, *latents.shape[-2:]))
        loss = flow_loss(self.model, section, latents, start, conditions, self.generator, shift).mean()
        loss.backward()
        mean_gradients(self.optimiser.params, self.world)
        self.optimiser.step(factor(done, self.step))
        self.average.update(self.model)
        self.losses.append(float(loss.detach()))

    def watch(self, done: float) -> None:
        """Accuracy and a contact sheet of the averaged weights."""
        size = (64, 64) if done < 0.9 * self.plan.small else (128, 128)
        if size not in self.watches:
            self.watches[size] = Watch.make(self.vae, self.encoders, size, 16)
        probe = build_transformer()
        self.average.copy_to(probe)
        probe.rope = StretchedRope(probe.rope)
        probe.rope.stretch = stretch_of(size)
        sheet = self.root / "sheets" / f"step_{self.step:06d}.png"
        share, misses = self.watches[size].look(probe.eval(), self.vae, self.plan.steps, sheet)
        LOG.info("step %d size %s: %.0f %% right; misses: %s", self.step, size, 100 * share, misses)

    def run(self) -> None:
        began, before = time.time(), self.spent
        watched = saved = time.time()
        while True:
            self.spent = agree(before + time.time() - began, self.world)
            done = self.spent / (60 * self.plan.minutes)
            if done >= 1:
                break
            self.fill(done)
            self.train_step(done)
            self.step += 1
            if self.step % 150 == 0:
                self.pool.save(self.pool_file)
            if self.rank:
                continue
            if self.step in (1, 20, 100) or time.time() - saved > 90:
                clips = sum(len(items) for items in self.pool.items.values())
                LOG.info(
                    "step %d %.0f s loss %.4f clips %d", self.step, self.spent, np.mean(self.losses), clips
                )
                self.save()
                saved, self.losses = time.time(), []
            if time.time() - watched > 60 * self.plan.watch_minutes:
                self.watch(done)
                watched = time.time()
        if self.rank == 0:
            self.save()
            self.watch(1.0)


def train(rank: int, world: int, folder: str, plan: Plan) -> None:
    """One process of the training; resumes from the last checkpoint."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with plain_attention_in_training():
        Trainer(rank, world, Path(folder), plan).run()

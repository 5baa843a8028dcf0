"""The monitoring of a transformer in training: fixed cases, the tracker's readings, and a contact sheet."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from diffusers_helper.families.packing import HISTORY, LATENT_WINDOW_SIZE
from training.clips import Item, collate, encode_cases
from training.encoders import Encoders
from training.render import Renderer, canvases
from training.sampler import decode, sample_latents
from training.scenes import MOTIONS, STILL, Case, sample_case
from training.tracker import agrees, observe
from training.transformer import SectionTimes, draw_noise, gather, model_inputs

WATCH_SEED = 700_001
WATCH_AMOUNTS = (0.3, 0.55, 1.0, 1.67)
MODES = ("inverted", "forward")


@dataclass
class Watch:
    """A fixed set of cases of one picture size, as many for each motion, that are never used in training."""

    size: tuple[int, int]
    cases: list[Case]
    items: list[Item]
    renderer: Renderer

    @classmethod
    def make(cls, vae, encoders: Encoders, size: tuple[int, int], per_motion: int = 2) -> Watch:
        """Draw and encode the cases, without those whose motion the tracker cannot read in the true clip."""
        renderer = Renderer(canvases(WATCH_SEED, 4))
        rng = np.random.default_rng(WATCH_SEED)
        found: dict[str, list[Case]] = {name: [] for name in MOTIONS}
        while any(len(kept) < per_motion for kept in found.values()):
            case = sample_case(rng, *size, renderer.count)
            kept = found[case.motion.name]
            if len(kept) >= per_motion:
                continue
            truth = renderer.case(case, range(37), size)
            if agrees(case, observe(renderer, case, truth, WATCH_AMOUNTS)):
                kept.append(case)
        cases = [case for kept in found.values() for case in kept]
        return cls(size, cases, encode_cases(vae, encoders, renderer, cases, size), renderer)

    @torch.no_grad()
    def projections(self, model) -> dict[str, float]:
        """Return, by motion, the mean share of it that appears in clips predicted from pure noise.

        This share, for the first section in both orders, is the earliest sign of right motions.
        """
        device = self.items[0].latents.device
        generator = torch.Generator(device).manual_seed(WATCH_SEED)
        found: dict[str, list[float]] = defaultdict(list)
        for offset, mode in enumerate(MODES):
            chosen = range(offset, len(self.cases), len(MODES))
            latents, conditions = collate([self.items[i] for i in chosen])
            start, noisy = latents[:, :, :1], list(range(1, LATENT_WINDOW_SIZE + 1))
            history = gather(latents, start, [None] * (HISTORY - 1) + [0 if mode == "forward" else None])
            inputs = conditions.inputs() | model_inputs(SectionTimes(mode, 0, noisy, []), start, history)
            clean = gather(latents, start, list(noisy))
            noise = draw_noise(clean, generator)
            velocity = model(hidden_states=noise, timestep=noise.new_full((len(noise),), 1000.0), **inputs)[0]
            told, true = noise - velocity.float() - start, clean - start
            shares = (told * true).sum((1, 2, 3, 4)) / true.square().sum((1, 2, 3, 4))
            for index, share in zip(chosen, shares.tolist(), strict=True):
                found[self.cases[index].motion.name].append(share)
        return {name: float(np.mean(found[name])) for name in MOTIONS if name != STILL}

    def look(self, model, vae, steps: int, sheet: Path | None) -> tuple[float, str]:
        """Make videos of one section in both modes; return the share of right motions and the misses."""
        right, misses = 0, Counter()
        rows = []
        for offset, mode in enumerate(MODES):
            chosen = list(range(offset, len(self.cases), len(MODES)))
            latents, conditions = collate([self.items[i] for i in chosen])
            latents = sample_latents(model, mode, 1, latents[:, :, :1], conditions, steps, seed=offset)
            for index, video in zip(chosen, decode(vae, latents).cpu(), strict=True):
                case = self.cases[index]
                seen = observe(self.renderer, case, video, WATCH_AMOUNTS)
                if agrees(case, seen):
                    right += 1
                else:
                    misses[f"{case.motion.name}>{seen.motion}{'' if seen.target == 0 else '*'}"] += 1
                truth = self.renderer.case(case, range(0, 37, 9), self.size)
                rows.append(torch.cat([video[:, ::9], truth], dim=1))
        if sheet is not None:
            save_sheet(sheet, rows)
        text = ", ".join(f"{name} {n}" for name, n in misses.most_common())
        return right / len(self.cases), text


def save_sheet(path: Path, rows: list[torch.Tensor]) -> None:
    """Write the frames of each video (3, T, H, W) in -1..1 side by side, two videos per line."""
    lines = [row.permute(2, 1, 3, 0).flatten(1, 2) for row in rows]
    if len(lines) % 2:
        lines.append(torch.zeros_like(lines[0]))
    wide = [torch.cat(lines[i : i + 2], dim=1) for i in range(0, len(lines), 2)]
    pixels = torch.cat(wide).add(1).mul(127.5).clamp(0, 255).byte().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)

"""Looks at a transformer in training: fixed cases, motion told by the tracker, and a contact sheet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training.encoders import Encoders
from training.pool import Item, collate, encode_case
from training.render import Renderer, canvases
from training.sampler import decode, sample_latents
from training.scenes import Case, sample_case
from training.tracker import agrees, observe

WATCH_SEED = 700_001
WATCH_AMOUNTS = (0.3, 0.55, 1.0, 1.67)


@dataclass
class Watch:
    """A fixed set of cases never trained on, of one picture size."""

    size: tuple[int, int]
    cases: list[Case]
    items: list[Item]
    renderer: Renderer

    @classmethod
    def make(cls, vae, encoders: Encoders, size: tuple[int, int], count: int) -> Watch:
        """Draw and encode the cases; those that even the true clip does not show are left out."""
        renderer = Renderer(canvases(WATCH_SEED, 4))
        rng = np.random.default_rng(WATCH_SEED)
        cases: list[Case] = []
        while len(cases) < count:
            case = sample_case(rng, *size, renderer.count)
            truth = renderer.case(case, range(37), size)
            if agrees(case, observe(renderer, case.scene, truth, WATCH_AMOUNTS)):
                cases.append(case)
        items = [encode_case(vae, encoders, renderer, case, size) for case in cases]
        return cls(size, cases, items, renderer)

    def look(self, model, vae, steps: int, sheet: Path | None) -> tuple[float, str]:
        """Share of right motions over both modes (one section), and the misses in words."""
        right, misses = 0, Counter()
        rows = []
        for offset, mode in enumerate(("inverted", "forward")):
            chosen = list(range(offset, len(self.cases), 2))
            _, start, conditions = collate([self.items[i] for i in chosen])
            latents = sample_latents(model, mode, 1, start, conditions, steps, seed=offset)
            for index, video in zip(chosen, decode(vae, latents), strict=True):
                case = self.cases[index]
                seen = observe(self.renderer, case.scene, video, WATCH_AMOUNTS)
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
    """One row per video (3, T, H, W) in -1..1: its frames side by side; two videos in a line."""
    lines = [row.permute(2, 1, 3, 0).flatten(1, 2) for row in rows]
    if len(lines) % 2:
        lines.append(torch.zeros_like(lines[0]))
    wide = [torch.cat(lines[i : i + 2], dim=1) for i in range(0, len(lines), 2)]
    pixels = torch.cat(wide).add(1).mul(127.5).clamp(0, 255).byte().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)

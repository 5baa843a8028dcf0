"""The monitoring of a transformer in training: the shares of motions in fixed cases, and a contact sheet."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from diffusers_helper.families.packing import MODES
from training.clips import Clips, encode_frames
from training.layout import lay_out
from training.sampler import decode, sample_video
from training.scenes import MOTIONS, STILL, Act, Case, sample_case
from training.sections import VideoPlan, gather, model_inputs
from training.transformer import Conditions, draw_noise

WATCH_SEED = 700_001
SHEET_SECTIONS, SHEET_EVERY, SHEET_CASES = 3, 12, slice(None, None, 4)


@dataclass
class Watch:
    """A fixed set of cases of one picture size, as many for each motion, that are never used in training.

    Attributes:
        latents: Those of one section each, (B, 16, 10, h, w).
    """

    cases: list[Case]
    latents: torch.Tensor
    conditions: Conditions

    @classmethod
    def make(cls, clips: Clips, size: tuple[int, int], per_motion: int = 2) -> "Watch":
        """Draw and encode the cases."""
        rng = np.random.default_rng(WATCH_SEED)
        drawn: dict[str, list[Case]] = {name: [] for name in MOTIONS}
        while any(len(some) < per_motion for some in drawn.values()):
            case = sample_case(rng, *size, clips.renderer.count)
            drawn[case.motion.name].append(case)
        # The orders take turns.
        cases = [case for some in drawn.values() for case in some[:per_motion]]
        plan = VideoPlan("forward", (1,))
        frames = [plan.frame(time) for time in range(plan.length)]
        layout = lay_out([(case.scene, [Act(case.motion)]) for case in cases], frames)
        pixels = clips.renderer.draw(layout, size)
        prompts = [case.prompt for case in cases]
        return cls(cases, encode_frames(clips.vae, pixels), clips.conditions(prompts, pixels[:, :, 0]))

    def of(self, mode: str, some: slice = slice(None)) -> tuple[list[int], torch.Tensor, Conditions]:
        """Return the numbers of some cases of an order, their latents and conditions."""
        chosen = list(range(MODES.index(mode), len(self.cases), len(MODES)))[some]
        conditions = Conditions(**{name: value[chosen] for name, value in vars(self.conditions).items()})
        return chosen, self.latents[chosen], conditions

    @torch.no_grad()
    def projections(self, model) -> dict[str, float]:
        """Return, by motion, the mean share of it that appears in clips predicted from pure noise.

        This share, for the first section in both orders, is the earliest sign of right motions.
        """
        generator = torch.Generator(self.latents.device).manual_seed(WATCH_SEED)
        measured: dict[str, list[float]] = defaultdict(list)
        for mode in MODES:
            chosen, latents, conditions = self.of(mode)
            section = VideoPlan(mode, (1,)).section(0)
            start, clean = gather(latents, [0]), gather(latents, list(section.noisy))
            inputs = conditions.inputs() | model_inputs(section, start, gather(latents, section.history))
            noise = draw_noise(clean, generator)
            velocity = model(hidden_states=noise, timestep=noise.new_full((len(noise),), 1000.0), **inputs)[0]
            told, true = noise - velocity.float() - start, clean - start
            shares = (told * true).sum((1, 2, 3, 4)) / true.square().sum((1, 2, 3, 4))
            for index, share in zip(chosen, shares.tolist(), strict=True):
                measured[self.cases[index].motion.name].append(share)
        return {name: float(np.mean(measured[name])) for name in MOTIONS if name != STILL}

    @torch.no_grad()
    def draw_sheet(self, model, vae, path: Path) -> None:
        """Make longer videos of some cases, and write some frames of each as a line of a picture."""
        lines = []
        for mode in MODES:
            _, latents, conditions = self.of(mode, SHEET_CASES)
            plan = VideoPlan(mode, (SHEET_SECTIONS,))
            made = sample_video(model, plan, latents[:, :, :1], conditions, steps=4, seed=1)
            videos = decode(vae, made)[:, :, ::SHEET_EVERY].cpu()
            lines += [video.permute(2, 1, 3, 0).flatten(1, 2) for video in videos]
        pixels = torch.cat(lines).add(1).mul(127.5).clamp(0, 255).byte().numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)

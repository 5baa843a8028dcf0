"""The measurement of the demo model against its goals, on cases with seeds that training never used.

``python -m training.evaluate`` prints a table, writes it as JSON and draws a contact sheet beside it. The
product's own code makes the videos, from picture files to frames.
"""

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from diffusers_helper.families.family import buckets
from diffusers_helper.models.registry import FACTS_FILE
from training.figures import Outcome, judge, psnr
from training.product_engine import ProductEngine
from training.render import CANVAS_PIXELS, Renderer, canvases
from training.scenes import CAMERA_MOTIONS, MOTIONS, STILL, Case, Motion, sample_case
from training.sheet import save_contact_sheet
from training.tasks import multiple_of
from training.tracker import agrees, read, shown_strength
from training.vae import held_out_clips, psnr_per_clip

LOG = logging.getLogger(__name__)
EVALUATION_SEED = 5_000_001
GOALS = {
    "vae_psnr": (">=", 30.0),
    "motion_right": (">=", 95.0),
    "motion_right_worst_kind": (">=", 85.0),
    "shape_overlap": (">=", 0.80),
    "shape_overlap_lowest": (">=", 0.65),
    "rest_psnr": (">=", 28.0),
    "first_frame_psnr": (">=", 24.0),
    "flicker": ("<=", 2.0),
    "join_ratio": ("<=", 1.5),
    "seconds_for_2s_video": ("<=", 30.0),
}
MODES = ("inverted", "forward")
PHOTO_SECTIONS = 4  # 4.8 seconds
LONG_PHOTO = ("zooms in", 8)  # 9.6 seconds
Result = TypeVar("Result")


@dataclass
class Cases:
    """New cases, as many for each motion, whose true clips the tracker reads correctly."""

    seed: int
    side: int = 128
    renderer: Renderer = field(init=False)
    rejected: int = 0

    def __post_init__(self) -> None:
        self.renderer = Renderer(canvases(self.seed, 12, CANVAS_PIXELS * self.side // 128))

    @property
    def square(self) -> tuple[int, int]:
        return self.side, self.side

    def make(self, per_motion: int) -> list[tuple[Case, tuple[int, int]]]:
        """Return ``per_motion`` cases of every motion with their picture sizes; one in four is not square."""
        rng = np.random.default_rng(self.seed)
        shapes = [shape for shape in buckets(self.side, multiple_of(self.side)) if shape != self.square]
        found: dict[str, list[tuple[Case, tuple[int, int]]]] = defaultdict(list)
        while any(len(found[name]) < per_motion for name in MOTIONS):
            size = self.square if rng.random() < 0.75 else shapes[int(rng.integers(len(shapes)))]
            case = sample_case(rng, *size, self.renderer.count)
            kept = found[case.motion.name]
            if len(kept) >= per_motion or not self.readable(case, size):
                continue
            kept.append((case, size))
        return [pair for name in MOTIONS for pair in found[name]]

    def readable(self, case: Case, size: tuple[int, int]) -> bool:
        """Return whether the tracker reads the true clips of one and of two sections correctly."""
        fine = all(self._reads(case, size, [18 * sections, 36 * sections]) for sections in (1, 2))
        self.rejected += not fine
        return fine

    def _reads(self, case: Case, size: tuple[int, int], frames: list[int]) -> bool:
        truth = self.renderer.case(case, frames, size)
        return agrees(case, read(self.renderer, case, truth, frames))


@lru_cache(maxsize=1)
def engine_of(model: Path, steps: int | None, cfg: float) -> ProductEngine:
    """Return the engine of this process, which is made only once."""
    return ProductEngine(model, steps, cfg)


def vae_psnr(engine: ProductEngine, cases: Cases, index: int) -> float:
    """Return the PSNR in dB of one held-out clip of 37 frames, encoded and decoded."""
    case = sample_case(np.random.default_rng([cases.seed, 1, index]), *cases.square, cases.renderer.count)
    clip = cases.renderer.case(case, range(37), cases.square)
    return float(psnr_per_clip(engine.vae(), clip[None])[0])


def photograph(engine: ProductEngine, cases: Cases, index: int, name: str, sections: int, mode: str) -> float:
    """Return the last frame's PSNR in dB for a slow camera motion over a photo-like ground without things.

    The videos are long, in order to show the errors that later sections add.
    """
    rng = np.random.default_rng([cases.seed, 2, index])
    while True:
        case = sample_case(rng, *cases.square, cases.renderer.count)
        if case.scene.background.kind == "leaves":
            break
    motion, scene = Motion(name, "slowly"), replace(case.scene, things=())
    picture = cases.renderer.clip(scene, motion, [0], cases.square)[:, 0]
    video = engine.make(picture, f"the camera {name} slowly", mode, sections, seed=index)
    truth = cases.renderer.clip(scene, motion, [video.shape[1] - 1], cases.square)[:, 0]
    return psnr(video[:, -1], truth)


def make_and_judge(
    engine: ProductEngine, cases: Cases, index: int, case: Case, size: tuple[int, int]
) -> Outcome:
    """Make and judge the video of one case. Orders alternate, and half of the videos have two sections."""
    mode = MODES[index % 2]
    sections = 2 if index % 4 >= 2 else 1
    picture = cases.renderer.case(case, [0], size)[:, 0]
    video = engine.make(picture, case.prompt, mode, sections, seed=index)
    return judge(cases.renderer, case, size, mode, sections, video)


def work(arguments: argparse.Namespace, job: Callable[..., Result], *details: object) -> Result:
    """Run one job in a process of the pool."""
    torch.set_num_threads(arguments.threads)
    return job(engine_of(arguments.model, arguments.steps, arguments.cfg), *details)


def evaluate(arguments: argparse.Namespace) -> tuple[dict, list[Outcome]]:
    """Make all videos, and return the table of figures and the outcome of each video."""
    facts = json.loads((arguments.model / FACTS_FILE).read_text(encoding="utf-8"))
    cases = Cases(arguments.seed, facts["side"])
    chosen = cases.make(arguments.per_motion)
    LOG.info("%d cases were drawn", len(chosen))
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        submit = partial(pool.submit, work, arguments)
        # The longest jobs come first, so that no process waits for another at the end.
        long_photos = {mode: submit(photograph, cases, 0, *LONG_PHOTO, mode) for mode in MODES}
        photos = [
            submit(photograph, cases, index, name, PHOTO_SECTIONS, MODES[index % 2])
            for index, name in enumerate(CAMERA_MOTIONS)
        ]
        videos = [submit(make_and_judge, cases, index, *pair) for index, pair in enumerate(chosen)]
        clips = [submit(vae_psnr, cases, index) for index in range(arguments.vae_clips)]
        outcomes = []
        for video in videos:
            outcomes.append(video.result())
            if not outcomes[-1].right:
                LOG.info("missed: %s", describe(outcomes[-1]))
            if len(outcomes) % 10 == 0:
                LOG.info("%d videos, %.1f %% right", len(outcomes), 100 * _share(outcomes))
        table = summary(outcomes) | {"seed": arguments.seed, "prompts": len(outcomes), "side": cases.side}
        table["unreadable_cases_left_out"] = cases.rejected
        table |= _spread_of("vae_psnr", [clip.result() for clip in clips], "lowest")
        table |= _spread_of("photo_psnr", [photo.result() for photo in photos], "lowest")
        table |= {f"long_photo_psnr_{mode}": photo.result() for mode, photo in long_photos.items()}
    table["seconds_for_2s_video"] = time_two_seconds(arguments)
    return table, outcomes


def time_two_seconds(arguments: argparse.Namespace) -> float:
    """Return the wall time of two sections (73 frames) with a loaded model and all cores."""
    engine = ProductEngine(arguments.model, arguments.steps, arguments.cfg)
    picture = held_out_clips(1, 1, (engine.side, engine.side))[0, :, 0]
    engine.make(picture, "the camera zooms in", "inverted", 1, seed=0)
    began = time.time()
    engine.make(picture, "the camera zooms in", "inverted", 2, seed=0)
    return time.time() - began


def _share(outcomes: list[Outcome]) -> float:
    return float(np.mean([o.right for o in outcomes])) if outcomes else 0.0


def _spread_of(name: str, values: Sequence[float | None], worst: str) -> dict[str, float]:
    """Return the mean and the worst of the values that are not None, as ``name`` and ``name_worst``."""
    known = [value for value in values if value is not None]
    if not known:
        return {name: 0.0, f"{name}_{worst}": 0.0}
    return {
        name: float(np.mean(known)),
        f"{name}_{worst}": float((np.min if worst == "lowest" else np.max)(known)),
    }


def summary(outcomes: list[Outcome]) -> dict:
    """Return the figures over all videos, and shares of right motions by motion, mode, length and shape."""
    kinds = {name: [o for o in outcomes if o.case.motion.name == name] for name in MOTIONS}
    by_motion = {name: 100 * _share(some) for name, some in kinds.items()}
    strength = {
        name: float(np.mean([shown_strength(o.case, o.seen) for o in some] or [0.0]))
        for name, some in kinds.items()
        if name != STILL
    }
    groups = {
        "inverted": [o for o in outcomes if o.mode == "inverted"],
        "forward": [o for o in outcomes if o.mode == "forward"],
        "one_section": [o for o in outcomes if o.sections == 1],
        "two_sections": [o for o in outcomes if o.sections == 2],
        "square": [o for o in outcomes if o.size[0] == o.size[1]],
        "other_shapes": [o for o in outcomes if o.size[0] != o.size[1]],
    }
    return {
        "motion_right": 100 * _share(outcomes),
        "motion_right_worst_kind": min(by_motion.values()),
        "motion_right_by_kind": by_motion,
        "motion_strength_by_kind": strength,
        "motion_right_by_group": {name: 100 * _share(group) for name, group in groups.items()},
        **_spread_of("shape_overlap", [o.overlap for o in outcomes], "lowest"),
        **_spread_of("rest_psnr", [o.rest for o in outcomes], "lowest"),
        **_spread_of("first_frame_psnr", [o.first_psnr for o in outcomes], "lowest"),
        **_spread_of("last_frame_psnr", [o.last_psnr for o in outcomes], "lowest"),
        **_spread_of("flicker", [o.flicker for o in outcomes], "highest"),
        **_spread_of("join_ratio", [o.join for o in outcomes], "highest"),
    }


def report(table: dict) -> str:
    """Return a text with one line per goal and its measured figure."""
    lines = []
    for name, (sign, goal) in GOALS.items():
        value = table[name]
        met = value >= goal if sign == ">=" else value <= goal
        lines.append(f"{name:26} {value:8.2f}  goal {sign} {goal:g}  {'met' if met else 'NOT met'}")
    for name, value in table["motion_right_by_kind"].items():
        strength = table["motion_strength_by_kind"].get(name)
        lines.append(f"  {name:24} {value:8.1f}" + ("" if strength is None else f"  x{strength:.2f}"))
    for name, value in table["motion_right_by_group"].items():
        lines.append(f"  {name:24} {value:8.1f}")
    return "\n".join(lines)


def describe(outcome: Outcome) -> str:
    """Return one line with a video's case and the motion that was seen in it."""
    seen = outcome.seen
    return (
        f"{outcome.case.prompt!r} {outcome.mode} {outcome.sections} {outcome.size}: "
        f"saw {seen.motion} x{seen.amount} of thing {seen.target}"
    )


def main() -> None:
    """Evaluate the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    parser.add_argument(
        "--per-motion", type=int, default=15, help="number of cases of each of the 14 motions"
    )
    parser.add_argument("--steps", type=int, default=None, help="sampling steps (default: the model's own)")
    parser.add_argument("--cfg", type=float, default=1.0, help="classifier-free guidance (default: none)")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED, help="seed of the cases")
    parser.add_argument(
        "--out", type=Path, default=Path(".training/evaluation.json"), help="JSON file to write"
    )
    parser.add_argument("--processes", type=int, default=2, help="number of processes that share the videos")
    parser.add_argument("--threads", type=int, default=1, help="number of threads per process")
    parser.add_argument("--vae-clips", type=int, default=40, help="held-out clips for the VAE's PSNR")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    table, outcomes = evaluate(arguments)
    misses = [describe(outcome) for outcome in outcomes if not outcome.right]
    overlaps = {describe(o): round(o.overlap, 3) for o in outcomes if o.overlap is not None}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    written = table | {"misses": misses, "overlaps": overlaps}
    arguments.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    save_contact_sheet(arguments.out.with_suffix(".png"), outcomes)
    LOG.info("figures\n%s\nmisses\n%s", report(table), "\n".join(misses))


if __name__ == "__main__":
    main()

"""The writer of a model folder's card, from the figures of ``training.evaluate``."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from training.scenes import CAMERA_MOTIONS, MOTIONS

TEXT = """\
# Longtake demo model

A FramePack model at toy size, made of the same classes as the real one: diffusers'
`HunyuanVideoFramepackTransformer3DModel` and `AutoencoderKLHunyuanVideo`, and transformers' `LlamaModel`,
`CLIPTextModel` and `SiglipVisionModel`. It was trained with pictures that a program draws, on CPU cores and
at last on one GPU for 22 minutes. Its purpose is to let anybody see and test the whole product within a
minute on any machine. It says nothing about the quality of the real model.

One set of weights serves both orders of sections, inverted and forward. Pictures have 128x128 pixels, or
one of FramePack's other shapes scaled to side 128. {steps} steps are enough.

## What it knows

The model knows colours, four shapes, eight actions, six camera motions and two speeds, which
`longtake.json` lists. A prompt names one motion, as in `the red ball moves right quickly` or `the camera
zooms in`. The tokenizer drops all other words. With an empty prompt, almost nothing moves. A motion takes
72 frames (2.4 s) and then stops. Things stop at the edge of the picture.

## Figures

`python -m training.evaluate` measured the figures through the product's own code, on {prompts} prompts
({per_motion} of each motion), whose pictures were drawn with a seed that was never used in training
({seed}). The prompts cover both orders, one and two sections, and other shapes than the square in one
case of four. A motion counts as right if it is the one nearest to the video among all motions of all
things and of the camera, or looks the same as that one, and has 0.45 to 2.2 times the named strength. The
same tracker reads the true clip correctly in every case. With {prompts} cases, the share of right motions
is known to within {margin:.0f} points (95 % confidence).

The overlap is the intersection over union of a moved thing's shape in the last frame and in the first.
The rest is the area that no thing moves over, in videos with a still camera. The photo-like grounds are
{photos} slow pans and zooms of 4.8 s and a zoom of 9.6 s, in both orders. The strength of a motion is 1
where it is as named, and 0 where another motion was seen.

| | goal | measured |
| --- | --- | --- |
{rows}

| motion | right | strength |
| --- | --- | --- |
{kinds}

| cases | right |
| --- | --- |
{groups}

## Limits

The table includes the goals that were not met. Fine texture is lost, and the areas that a pan or a zoom
uncovers are guessed. Photographs become soft. The spin of a ball cannot be seen. A picture of one single
colour may get another one. In videos of more than two sections, everything stands still after 2.4 s.

## How it was made

The model was made by `training/`. Its only data are the drawings of `training/scenes.py` and
`training/render.py`: flat shapes on plain, striped, waved and checkered grounds, on band-limited noise and
on overlapping patches. docs/log/demo-model.md has all runs, with their steps, times and seeds.

- The VAE (2.9 M parameters) was trained on single pictures and on clips of 9 and 17 frames, with L1 and
  squared error and a small KL term. It is stored without the posterior's spread.
- The decoder of the previews (0.1 M parameters, `preview.safetensors`) makes four frames of half the video's
  sides for each latent frame.
- The text is read by a word-level tokenizer, a frozen Llama with random features, and CLIP, whose pooled
  output was trained to distinguish motion, colour, shape and speed. SigLIP is random and frozen, with four
  tokens.
- The transformer (6.2 M parameters) was trained by flow matching with Muon and AdamW, first for hours of
  processor cores, then on one H100 with `python -m training.run --start --device cuda --rate 0.0012`:
  after 551 steps followed {trained} steps of 180 clips in {minutes:.0f} minutes, a fifth of them spins.
  The mean of that run is shipped.
- The noise levels of sampling have a shift of {shift:g} (`shift` in `longtake.json`), so all steps are at
  high noise, where most of the training was. Fewer steps, even one, give nearly the same video.

A training from scratch uses the present settings, so it gives another model.

Licence: Apache-2.0, see LICENSE. The photograph among the page's examples is by Rachel Michetti (CC0).
"""


def figures(table: dict) -> str:
    """Return the goals and the measured figures as the rows of a table."""

    def pair(name: str, worst: str, form: str) -> str:
        return f"{table[name]:{form}} ({table[f'{name}_{worst}']:{form}})"

    rows = (
        ("VAE, PSNR over held-out clips of 37 frames, mean", ">= 30 dB", f"{table['vae_psnr']:.1f} dB"),
        ("motion named = motion seen, all motions", ">= 95 %", f"{table['motion_right']:.1f} %"),
        ("the same, worst single motion", ">= 85 %", f"{table['motion_right_worst_kind']:.0f} %"),
        ("overlap of a moved thing with its shape, mean (lowest)", ">= 0.80 (0.65)",
         pair("shape_overlap", "lowest", ".2f")),
        ("rest of the last frame against the picture, dB, mean (lowest)", ">= 28",
         pair("rest_psnr", "lowest", ".1f")),
        ("first frame against the picture, dB, mean (lowest)", ">= 24",
         pair("first_frame_psnr", "lowest", ".1f")),
        ("photo-like grounds, last frame against the truth, dB, mean (lowest)", "none",
         pair("photo_psnr", "lowest", ".1f")),
        ("the same for a zoom of 9.6 s, inverted and forward", "none",
         f"{table['long_photo_psnr_inverted']:.1f} and {table['long_photo_psnr_forward']:.1f}"),
        ("change between frames of still background, of 255, mean (highest)", "<= 2",
         pair("flicker", "highest", ".2f")),
        ("change across a section join over its neighbours, mean (highest)", "<= 1.5",
         pair("join_ratio", "highest", ".2f")),
        ("73 frames (2.4 s), warm, 2 shared cores", "< 30 s", f"{table['seconds_for_2s_video']:.1f} s"),
    )  # fmt: skip
    return "\n".join(f"| {name} | {goal} | {value} |" for name, goal, value in rows)


def motions(table: dict) -> str:
    """Return each motion's right share and strength as the rows of a table."""
    strength = table["motion_strength_by_kind"]
    return "\n".join(
        f"| {name} | {value:.0f} % | {f'{strength[name]:.2f}' if name in strength else ''} |"
        for name, value in table["motion_right_by_kind"].items()
    )


def groups(table: dict) -> str:
    """Return the right shares by order, length and shape as the rows of a table."""
    shares = table["motion_right_by_group"].items()
    return "\n".join(f"| {name.replace('_', ' ')} | {value:.0f} % |" for name, value in shares)


def write_card(folder: Path, evaluation: Path, checkpoint: Path) -> None:
    """Write ``README.md`` into a model folder."""
    table = json.loads(evaluation.read_text(encoding="utf-8"))
    facts = json.loads((folder / "longtake.json").read_text(encoding="utf-8"))
    state = torch.load(checkpoint, weights_only=True)
    right, prompts = table["motion_right"] / 100, table["prompts"]
    text = TEXT.format(
        rows=figures(table),
        kinds=motions(table),
        groups=groups(table),
        prompts=prompts,
        seed=table["seed"],
        per_motion=prompts // len(MOTIONS),
        margin=100 * 1.96 * math.sqrt(max(right * (1 - right), 1 / prompts) / prompts),
        photos=len(CAMERA_MOTIONS),
        steps=facts["steps"],
        shift=facts["shift"],
        trained=state["step"],
        minutes=state["spent"] / 60,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the card of the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    parser.add_argument("--evaluation", type=Path, default=Path(".training/evaluation.json"), help="figures")
    parser.add_argument("--checkpoint", type=Path, default=Path(".training/transformer.pt"), help="trained")
    arguments = parser.parse_args()
    write_card(arguments.model, arguments.evaluation, arguments.checkpoint)


if __name__ == "__main__":
    main()

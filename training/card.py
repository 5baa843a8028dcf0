"""The writer of a model folder's card, from the figures of ``training.evaluate``."""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from training.scenes import (
    CAMERA_MOTIONS,
    FARTHEST,
    GROWTH,
    LARGEST,
    MOTIONS,
    MOVE,
    NEAREST,
    PAN,
    SMALLEST,
    SPIN,
    ZOOM,
)
from training.train_transformer import CHECKPOINT, DECODER, read_parts

FIGURES, LASTING = "evaluation.json", "lasting.json"

TEXT = """\
# Longtake demo model

A FramePack model at toy size, made of the same classes as the real one: diffusers'
`HunyuanVideoFramepackTransformer3DModel` and `AutoencoderKLHunyuanVideo`, and transformers' `LlamaModel`,
`CLIPTextModel` and `SiglipVisionModel`. It was trained with pictures that a program draws, on CPU cores and
at last on GPUs for about half an hour. Its purpose is to let anybody see and test the whole product within a
minute on any machine. It says nothing about the quality of the real model.

One set of weights serves both orders of sections, inverted and forward. Pictures have {side}x{side} pixels,
or one of FramePack's other shapes scaled to that side; side 128 works as well. {steps} steps are enough.

## What it knows

The model knows colours, four shapes, eight actions, six camera motions and two speeds, which
`longtake.json` lists. A prompt names one motion, as in `the red ball moves right quickly` or `the camera
zooms in`, and a timed prompt a further one, from any section on. The tokenizer drops all other words. With an
empty prompt, almost nothing moves. Without a picture, the words are for a thing and its ground, as in
`a red ball on green moves right`.

A motion lasts as long as its words. In each second, at no, a slow and a quick speed named:

| | | slowly | quickly |
| --- | --- | --- | --- |
{speeds}

Things leave the picture. Growing ends at a radius of {largest:g} sides, shrinking at {smallest:g}, and
zooming at a view of {nearest:g} to {farthest:g} times the width. In inverted order, motion rests in the
middle of more than four sections with the same words, whose distance from the start the model is not told.

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

`python -m training.lasting` measured videos of 5 and 10 s, whose words change at 1.2 to 6 s, and videos from
words alone. A change is seen in its own time if the sections before and after it show what is asked for.

| cases | right |
| --- | --- |
{lasting}

## Limits

The table includes the goals that were not met. Fine texture is lost, and the areas that a pan or a zoom
uncovers are guessed. Photographs become soft. The spin of a ball cannot be seen. A picture of one single
colour may get another one. What words alone leave open, such as a place, is always the same.

## How it was made

The model was made by `training/`. Its only data are the drawings of `training/scenes.py` and
`training/render.py`: flat shapes on plain, striped, waved and checkered grounds, on hills, on band-limited
noise and on overlapping patches. docs/log/demo-model.md has all runs, with their steps, times and seeds.

- The VAE (2.9 M parameters) was trained on single pictures and on clips of 9 and 17 frames, with L1 and
  squared error and a small KL term. It is stored without the posterior's spread. At last its decoder alone
  was trained at side 256 for {decoder_minutes:.1f} minutes of a GPU.
- The decoder of the previews (0.1 M parameters, `preview.safetensors`) makes four frames of half the video's
  sides for each latent frame.
- The text is read by a word-level tokenizer, a frozen Llama with random features, and CLIP, whose pooled
  output was trained to distinguish motion, colour, shape and speed. SigLIP is random and frozen, with four
  tokens.
- The transformer (6.2 M parameters) was trained by flow matching with Muon and AdamW, first for hours of
  processor cores, then on one H100 for 21 minutes, on videos of two sections at side 128; then with
  `scripts/train_demo`, for {trained} steps in {minutes:.1f} minutes of a GPU, on videos of one to eight
  sections at sides 128 and 256. The mean of that run is shipped.
- The noise levels of sampling have a shift of {shift:g} (`shift` in `longtake.json`), so all steps are at
  high noise, where most of the training was. Fewer steps, even one, give nearly the same video.

The code that began the training from nothing is in the repository's history.

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


def shares(table: dict) -> str:
    """Return the shares among the figures of longer videos as the rows of a table."""
    return "\n".join(f"| {name} | {value} |" for name, value in table.items() if isinstance(value, str))


def speeds() -> str:
    """Return what the speeds mean as the rows of a table."""

    def row(name: str, form: Callable[[float], str], values: Mapping[str, float]) -> str:
        return f"| {name} | {form(values[''])} | {form(values['slowly'])} | {form(values['quickly'])} |"

    def times(rate: float) -> str:
        return f"{math.exp(rate):.2f}"

    return "\n".join((
        row("moves by, in sides of the picture", "{:g}".format, MOVE),
        row("pans by, in sides of the picture", "{:g}".format, PAN),
        row("spins by, in degrees", lambda angle: f"{math.degrees(angle):.0f}", SPIN),
        row("grows and shrinks by a factor of", times, GROWTH),
        row("zooms by a factor of", times, ZOOM),
    ))  # fmt: skip


def write_card(model: Path, folder: Path) -> None:
    """Write ``README.md`` into a model folder, from the figures and the checkpoints of a training folder."""
    table, lasting = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (FIGURES, LASTING))
    facts = json.loads((model / "longtake.json").read_text(encoding="utf-8"))
    state = read_parts(folder / CHECKPOINT)
    assert state is not None, "the model was exported from it"
    decoder = torch.load(folder / DECODER, weights_only=True, map_location="cpu")
    right, prompts = table["motion_right"] / 100, table["prompts"]
    text = TEXT.format(
        rows=figures(table),
        kinds=motions(table),
        groups=groups(table),
        lasting=shares(lasting),
        speeds=speeds(),
        largest=LARGEST, smallest=SMALLEST, nearest=NEAREST, farthest=FARTHEST,
        prompts=prompts,
        seed=table["seed"],
        per_motion=prompts // len(MOTIONS),
        margin=100 * 1.96 * math.sqrt(max(right * (1 - right), 1 / prompts) / prompts),
        photos=len(CAMERA_MOTIONS),
        side=facts["side"],
        steps=facts["steps"],
        shift=facts["shift"],
        trained=state["step"],
        minutes=state["spent"] / 60,
        decoder_minutes=decoder["spent"] / 60,
    )  # fmt: skip
    (model / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the card of the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    parser.add_argument("--folder", type=Path, default=Path(".training"), help="figures and checkpoints")
    arguments = parser.parse_args()
    write_card(arguments.model, arguments.folder)


if __name__ == "__main__":
    main()

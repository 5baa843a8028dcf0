"""The refinement of the VAE's decoder on pictures of the product's size; the latents stay what they are."""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.clips import encode_frames
from training.layout import lay_out
from training.optim import Average, Optimizers
from training.quick import quick_dtype
from training.render import Renderer, canvases
from training.scenes import Act, sample_case, sample_motion, sample_scene
from training.sections import BEFORE_LAST
from training.stories import GROUNDS, THING_COUNTS, warmed

LOG = logging.getLogger(__name__)
SEED = 11
HELD_OUT_SEED = 900_001
CANVASES = 48
SCENE_SIZES = ((128, 128), (64, 64), (96, 160), (160, 96), (128, 128), (112, 144), (144, 112))
RATE = 5e-4
# The shares of clips with a warm colour before a bright ground, where the rim was, and of those whose latents
# are, as the transformer's, made of single frames.
WARM_SHARE, SINGLE_SHARE = 0.4, 0.7
LATENTS, CROP = 5, 128
TRAINED = ("decoder.", "post_quant_conv.")


@dataclass(frozen=True)
class Crops:
    """The clips of one step: their number, their frames, and the side of the crop in pixels."""

    count: int
    frames: int
    crop: int


def draw_batch(rng: np.random.Generator, renderer: Renderer, wanted: Crops) -> torch.Tensor:
    """Return random crops of random clips, (B, 3, T, crop, crop) in -1..1."""
    clips = []
    sizes = [size for size in SCENE_SIZES if min(size) >= wanted.crop]
    for _ in range(wanted.count):
        size = sizes[int(rng.integers(len(sizes)))]
        case = sample_case(rng, *size, renderer.count)
        start = 4 * int(rng.integers(0, 18))
        room = size[0] - wanted.crop, size[1] - wanted.crop
        top, left = (int(rng.integers(0, free + 1)) for free in room)
        if case.scene.things and rng.random() < 0.6:
            side, thing = math.sqrt(size[0] * size[1]), case.scene.things[0]
            top = int(np.clip(thing.y * side + room[0] / 2 + rng.normal(0, 8), 0, room[0]))
            left = int(np.clip(thing.x * side + room[1] / 2 + rng.normal(0, 8), 0, room[1]))
        box = (top, left, wanted.crop, wanted.crop)
        frames = range(start, start + wanted.frames)
        clips.append(renderer.clip(case.scene, case.motion, frames, size, box))
    return torch.stack(clips)


def draw_clips(
    rng: np.random.Generator, renderer: Renderer, side: int, count: int, crop: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return crops of random clips (B, 3, 17, crop, crop), and the frames that stand for their latents.

    The latter (B, 3, 5, crop, crop) are those that the transformer's latents are made of.
    """
    clips = []
    begin = 4.0 * int(rng.integers(0, 10))
    for _ in range(count):
        scene = sample_scene(rng, side, side, renderer.count, THING_COUNTS, GROUNDS)
        scene = warmed(rng, scene) if rng.random() < WARM_SHARE else scene
        clips.append((scene, [Act(sample_motion(rng, scene))]))
    top, left = (int(value) for value in rng.integers(0, side - crop + 1, 2))
    whole = [begin + frame for frame in range(4 * LATENTS - 3)]
    single = [begin, *(begin + 4 * k - BEFORE_LAST for k in range(1, LATENTS))]
    pixels = renderer.draw(lay_out(clips, whole + single), (side, side), (top, left, crop, crop))
    return pixels[:, :, : len(whole)], pixels[:, :, len(whole) :]


def decoding_loss(
    vae: AutoencoderKLHunyuanVideo,
    clips: torch.Tensor,
    singles: torch.Tensor,
    rng: np.random.Generator,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of decoded clips and their mean PSNR in dB.

    The logarithm of each clip's error counts, as in its PSNR. The latents have a little noise, since the
    transformer's are not exact either. A decode may start within a clip; its first latent then yields only
    the last of its frames.
    """
    low = quick_dtype(clips.device) == torch.bfloat16
    with torch.autocast(clips.device.type, torch.bfloat16, enabled=low):
        with torch.no_grad():
            if rng.random() < SINGLE_SHARE:
                latents = encode_frames(vae, singles) / vae.config.scaling_factor
            else:
                latents = vae.quant_conv(vae.encoder(clips)).float().chunk(2, dim=1)[0]
            noise = torch.randn(latents.shape, generator=generator, device=generator.device)
            latents = latents + 0.03 * float(rng.random()) * latents.std() * noise
        if rng.random() < 0.3:
            latents, clips = latents[:, :, 1:], clips[:, :, 4:]
        error = vae.decoder(vae.post_quant_conv(latents)).float() - clips
    squared = error.square().mean((1, 2, 3, 4))
    loss = error.abs().mean() + 0.05 * (squared + 1e-4).log().mean()
    return loss, (10 * torch.log10(4 / squared.detach())).mean()


def refine(
    vae: AutoencoderKLHunyuanVideo, renderer: Renderer, path: Path, minutes: float, side: int, clips: int
) -> AutoencoderKLHunyuanVideo:
    """Train the decoder for some minutes, from its checkpoint if there is one; return the VAE with it.

    The checkpoint has the running mean of the weights; a stopped run goes on from it at the same rate.
    """
    device = renderer.device
    spent, step = 0.0, 0
    if path.exists():
        state = torch.load(path, weights_only=True, map_location="cpu")
        vae.load_state_dict(state["weights"], strict=False)
        spent, step = state["spent"], state["step"]
    vae.to(device).requires_grad_(False)
    for name, param in vae.named_parameters():
        param.requires_grad_(name.startswith(TRAINED))
    optimiser, average = Optimizers(vae, RATE, decay=0.0), Average(vae, 0.99)
    rng, generator = np.random.default_rng([SEED, step]), torch.Generator(device).manual_seed(SEED + step)
    began = saved = time.perf_counter()
    seen: list[torch.Tensor] = []

    def save() -> None:
        weights = {name: value for name, value in average.weights.items() if name.startswith(TRAINED)}
        save_state(path, {"weights": weights, "spent": now, "step": step})
        quality = float(torch.stack(seen[-50:]).mean()) if seen else 0.0
        LOG.info("decoder, step %d at %.0f s: %.2f dB", step, now, quality)

    while (now := spent + time.perf_counter() - began) < 60 * minutes:
        pixels = draw_clips(rng, renderer, side, clips, min(CROP, side))
        loss, quality = decoding_loss(vae, *pixels, rng, generator)
        loss.backward()
        optimiser.step(schedule(now / (60 * minutes)))
        average.update(vae)
        seen.append(quality)
        step += 1
        if time.perf_counter() - saved > 30:
            save()
            saved = time.perf_counter()
    if seen:
        save()
        average.copy_to(vae)
    return vae.requires_grad_(False)


@torch.no_grad()
def held_out_clips(count: int, frames: int, size: tuple[int, int], seed: int = HELD_OUT_SEED) -> torch.Tensor:
    """Return clips that are never used in training, (count, 3, frames, H, W)."""
    rng = np.random.default_rng(seed)
    renderer = Renderer(canvases(seed, 8))
    cases = [sample_case(rng, *size, renderer.count) for _ in range(count)]
    return torch.stack([renderer.case(case, range(frames), size) for case in cases])


@torch.no_grad()
def psnr_per_clip(vae: AutoencoderKLHunyuanVideo, clips: torch.Tensor) -> torch.Tensor:
    """Encode and decode clips one by one, and return their PSNR (B,) in dB."""
    values = []
    for clip in clips:
        latents = vae.encode(clip[None].to(vae.dtype)).latent_dist.mode()
        error = vae.decode(latents).sample.float().clamp(-1, 1) - clip[None]
        values.append(10 * torch.log10(4 / error.square().mean()))
    return torch.stack(values)


def save_state(path: Path, state: dict) -> None:
    """Write a checkpoint so that a reader never sees an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def schedule(done: float) -> float:
    """Return the learning rate's factor at a share (0..1) of a stage: up, constant, then down to 4 %."""
    return min(1.0, done / 0.03 + 0.05) * min(1.0, max(0.04, (1 - done) / 0.6))

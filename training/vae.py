"""The training of the video VAE: on pictures, then on clips, and at last with the latents kept."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo

from training.fast_conv import install
from training.optim import Average, Optimizers
from training.parallel import agree, mean_gradients
from training.quick import quick_dtype
from training.render import Renderer, canvases
from training.scenes import sample_case

LOG = logging.getLogger(__name__)
TRAIN_SEED = 11
HELD_OUT_SEED = 900_001
CANVASES = 48
SCENE_SIZES = ((128, 128), (64, 64), (96, 160), (160, 96), (128, 128), (112, 144), (144, 112))
# How much the change of the latents counts in the last stage, relative to their own energy.
KEEPING = 2.0


@dataclass(frozen=True)
class Crops:
    """The clips of one step: their number, their frames, and the side of the crop in pixels."""

    count: int
    frames: int
    crop: int


@dataclass(frozen=True)
class VaeStage:
    """One stage of the training: the clips of its steps, in turn, and the learning rate.

    Attributes:
        crops: The clips of consecutive steps.
        lr: The highest learning rate.
        keeps_latents: Whether the latents stay near those with which the stage begins, so that a transformer
            that was trained on them still fits.
    """

    crops: tuple[Crops, ...]
    lr: float
    keeps_latents: bool = False


STAGES = {
    "images": VaeStage((Crops(20, 1, 64),), 2e-3),
    "clips": VaeStage((Crops(4, 9, 64),), 1.6e-3),
    "refine": VaeStage((Crops(3, 9, 64), Crops(3, 9, 64), Crops(1, 17, 96)), 8e-4, keeps_latents=True),
}


def build_vae() -> AutoencoderKLHunyuanVideo:
    """Return the untrained demo VAE: 8x8x4 compression into 16 channels, 2.9 M parameters."""
    torch.manual_seed(TRAIN_SEED)
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(16, 32, 64, 64),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=16,
        mid_block_add_attention=False,
        scaling_factor=1.0,
    )
    with torch.no_grad():
        for param in vae.parameters():
            if param.ndim == 5 and param.shape[2] == 3:
                # With all weight on the newest frame, a VAE trained on pictures already works for clips.
                param[:, :, 2] = param.sum(dim=2) / math.sqrt(3) * 1.7
                param[:, :, :2] = 0
    return vae


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


def vae_loss(
    vae: AutoencoderKLHunyuanVideo, clips: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, float]:
    """Return the loss of clips (B, 3, T, H, W), reconstruction plus a small KL term, and the PSNR in dB."""
    with torch.autocast("cpu", torch.bfloat16):
        mean, logvar = vae.quant_conv(vae.encoder(clips)).float().chunk(2, dim=1)
        logvar = logvar.clamp(-12, 8)
        noise = torch.randn(mean.shape, generator=generator)
        latents = mean + (0.5 * logvar).exp() * noise
        error = _decoding_error(vae, latents, clips, 0.5, generator)
    squared = error.square().mean()
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    loss = error.abs().mean() + 2 * squared + 1e-4 * divergence
    return loss, float(10 * torch.log10(4 / squared.detach()))


def refining_loss(
    vae: AutoencoderKLHunyuanVideo,
    former: AutoencoderKLHunyuanVideo,
    clips: torch.Tensor,
    generator: torch.Generator,
) -> tuple[torch.Tensor, float]:
    """Return the loss of clips (B, 3, T, H, W), reconstruction plus the latents' change, and the PSNR in dB.

    The logarithm of each clip's error counts, as in its PSNR. The decoder sees latents with a little noise,
    since the transformer's are not exact either.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=quick_dtype() == torch.bfloat16):
        mean = vae.quant_conv(vae.encoder(clips)).float().chunk(2, dim=1)[0]
        with torch.no_grad():
            before = former.quant_conv(former.encoder(clips)).float().chunk(2, dim=1)[0]
        level = 0.03 * before.std() * torch.rand((), generator=generator)
        latents = mean + level * torch.randn(mean.shape, generator=generator)
        error = _decoding_error(vae, latents, clips, 0.3, generator)
    change = (mean - before).square().mean() / before.square().mean()
    squared = error.square().mean((1, 2, 3, 4))
    loss = error.abs().mean() + 0.05 * (squared + 1e-4).log().mean() + KEEPING * change
    return loss, float((10 * torch.log10(4 / squared.detach())).mean())


def _decoding_error(
    vae: AutoencoderKLHunyuanVideo,
    latents: torch.Tensor,
    clips: torch.Tensor,
    share: float,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return the decoded clips minus the true ones; this share of them is decoded from the second latent on.

    A decode may start within a clip; its first latent then yields only the last of its frames.
    """
    if latents.shape[2] > 1 and torch.rand((), generator=generator) < share:
        latents, clips = latents[:, :, 1:], clips[:, :, 4:]
    return vae.decoder(vae.post_quant_conv(latents)).float() - clips


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


def train_stage(rank: int, world: int, folder: str, stage_name: str, minutes: float, source: str) -> None:
    """Train one stage for some minutes, from its own checkpoint if there is one, else from ``source``'s."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stage, root = STAGES[stage_name], Path(folder)
    path = root / f"vae_{stage_name}.pt"
    vae = install(build_vae())
    spent, step = 0.0, 0
    state = torch.load(path, weights_only=True) if path.exists() else None
    if state is None and source:
        before = torch.load(root / f"vae_{source}.pt", weights_only=True)
        vae.load_state_dict(before["weights" if source == "frozen" else "average"])
    former = None
    if stage.keeps_latents:
        former = install(build_vae()).requires_grad_(False)
        former.load_state_dict(torch.load(root / "vae_frozen.pt", weights_only=True)["weights"])
    optimiser = Optimizers(vae, stage.lr)
    average = Average(vae, 0.99)
    if state is not None:
        vae.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        average.weights, average.steps = state["average"], 1000
        spent, step = state["spent"], state["step"]
    renderer = Renderer(canvases(TRAIN_SEED + rank, CANVASES))
    rng = np.random.default_rng([TRAIN_SEED, rank, step, stage.crops[-1].frames])
    generator = torch.Generator().manual_seed(TRAIN_SEED * 1000 + rank + step)
    test = held_out_clips(4, 9, (128, 128))
    began, saved, recent = time.process_time(), time.process_time(), []
    while True:
        now = agree(spent + time.process_time() - began, world)
        if now >= 60 * minutes:
            break
        batch = draw_batch(rng, renderer, stage.crops[step % len(stage.crops)])
        if former is None:
            loss, psnr = vae_loss(vae, batch, generator)
        else:
            loss, psnr = refining_loss(vae, former, batch, generator)
        loss.backward()
        mean_gradients(optimiser.params, world)
        optimiser.step(schedule(now / (60 * minutes)))
        average.update(vae)
        step += 1
        recent.append(psnr)
        if rank == 0 and (step in (2, 10, 30) or time.process_time() - saved > 240):
            _report(path, vae, optimiser, average, now, step, recent, test)
            saved, recent = time.process_time(), []
    if rank == 0:
        _report(path, vae, optimiser, average, now, step, recent, test)


def _report(path: Path, vae, optimiser, average, spent: float, step: int, recent: list[float], test) -> None:
    state = {"model": vae.state_dict(), "optimiser": optimiser.state_dict(), "average": average.weights}
    save_state(path, state | {"spent": spent, "step": step})
    probe = build_vae()
    average.copy_to(probe)
    held = psnr_per_clip(probe, test)
    LOG.info(
        "%s step %d at %.0f s: train %.2f dB, held-out clips %.2f dB (worst %.2f)",
        path.stem,
        step,
        spent,
        np.mean(recent or [0]),
        held.mean(),
        held.min(),
    )


@torch.no_grad()
def freeze(root: Path, source: str) -> float:
    """Write the averaged weights and the scale with which latents have unit deviation; return the scale.

    This fixes the latent space for the later stages.
    """
    vae = install(build_vae())
    vae.load_state_dict(torch.load(root / f"vae_{source}.pt", weights_only=True)["average"])
    rng = np.random.default_rng(TRAIN_SEED)
    renderer = Renderer(canvases(TRAIN_SEED, 8))
    squares = []
    for _ in range(32):
        case = sample_case(rng, 128, 128, renderer.count)
        clip = renderer.case(case, range(9), (128, 128))[None]
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encode(clip).latent_dist.mode()
        squares.append(latents.float().square().mean())
    scale = float(1 / torch.stack(squares).mean().sqrt())
    save_state(root / "vae_frozen.pt", {"weights": vae.state_dict(), "scaling_factor": scale})
    return scale

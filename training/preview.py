"""The training of the small decoder that shows a section while it is sampled.

``python -m training.preview`` trains it on latents of the demo model's VAE, for some minutes of one core's
time, and writes it into the model's folder. A stopped run that is started again continues from its last
checkpoint.
"""

import argparse
import logging
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo
from safetensors.torch import save_file
from torch.nn import functional as F

from diffusers_helper.output.previews import CELL, TINY_FILE, TinyDecoder
from training.render import Renderer, canvases
from training.vae import CANVASES, Crops, draw_batch, held_out_clips, save_state, schedule

LOG = logging.getLogger(__name__)
CHECKPOINT = "preview.pt"
SEED = 501
RATE = 3e-3
CROPS = Crops(4, 37, 64)  # the frames of the picture and of a section
# Encoding takes eight times as long as a step. So each batch is kept for a while, and is followed by several
# steps, each with as many batches.
KEPT, STEPS, BATCHES = 64, 4, 4
MOST_NOISE = 0.1  # of the latents' deviation, since predictions are not exact either


@torch.no_grad()
def pairs(vae: AutoencoderKLHunyuanVideo, clips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scaled latents of sections (B, 16, 9, h, w), and their frames (B, 3, 36, 4h, 4w).

    Args:
        vae: The VAE.
        clips: A picture and a section each, (B, 3, 37, H, W).
    """
    latents = vae.encode(clips.to(vae.dtype)).latent_dist.mode().float() * vae.config.scaling_factor
    shrink = vae.spatial_compression_ratio // CELL
    return latents[:, :, 1:], F.avg_pool3d(clips[:, :, 1:], (1, shrink, shrink))


def loss_of(
    decoder: TinyDecoder, latents: torch.Tensor, frames: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, float]:
    """Return the loss of noisy latents against their frames, and the PSNR in dB."""
    level = MOST_NOISE * torch.rand((len(latents), 1, 1, 1, 1), generator=generator)
    error = decoder(latents + level * torch.randn(latents.shape, generator=generator)) - frames
    squared = error.square().mean()
    return error.abs().mean() + 2 * squared, float(10 * torch.log10(4 / squared.detach()))


@torch.no_grad()
def psnr(decoder: TinyDecoder, latents: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Return the PSNR in dB of the small frames of each clip (B,)."""
    error = decoder(latents).clamp(-1, 1) - frames
    return 10 * torch.log10(4 / error.square().mean((1, 2, 3, 4)))


def train(model: Path, folder: Path, minutes: float) -> TinyDecoder:
    """Train the decoder for minutes of processor time, from its checkpoint if there is one, and return it."""
    vae = AutoencoderKLHunyuanVideo.from_pretrained(model / "vae", torch_dtype=torch.float32).eval()
    torch.manual_seed(SEED)
    decoder = TinyDecoder()
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=RATE, weight_decay=1e-3)
    path, spent, step = folder / CHECKPOINT, 0.0, 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        decoder.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        spent, step = state["spent"], state["step"]
    renderer = Renderer(canvases(SEED, CANVASES))
    rng = np.random.default_rng([SEED, step])
    generator = torch.Generator().manual_seed(SEED + step)
    kept: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=KEPT)
    test, recent = pairs(vae, held_out_clips(4, CROPS.frames, (128, 128))), []

    def keep() -> None:
        state = {"model": decoder.state_dict(), "optimiser": optimiser.state_dict()}
        save_state(path, state | {"spent": now, "step": step})

    began = saved = time.process_time()
    while (now := spent + time.process_time() - began) < 60 * minutes:
        kept.append(pairs(vae, draw_batch(rng, renderer, CROPS)))
        for group in optimiser.param_groups:
            group["lr"] = RATE * schedule(now / (60 * minutes))
        for _ in range(STEPS):
            chosen = [kept[int(rng.integers(len(kept)))] for _ in range(BATCHES)]
            latents, frames = (torch.cat(parts) for parts in zip(*chosen, strict=True))
            loss, decibels = loss_of(decoder, latents, frames, generator)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            recent.append(decibels)
        step += STEPS
        if step == 5 * STEPS or time.process_time() - saved > 60:
            keep()
            held = psnr(decoder, *test)
            LOG.info("step %d at %.0f s: %.2f dB, held out %.2f dB", step, now, np.mean(recent), held.mean())
            saved, recent = time.process_time(), []
    keep()
    LOG.info("step %d: held out %.2f dB", step, psnr(decoder, *test).mean())
    return decoder


def main() -> None:
    """Train as the command line asks, and write the decoder's file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12, help="processor time")
    parser.add_argument("--folder", type=Path, default=Path(".training"), help="checkpoints")
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    decoder = train(arguments.model, arguments.folder, arguments.minutes)
    weights = {name: one.detach().half().contiguous() for name, one in decoder.state_dict().items()}
    save_file(weights, arguments.model / TINY_FILE)
    (arguments.model / TINY_FILE).chmod(0o644)


if __name__ == "__main__":
    main()

"""Tests of the decoder for previews: its training, and what the one that ships shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from PIL import Image

from diffusers_helper.output.previews import TINY_FILE, LatentColours, TinyDecoder
from training import preview
from training.render import Renderer, canvases
from training.vae import Crops, draw_batch, held_out_clips

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLHunyuanVideo:
    return AutoencoderKLHunyuanVideo.from_pretrained(MODEL / "vae", torch_dtype=torch.float32).eval()


@torch.no_grad()
def test_the_decoder_that_ships_shows_a_section_better_than_colours(vae) -> None:
    assert (MODEL / TINY_FILE).stat().st_size < 400_000
    decoder = TinyDecoder.read(MODEL / TINY_FILE, torch.device("cpu"))
    clips = draw_batch(np.random.default_rng(7), Renderer(canvases(7, 1)), Crops(1, 37, 64))
    latents, frames = preview.pairs(vae, clips)
    first = ((clips[0, :, 0].permute(1, 2, 0) + 1) * 127.5).round().to(torch.uint8)
    start = vae.encode(clips[:, :, :1]).latent_dist.mode() * vae.config.scaling_factor
    colours = LatentColours(Image.fromarray(first.numpy()), start).frames(latents)
    still = torch.stack([torch.from_numpy(np.array(one)) for one in colours])
    shown = {"decoded": decoder.frames(latents), "colours": still.repeat_interleave(4, dim=0)}
    truth = (frames[0].permute(1, 2, 3, 0) + 1) * 127.5
    error = {name: (one - truth).square().mean().sqrt() for name, one in shown.items()}
    assert error["decoded"] < 0.7 * error["colours"]


def test_a_training_that_was_stopped_goes_on(vae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "CANVASES", 1)
    monkeypatch.setattr(preview, "held_out_clips", lambda *_: held_out_clips(1, 9, (64, 64)))
    monkeypatch.setattr(preview, "CROPS", preview.Crops(1, 9, 64))
    monkeypatch.setattr(preview, "STEPS", 1)
    monkeypatch.setattr(preview.AutoencoderKLHunyuanVideo, "from_pretrained", lambda *_, **__: vae)
    clock = iter([0.0, *(20.0 * step for step in range(1, 99))])
    monkeypatch.setattr(preview.time, "process_time", lambda: next(clock))
    before = preview.train(MODEL, tmp_path, minutes=5).state_dict()
    state = torch.load(tmp_path / preview.CHECKPOINT, weights_only=True)
    assert 0 < state["step"] < 10
    assert all(torch.isfinite(one).all() for one in before.values())
    again = preview.train(MODEL, tmp_path, minutes=state["spent"] / 60).state_dict()
    assert all(torch.equal(again[name], value) for name, value in state["model"].items())

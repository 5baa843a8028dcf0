"""Tests of the training command: the stages that it runs, for how long, and from which weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from training import run
from training.train_transformer import CHECKPOINT, Plan
from training.transformer import build_transformer
from training.vae import build_vae

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "assets" / "demo_model"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Record what would have been trained: the arguments of each stage's worker."""
    calls: list[tuple] = []
    monkeypatch.setattr(run, "launch", lambda worker, arguments, processes: calls.append(arguments))
    monkeypatch.setattr(run, "make_encoders", lambda folder: None)
    monkeypatch.setattr(run, "freeze", lambda folder, source: 1.0)
    monkeypatch.setattr(run, "load_parts", lambda *arguments: (None, None))
    monkeypatch.setattr(run, "export", lambda *arguments: None)
    return calls


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run the command with these words."""
    monkeypatch.setattr(sys, "argv", ["run", *words])
    run.main()


def test_from_nothing_the_time_is_shared_out(launched, monkeypatch, tmp_path: Path) -> None:
    command(monkeypatch, "--minutes", "100", "--folder", str(tmp_path))
    assert [part[1] for part in launched] == [
        "images",
        "clips",
        Plan(minutes=pytest.approx(70)),
        "refine",
    ]
    assert launched[0][2] == pytest.approx(5)
    assert launched[1][2] == pytest.approx(17)


def test_from_given_weights_all_time_goes_to_the_transformer(launched, monkeypatch, tmp_path: Path) -> None:
    words = ("--minutes", "100", "--folder", str(tmp_path), "--start", str(MODEL))
    for _ in range(2):  # A second call continues.
        command(monkeypatch, *words)
    assert [part[1] for part in launched] == [Plan(minutes=pytest.approx(100))] * 2
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert (state["step"], state["spent"], state["learned"]) == (0, 0.0, 0.45)


def test_what_is_exported_is_the_running_mean_and_the_refined_vae(tmp_path: Path) -> None:
    model, vae = build_transformer(), build_vae()
    mean = {name: value + 1 for name, value in model.state_dict().items()}
    torch.save({"model": model.state_dict(), "average": mean}, tmp_path / CHECKPOINT)
    torch.save({"weights": vae.state_dict(), "scaling_factor": 0.5}, tmp_path / "vae_frozen.pt")
    finer = {name: value + 1 for name, value in vae.state_dict().items()}
    torch.save({"average": finer}, tmp_path / "vae_refine.pt")
    made, made_vae = run.load_parts(tmp_path)
    assert all(torch.equal(value, mean[name]) for name, value in made.state_dict().items())
    assert made_vae.config.scaling_factor == 0.5
    assert all(torch.equal(value, finer[name]) for name, value in made_vae.state_dict().items())


def test_a_share_of_the_start_is_in_what_is_exported(tmp_path: Path) -> None:
    shipped = run.HunyuanVideoFramepackTransformer3DModel.from_pretrained(MODEL / "transformer")
    before = shipped.float().state_dict()
    mean = {name: value + 1 for name, value in before.items()}
    torch.save({"average": mean}, tmp_path / CHECKPOINT)
    torch.save({"weights": build_vae().state_dict(), "scaling_factor": 0.5}, tmp_path / "vae_frozen.pt")
    made = run.load_parts(tmp_path, MODEL, 0.25)[0].state_dict()
    assert all(torch.allclose(made[name], value + 0.25, atol=1e-5) for name, value in before.items())

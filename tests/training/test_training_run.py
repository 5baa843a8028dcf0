"""Tests of the training command: a run ends and goes on exactly, and its model is loaded by the product."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training import run, train_transformer, watch
from training.train_transformer import CHECKPOINT, CURVE, DECODER, SHEET, read_parts, write_parts

MODEL = Path(__file__).parents[2] / "assets" / "demo_model"
VAE = "vae/diffusion_pytorch_model.safetensors"
TINY = ("--clips", "2", "--sides", "32", "32", "--canvases", "1")


def command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    """Run the command with these words."""
    monkeypatch.setattr(sys, "argv", ["run", *map(str, words)])
    run.main()


def test_without_a_gpu_the_device_is_refused(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        command(monkeypatch, "--folder", tmp_path, "--device", "cuda")
    assert "torch finds no GPU; leave the option out" in capsys.readouterr().err


def test_a_checkpoint_is_written_over_in_small_files(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(train_transformer, "PART_BYTES", 3000)
    assert read_parts(tmp_path / "made.pt") is None
    for number in range(2):
        values = torch.arange(2000.0) + number
        write_parts(tmp_path / "made.pt", {"values": values})
        parts = sorted(tmp_path.iterdir())
        assert [path.name for path in parts] == [f"made.pt.{part}" for part in range(len(parts))]
        assert max(path.stat().st_size for path in parts) == 3000
        state = read_parts(tmp_path / "made.pt")
        assert torch.equal(state["values"], values)


@pytest.mark.slow
def test_a_run_goes_on_and_its_model_has_both_trained_parts(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "CANVAS_PIXELS", 64)
    monkeypatch.setattr(watch, "SHEET_SECTIONS", 1)
    ticks = iter(range(10_000))
    clock = type("Clock", (), {"perf_counter": staticmethod(lambda: float(next(ticks)))})
    for module in (run, train_transformer, sys.modules["training.vae"]):
        monkeypatch.setattr(module, "time", clock)
    folder = tmp_path / "training"
    minutes = ("--decoder-minutes", "0.05", "--minutes", "0.1", "--folder", folder)
    command(monkeypatch, *TINY, *minutes, "--seconds", "10")
    first = read_parts(folder / CHECKPOINT)
    assert 0 < first["spent"] < 6
    decoder = (folder / DECODER).read_bytes()
    command(monkeypatch, *TINY, *minutes)
    second = read_parts(folder / CHECKPOINT)
    assert second["step"] > first["step"]
    assert second["spent"] >= 6
    assert (folder / DECODER).read_bytes() == decoder
    assert len((folder / CURVE).read_text().splitlines()) == 2
    assert (folder / SHEET).exists()

    target = tmp_path / "model"
    command(monkeypatch, "--folder", folder, "--export", target)
    made, shipped = (load_file(path / VAE) for path in (target, MODEL))
    changed = {name.split(".")[0] for name in made if not torch.equal(made[name], shipped[name])}
    assert changed == {"decoder", "post_quant_conv"}
    transformer = load_file(target / "transformer/diffusion_pytorch_model.safetensors")
    assert all(torch.equal(value, second["average"][name]) for name, value in transformer.items())
    facts = json.loads((target / "longtake.json").read_text(encoding="utf-8"))
    assert (facts["side"], facts["multiple"], facts["steps"]) == (256, 32, 4)
    assert "magnitudes" not in facts
    assert (target / "text_encoder/config.json").exists()

"""Tests of captures in the real ComfyUI, and of nodes that are run again from them in another process.

They need what `test_comfyui.py` needs.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.comfyui_client import node
from tests.support.comfyui_process import ABSENT, COMFYUI, PYTHON, running
from tests.support.layers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMFYUI, reason=ABSENT)]
MODEL, VAE = "wan2.1_t2v_1.3B_bf16.safetensors", "wan_2.1_vae.safetensors"
# See `tests/support/comfyui_server.py` for what ComfyUI's Python may lack, and for the size of Wan's VAE.
COMMAND = """
import sys
from tests.support.comfyui_server import declare_torchaudio, declare_torchvision, shrink_wan
declare_torchvision()
declare_torchaudio()
from rocm_nodes import __main__ as program
prepare = program._prepare
program._prepare = lambda *given: (prepare(*given), shrink_wan())
sys.exit(program.main(sys.argv[1:]))
"""


def test_captured_nodes_have_the_same_bits_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_NINODES_DEBUG", "1")
    with running(tmp_path) as server:
        server.run({
            "1": node("ToyNoise", frames=3, height=6, width=6), "2": node("ToyConditioning", text="a"),
            "3": node("ROCMOptimizedUNetLoader", unet_name=MODEL), "4": node("VAELoader", vae_name=VAE),
            "5": node("ROCMOptimizedKSampler", model=["3", 0], positive=["2", 0], negative=["2", 0],
                      latent_image=["1", 0], cfg=1.0, sampler_name="euler", scheduler="simple", steps=2,
                      seed=1, denoise=1.0),
            "6": node("ROCMOptimizedVAEDecodeTiled", samples=["5", 0], vae=["4", 0], tile_size=256,
                      overlap=96, temporal_size=64, temporal_overlap=8, rocm_optimizations=True),
            "7": node("ToyKeep", name="x.safetensors", image=["6", 0]),
        })  # fmt: skip
    monkeypatch.delenv("ROCM_NINODES_DEBUG")
    files = {
        "--model": tmp_path / "models/diffusion_models" / MODEL, "--vae": tmp_path / "models/vae" / VAE,
    }  # fmt: skip
    objects = [str(part) for pair in files.items() for part in pair]
    captures = {path.parent.name: path for path in (tmp_path / "output/rocm_captures").glob("*/*.json")}
    assert set(captures) == {
        "ROCMOptimizedUNetLoader", "ROCMOptimizedKSampler", "ROCMOptimizedVAEDecodeTiled",
    }  # fmt: skip
    for name, file in captures.items():
        done = subprocess.run(
            [PYTHON, "-c", COMMAND, "replay", str(file), "--comfyui", COMFYUI, *objects,
             "--", "--base-directory", str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (name, done.stderr[-2000:])
        assert "The results are the same, bit for bit." in done.stdout

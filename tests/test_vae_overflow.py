"""A job whose VAE overflows in fp16 goes on in fp32, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusers_helper.events import Finished, Warned
from diffusers_helper.local import Local
from diffusers_helper.profiles import VAE_DTYPE_VARIABLE
from tests.support.making import load_tiny, make, outline, seconds_for, tiny_request, write_scene


@pytest.mark.slow
def test_what_overflows_is_decoded_again_in_fp32(tiny_model: Path, tmp_path: Path) -> None:
    request = tiny_request(write_scene(tmp_path / "scene.png", 32, 32), seconds=seconds_for(2), steps=1)
    models = load_tiny(tiny_model)
    vae = models.part("vae")

    def overflow(module: Any, _: Any, frames: torch.Tensor) -> torch.Tensor:
        types.append(frames.dtype)
        return frames / 0 if frames.dtype == torch.float16 and len(types) > 1 else frames

    types: list[torch.dtype] = []
    vae.decoder.register_forward_hook(overflow)
    local = Local({VAE_DTYPE_VARIABLE: "fp16"})
    result, events = make(request, models, tmp_path / "job", local=local)
    # The second window of the first section overflowed, and nothing was narrow from then on.
    assert types[:2] == [torch.float16] * 2
    assert set(types[2:]) == {torch.float32}
    assert sum("VAE's numbers overflowed" in e.message for e in events if isinstance(e, Warned)) == 1
    assert outline(events).count("decode 1") == 2
    assert isinstance(events[-1], Finished)
    stages = json.loads((tmp_path / "job" / "memory.json").read_text(encoding="utf-8"))["stages"]
    narrow, *wide = [stage for stage in stages if stage["stage"] == "decode"]
    assert not narrow["is_complete"]
    assert all(stage["is_complete"] for stage in wide)
    assert wide[0]["predicted_bytes"] > 1.5 * narrow["predicted_bytes"]
    assert result.frames == 73
    wide_all, _ = make(request, models, tmp_path / "wide", local=Local({VAE_DTYPE_VARIABLE: "fp32"}))
    torch.testing.assert_close(result.latents, wide_all.latents, rtol=0, atol=0.1)

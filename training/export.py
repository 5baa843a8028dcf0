"""The assembly of the trained parts into the folder that the product ships."""

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from diffusers_helper.models.registry import FACTS_FILE
from training.tasks import multiple_of
from training.transformer import SAMPLING_SHIFT

SIDE, STEPS = 256, 4


def export(
    transformer: HunyuanVideoFramepackTransformer3DModel,
    vae: AutoencoderKLHunyuanVideo,
    start: Path,
    target: Path,
) -> None:
    """Write a model folder: the trained weights, and everything else from the folder they began with.

    The magnitudes for MagCache are left out, since they are those of the former weights.
    """
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(start, fresh, ignore=shutil.ignore_patterns("transformer", "vae"))
    transformer.to(torch.bfloat16).save_pretrained(fresh / "transformer")
    vae.to(torch.bfloat16).save_pretrained(fresh / "vae")
    facts = json.loads((start / FACTS_FILE).read_text(encoding="utf-8"))
    facts.pop("magnitudes", None)
    facts |= {"side": SIDE, "multiple": multiple_of(SIDE), "steps": STEPS, "shift": SAMPLING_SHIFT}
    (fresh / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for path in fresh.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)

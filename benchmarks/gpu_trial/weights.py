"""Part 0: the machine, the versions, and a model of FramePack's size with random weights.

The values are drawn on the device. Each layer's have the spread that keeps its results as large as its
inputs, so that nothing overflows in fp16.
"""

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import SiglipImageProcessorPil

from app.machine import output_of
from benchmarks.gpu_trial.parts import has_model
from benchmarks.gpu_trial.trial import Case, Figures, Trial
from diffusers_helper.families.framepack import CONFIGS
from diffusers_helper.loading.networks import empty_network
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.registry import FACTS_FILE, find_model
from diffusers_helper.weights.safetensors_file import make_header

_PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "gguf", "av", "triton", "comfy-kitchen")
_FILE, _THREADS = "diffusion_pytorch_model.safetensors", 4


def weights(trial: Trial) -> Iterator[Case]:
    """Yield the facts about the machine, and the writing of each network unless the model is there."""
    yield "machine", partial(_machine, trial)
    if has_model(trial.folder, is_tiny=trial.is_tiny):
        yield "weights", "they are there from an earlier call"
    elif trial.is_tiny:
        yield "weights", partial(_write_tiny, trial)
    else:
        for part in CONFIGS:
            yield part, partial(_write_network, trial, part)
        yield "weights", partial(_finish, trial)


def _machine(trial: Trial) -> Figures:
    facts: Figures = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    query = "driver_version,pcie.link.gen.max,pcie.link.width.max,memory.total,power.limit"
    return facts | {
        "card": torch.cuda.get_device_name() if trial.device.has_gpu else None,
        "driver": output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").strip() or None,
        "cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": torch.backends.cudnn.version(),
        "device_bytes": trial.device.total_bytes, "cores": os.cpu_count(),
        "main_memory_bytes": host_memory().total, "free_bytes": shutil.disk_usage(trial.folder).free,
    }  # fmt: skip


def _write_tiny(trial: Trial) -> Figures:
    from tests.support.tiny_model import write_tiny_model

    begin = time.perf_counter()
    write_tiny_model(trial.model)
    return {"seconds": time.perf_counter() - begin}


def _write_network(trial: Trial, part: str) -> Figures:
    dtype = "bfloat16" if part == "transformer" else "float16"
    begin = time.perf_counter()
    size = write_random(part, CONFIGS[part], dtype, trial.model / part, trial.torch_device)
    return {"seconds": time.perf_counter() - begin, "moved_bytes": size}


def write_random(part: str, config: Mapping[str, Any], dtype: str, folder: Path, device: torch.device) -> int:
    """Write a network with random weights of this type to a folder, and return its file's size in bytes."""
    shapes = {name: tuple(one.shape) for name, one in empty_network(part, config).state_dict().items()}
    header, places, size = make_header({name: (dtype, one) for name, one in shapes.items()}, {"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    with (folder / _FILE).open("wb") as file, ThreadPoolExecutor(_THREADS) as threads:
        file.write(header)
        file.truncate(size)
        file.flush()

        def write(name: str) -> None:
            values = _values(name, shapes[name], getattr(torch, dtype), device).cpu()
            os.pwrite(file.fileno(), values.view(torch.uint8).numpy().data, places[name])

        list(threads.map(write, shapes))
    return size


def _values(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return values for a parameter: ones for what scales, small ones for what is added."""
    if len(shape) < 2:
        is_scale = name.endswith("weight")
        return (torch.ones if is_scale else torch.zeros)(shape, dtype=dtype, device=device)
    return torch.randn(shape, dtype=dtype, device=device).mul_(math.prod(shape[1:]) ** -0.5)


def _finish(trial: Trial) -> Figures:
    """Add the parts without weights, of which the tokenizers are the bundled model's."""
    for part in ("tokenizer", "tokenizer_2"):
        shutil.copytree(find_model("demo").components[part].folder, trial.model / part, dirs_exist_ok=True)
    side = CONFIGS["image_encoder"]["image_size"]
    extractor = SiglipImageProcessorPil(size={"height": side, "width": side})
    extractor.save_pretrained(trial.model / "feature_extractor")
    (trial.model / FACTS_FILE).write_text(json.dumps({"title": "Random weights"}), encoding="utf-8")
    return {}

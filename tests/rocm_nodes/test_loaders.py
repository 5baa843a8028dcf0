"""Tests of the loaders against a double of ComfyUI."""

import itertools
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.failures import LONGTAKE_DRIVER
from diffusers_helper.planning.out_of_memory import LONGTAKE
from diffusers_helper.units import GB
from rocm_nodes import NODE_CLASS_MAPPINGS, loaders
from rocm_nodes.page import COMFYUI, COMFYUI_DRIVER
from tests.support.comfy_double import Comfy, ModelPatcher
from tests.support.node_runs import SHORT, run


def write_weights(comfy: Comfy, kind: str, name: str, **tensors: Tensor) -> None:
    folder = comfy.root / kind
    folder.mkdir(exist_ok=True)
    save_file(tensors or {"weight": torch.zeros(64, 64)}, folder / name)


def failing(error: Exception) -> Callable[[str], None]:
    def fail(path: str) -> None:
        raise error

    return fail


FP8 = torch.zeros(64, 64).to(torch.float8_e4m3fn)
SD3 = {"model.diffusion_model.joint_blocks.0.context_block.x": torch.zeros(4, 4)}
MIOPEN, BLAS = "miopenStatusUnknownError", "CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling"


def test_what_the_loaders_do_and_say(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    clock = itertools.count(step=2.0)
    monkeypatch.setattr("rocm_nodes.page.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("rocm_nodes.host.torch.__version__", "2.0")
    lines, needed, usual = list[str](), 64 * 64 * 4, comfy.loads

    def load(
        name: str, tensors: dict[str, Tensor], loads: Any = None, free: int = 8 * GB, **inputs: Any
    ) -> None:
        node, kind, setting = {
            "checkpoint": ("ROCMOptimizedCheckpointLoader", "checkpoints", "ckpt_name"),
            "unet": ("ROCMOptimizedUNetLoader", "diffusion_models", "unet_name"),
            "old": ("ROCmDiffusionLoader", "diffusion_models", "unet_name"),
        }[name]
        write_weights(comfy, kind, "a.safetensors", **tensors)
        comfy.calls.clear()
        comfy.texts.clear()
        comfy.loads, comfy.free = loads or usual, free
        try:
            result, text = run(node, **{setting: "a.safetensors"}, **inputs)
            kinds = [type(part).__name__ for part in result]
            lines.append(f"{name} {inputs}: {kinds} {comfy.calls}")
            lines.extend(f"  {line}" for line in text.splitlines() if f"  {line}" not in lines)
        except (LongtakeError, RuntimeError) as error:
            text = str(error).replace(str(comfy.root), "<comfy>")
            lines.append(f"{name} {type(error).__mro__[1].__name__} {comfy.calls}: {text}")
        lines.append(f"  below the node: {' | '.join(text for _, text in comfy.texts)}")

    load("checkpoint", SD3)
    for dtype in ("default", "fp8_e4m3fn", "fp8_e5m2"):
        load("old", {}, weight_dtype=dtype)
    load("unet", {}, free=needed)
    load("unet", {}, free=needed - 1)
    load("unet", {"blocks.0.ffn.0.weight": FP8}, weight_dtype="fp8_e5m2")
    load("unet", {"weight": FP8, "scaled_fp8": torch.zeros(1)}, weight_dtype="fp8_e5m2")
    for error in (torch.OutOfMemoryError(SHORT), *map(RuntimeError, (MIOPEN, BLAS, "ERROR: not a model"))):
        load("unet", {}, failing(error))
    for name in ("checkpoints", "loras"):
        write_weights(comfy, name, "b.safetensors")
        file = comfy.root / name / "b.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    comfy.loads = lambda path: pytest.fail("it was loaded")
    inputs = {"lora_name": "b.safetensors", "strength_model": 0.5, "strength_clip": 1}
    for node, names in (
        ("ROCMOptimizedCheckpointLoader", {"ckpt_name": "b.safetensors"}),
        ("ROCMLoRALoader", inputs | {"model": ModelPatcher()}),
    ):
        with pytest.raises(InputError) as refused:
            run(node, **names)
        lines.append(str(refused.value).replace(str(comfy.root), "<comfy>"))
    for names, total in (("", 9), ("abcde", 10), ("abcdef", 11)):
        lines.append(loaders._unused([*names], total))
    assert "\n".join(lines) == snapshot
    assert (set(COMFYUI), set(COMFYUI_DRIVER)) == (set(LONGTAKE), set(LONGTAKE_DRIVER))


def test_what_systems_keep_beside_files_is_not_offered(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.safetensors", "._a.safetensors", "b.gguf", "._b.gguf", "C.GGUF"):
        write_weights(comfy, "diffusion_models", name)
        write_weights(comfy, "loras", name)
    loras = NODE_CLASS_MAPPINGS["ROCMLoRALoader"].INPUT_TYPES()["required"]
    assert loras["lora_name"][0] == ["a.safetensors"]
    for listed in (False, True):  # as a version of ComfyUI that lists GGUF files itself
        if listed:
            monkeypatch.setattr(
                sys.modules["folder_paths"], "get_filename_list", lambda kind: ["a.safetensors", "b.gguf"]
            )
        inputs = NODE_CLASS_MAPPINGS["ROCmDiffusionLoader"].INPUT_TYPES()["required"]
        assert inputs["unet_name"][0] == ["C.GGUF", "a.safetensors", "b.gguf"]


@pytest.mark.parametrize(
    ("node", "kind", "input_name"),
    [
        ("ROCMOptimizedCheckpointLoader", "checkpoints", "ckpt_name"),
        ("ROCMOptimizedUNetLoader", "diffusion_models", "unet_name"),
    ],
)
def test_the_log_and_the_node_say_what_is_loaded_before_it_is(
    comfy: Comfy, caplog: pytest.LogCaptureFixture, node: str, kind: str, input_name: str
) -> None:
    caplog.set_level(logging.INFO, "rocm_nodes")
    sentence = "Loading large.safetensors (0.031 GB), which may take minutes."
    write_weights(comfy, kind, "large.safetensors", weight=torch.zeros(2048, 4096))
    seen = list[bool]()
    comfy.loads = lambda path: seen.append(
        caplog.messages == [sentence] and [text for _, text in comfy.texts] == [sentence]
    )
    run(node, **{input_name: "large.safetensors"})
    assert seen == [True]


def test_a_pickle_is_refused_where_torch_would_run_its_code(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_weights(comfy, "checkpoints", "a.safetensors")
    torch.save({"weight": torch.zeros(1)}, comfy.root / "checkpoints" / "a.ckpt")
    run("ROCMOptimizedCheckpointLoader", ckpt_name="a.ckpt")
    monkeypatch.delattr(sys.modules["comfy.utils"], "ALWAYS_SAFE_LOAD")  # newer versions have no other way
    run("ROCMOptimizedCheckpointLoader", ckpt_name="a.ckpt")
    monkeypatch.setattr(sys.modules["comfy.utils"], "ALWAYS_SAFE_LOAD", False, raising=False)
    with pytest.raises(InputError, match=r"a\.ckpt is a pickle, and this torch would run the code in it"):
        run("ROCMOptimizedCheckpointLoader", ckpt_name="a.ckpt")

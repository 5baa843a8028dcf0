"""Tests of the loaders against a double of ComfyUI."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.failures import LONGTAKE_DRIVER
from diffusers_helper.planning.out_of_memory import LONGTAKE
from diffusers_helper.weights.inspection import Inspection
from rocm_nodes import NODE_CLASS_MAPPINGS, loaders
from rocm_nodes.page import COMFYUI, COMFYUI_DRIVER
from tests.support.comfy_double import VAE, Comfy, ModelPatcher
from tests.support.node_runs import SHORT, run


def write_weights(comfy: Comfy, kind: str, name: str, **tensors: Tensor) -> None:
    folder = comfy.root / kind
    folder.mkdir(exist_ok=True)
    save_file(tensors or {"weight": torch.zeros(64, 64)}, folder / name)


def test_a_checkpoint_is_loaded_by_comfyui_and_described(comfy: Comfy) -> None:
    write_weights(
        comfy,
        "checkpoints",
        "sd3.safetensors",
        **{"model.diffusion_model.joint_blocks.0.context_block.x": torch.zeros(4, 4)},
    )
    (model, clip, vae), text = run("ROCMOptimizedCheckpointLoader", ckpt_name="sd3.safetensors")
    assert isinstance(model, ModelPatcher)
    assert clip is None
    assert isinstance(vae, VAE)
    assert "sd3.safetensors: SD3, 1 tensor, 100% float32." in text
    assert "The checkpoint has no text encoder" in text
    assert "8 GB were free" in text
    assert "Memory before: 8 GB used of 16 GB; 8 GB free. After:" in text
    assert "GB/s" in text
    assert comfy.calls == []  # nothing was trimmed


@pytest.mark.parametrize(
    ("dtype", "options"), [("default", "[]"), ("fp8_e4m3fn", "['dtype']"), ("fp8_e5m2", "['dtype']")]
)
def test_a_diffusion_model_is_loaded_in_the_wished_type(comfy: Comfy, dtype: str, options: str) -> None:
    write_weights(comfy, "diffusion_models", "wan.safetensors")
    run("ROCmDiffusionLoader", unet_name="wan.safetensors", weight_dtype=dtype)
    assert comfy.calls == [f"load_diffusion_model {options}"]


def test_what_systems_keep_beside_files_is_not_offered(comfy: Comfy) -> None:
    for name in ("a.safetensors", "._a.safetensors", "b.gguf", "._b.gguf"):
        write_weights(comfy, "diffusion_models", name)
        write_weights(comfy, "loras", name)
    inputs = NODE_CLASS_MAPPINGS["ROCmDiffusionLoader"].INPUT_TYPES()["required"]
    assert inputs["unet_name"][0] == ["a.safetensors", "b.gguf"]
    assert NODE_CLASS_MAPPINGS["ROCMLoRALoader"].INPUT_TYPES()["required"]["lora_name"][0] == [
        "a.safetensors"
    ]


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


def test_plain_weights_in_fp8_get_the_wished_type(comfy: Comfy) -> None:
    weights = {"blocks.0.ffn.0.weight": torch.zeros(64, 64).to(torch.float8_e4m3fn)}
    write_weights(comfy, "diffusion_models", "fp8.safetensors", **weights)
    run("ROCMOptimizedUNetLoader", unet_name="fp8.safetensors", weight_dtype="fp8_e5m2")
    assert comfy.calls == ["load_diffusion_model ['dtype']"]


def test_scaled_weights_keep_their_type(comfy: Comfy) -> None:
    write_weights(
        comfy, "diffusion_models", "a.safetensors", weight=torch.zeros(4, 4, dtype=torch.float8_e4m3fn),
        scaled_fp8=torch.zeros(1),
    )  # fmt: skip
    _, text = run("ROCMOptimizedUNetLoader", unet_name="a.safetensors", weight_dtype="fp8_e5m2")
    assert comfy.calls == ["load_diffusion_model []"]
    assert "weight_dtype fp8_e5m2 is not used" in text
    assert "quantised (scaled fp8)" in text


def test_a_shortage_while_loading_reaches_the_page_with_the_guide(comfy: Comfy) -> None:
    write_weights(comfy, "diffusion_models", "a.safetensors")

    def fail(path: str) -> None:
        raise torch.OutOfMemoryError(SHORT)

    comfy.loads = fail
    with pytest.raises(torch.OutOfMemoryError, match=r"1\. Reduce batch size") as caught:
        run("ROCMOptimizedUNetLoader", unet_name="a.safetensors")
    text = str(caught.value)
    assert "it needed 8 GB more, but only 1 GB were free" in text
    assert "--reserve-vram 2" in text
    for word in ("preserved_gb", "doctor", "Longtake", "vae_tile"):
        assert word not in text
    assert set(COMFYUI) == set(LONGTAKE)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "miopenStatusUnknownError",
            r"1\. Remove what MIOpen has learned .*\n2\. Start ComfyUI with MIOPEN_FIND",
        ),
        ("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling", r"1\. .*TORCH_BLAS_PREFER_HIPBLASLT=0"),
    ],
)
def test_a_failure_of_the_cards_libraries_reaches_the_page_with_its_guide(
    text: str, remedy: str, comfy: Comfy
) -> None:
    write_weights(comfy, "diffusion_models", "a.safetensors")

    def fail(path: str) -> None:
        raise RuntimeError(text)

    comfy.loads = fail
    with pytest.raises(LongtakeError, match=remedy) as caught:
        run("ROCMOptimizedUNetLoader", unet_name="a.safetensors")
    reported = str(caught.value)
    assert text in reported
    for word in ("doctor", "Longtake", "--miopen"):
        assert word not in reported
    assert set(COMFYUI_DRIVER) == set(LONGTAKE_DRIVER)


def test_another_error_of_the_loader_stays_as_it_is(comfy: Comfy) -> None:
    write_weights(comfy, "diffusion_models", "a.safetensors")

    def fail(path: str) -> None:
        raise RuntimeError("ERROR: Could not detect model type")

    comfy.loads = fail
    with pytest.raises(RuntimeError, match=r"^ERROR: Could not detect model type$"):
        run("ROCMOptimizedUNetLoader", unet_name="a.safetensors")


def test_a_damaged_file_is_refused_before_it_is_loaded(comfy: Comfy) -> None:
    write_weights(comfy, "checkpoints", "a.safetensors")
    file = comfy.root / "checkpoints" / "a.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    comfy.loads = lambda path: pytest.fail("it was loaded")
    with pytest.raises(InputError, match=r"a.safetensors is incomplete: it has \d+ bytes of \d+"):
        run("ROCMOptimizedCheckpointLoader", ckpt_name="a.safetensors")


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


@pytest.mark.parametrize(("free", "does_not_fit"), [(2048, False), (2047, True)])
def test_what_a_load_takes_is_compared_with_what_is_free(
    free: int, does_not_fit: bool, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "free_bytes", lambda device: free)
    model = SimpleNamespace(
        model_dtype=lambda: torch.float16, model=SimpleNamespace(manual_cast_dtype=torch.bfloat16)
    )
    facts = Inspection("/x/a.safetensors", "safetensors", bytes=2048, dtypes={"BF16": 0.75, "F32": 0.25})
    lines, result = loaders._loaded(facts, lambda: (model,))
    assert result == (model,)
    assert lines[0] == "a.safetensors: an unknown model, 0 tensors, 75% BF16, 25% F32."
    assert ("They do not fit" in lines[1]) == does_not_fit
    assert lines[-1] == "ComfyUI keeps the weights in torch.float16 and computes in torch.bfloat16."
    assert any("Memory before: 8 GB used of 16 GB; 8 GB free. After: 8 GB used" in line for line in lines)


@pytest.mark.parametrize(
    ("names", "total", "expected"),
    [
        ("", 9, "All 9 keys of the file are used."),
        ("abcde", 10, "5 of 10 keys of the file fit nothing here: a, b, c, d, e."),
        ("abcdef", 11,
         "6 of 11 keys of the file fit nothing here: a, b, c, d, e, .... The LoRA may be for another model."),
    ],
)  # fmt: skip
def test_keys_that_are_not_used_are_counted_and_the_first_are_named(
    names: str, total: int, expected: str
) -> None:
    assert loaders._unused([*names], total) == expected
    before, after = {"a": [1], "b": [1]}, {"a": [1, 2], "b": [1], "c": [1]}
    assert loaders._added(before, after) == 2

"""The real ComfyUI with models of toy size: `comfyui_server.py ROOT BASE [arguments of main.py]`.

It is run by ComfyUI's own Python. It writes the models that are missing in BASE, and starts ComfyUI there. If
`COMFYUI_DYNAMIC` is set, models are held by the class for dynamic memory, which ComfyUI uses on cards alone.
"""

import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_WAN_WIDTH = 8


def declare_torchvision() -> None:
    """Declare the two operators without which a torchvision of another build cannot be imported."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            library.define(name + signature)
        declare_torchvision.library = library  # type: ignore[attr-defined] - it must live as long as torch


def declare_torchaudio() -> None:
    """Put empty modules in the place of torchaudio, which has no build for some versions of torch.

    Newer versions of ComfyUI import it at their start. Only nodes for sound call it.
    """
    try:
        import torchaudio  # type: ignore[import-not-found]  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        for name in ("torchaudio", "torchaudio.functional", "torchaudio.transforms"):
            sys.modules[name] = module_from_spec(ModuleSpec(name, None))
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])


def shrink_wan() -> None:
    """Let ComfyUI build its Wan VAE with a width of 8 instead of 96."""
    from comfy.ldm.wan import vae  # type: ignore[import-not-found]

    class WanVAE(vae.WanVAE):
        def __init__(self, dim: int = 96, **rest: Any) -> None:
            super().__init__(dim=_WAN_WIDTH, **rest)

    vae.WanVAE = WanVAE


def use_dynamic_memory() -> None:
    """Let ComfyUI's class for dynamic memory hold models on the CPU, where it has no memory of a card."""
    import comfy.memory_management  # type: ignore[import-not-found]
    import comfy.model_patcher  # type: ignore[import-not-found]

    kind = comfy.model_patcher.ModelPatcherDynamic
    kind.__new__ = lambda cls, *_, **__: object.__new__(cls)
    kind.partially_unload = lambda self, *_, **__: self.restore_loaded_backups()
    comfy.model_patcher.CoreModelPatcher = kind
    comfy.memory_management.aimdo_enabled = True


def filled(module: torch.nn.Module, scale: float = 0.05) -> dict[str, torch.Tensor]:
    """Return weights of the module's shapes, the same each time."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for name, value in module.state_dict().items():
        is_matrix = value.dim() > 1 and "gamma" not in name
        fresh = scale * torch.randn(value.shape, generator=generator)
        found[name] = (
            fresh if is_matrix else torch.ones(value.shape) if "norm" in name or "gamma" in name else fresh
        )
    return found


def write_models(base: Path) -> None:
    """Write a checkpoint (SD3 and a VAE of pictures), Wan in two types, and Wan's VAE."""
    import comfy.ops  # type: ignore[import-not-found]
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT  # type: ignore[import-not-found]
    from comfy.ldm.wan.model import WanModel  # type: ignore[import-not-found]
    from comfy.ldm.wan.vae import WanVAE  # type: ignore[import-not-found]
    from comfy.taesd.taesd import TAESD  # type: ignore[import-not-found]

    operations: dict[str, Any] = {"operations": comfy.ops.disable_weight_init, "dtype": torch.float32}
    context = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}
    sd3 = MMDiT(
        input_size=None, in_channels=16, patch_size=2, depth=2, adm_in_channels=2048, num_patches=36864,
        pos_embed_max_size=192, pos_embed_scaling_factor=None, context_embedder_config=context, **operations,
    )  # fmt: skip
    checkpoint = {f"model.diffusion_model.{name}": value for name, value in filled(sd3).items()}
    taesd = filled(TAESD(latent_channels=16), 0.1) | {
        "vae_scale": torch.tensor(1.0),
        "vae_shift": torch.tensor(0.0),
    }
    checkpoint |= {f"first_stage_model.{name}": value for name, value in taesd.items()}
    write(base / "models/checkpoints/flux1-dev-fp8.safetensors", checkpoint)
    write(base / "models/checkpoints/sd3.5_medium.safetensors", checkpoint)
    wan = filled(WanModel(dim=128, ffn_dim=128, num_heads=1, num_layers=1, **operations))
    write(base / "models/diffusion_models/wan2.1_t2v_1.3B_bf16.safetensors", wan)
    quantised = {
        name: value.to(torch.float8_e4m3fn) if value.dim() > 1 and "blocks" in name else value
        for name, value in wan.items()
    }
    write(base / "models/diffusion_models/wan2.1_t2v_1.3B_fp8.safetensors", quantised)
    shape: dict[str, Any] = {
        "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [],
        "temperal_downsample": [False, True, True],
    }  # fmt: skip
    write(base / "models/vae/wan_2.1_vae.safetensors", filled(WanVAE(**shape)))


def write(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)


def main() -> None:
    root, base = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(root))
    sys.argv = [str(root / "main.py"), "--cpu", "--base-directory", str(base), *sys.argv[3:]]
    declare_torchvision()
    declare_torchaudio()
    import comfy.options  # type: ignore[import-not-found]

    comfy.options.enable_args_parsing()
    is_dynamic = bool(os.environ.get("COMFYUI_DYNAMIC"))
    if is_dynamic:
        import comfy_aimdo.control  # type: ignore[import-not-found]

        comfy_aimdo.control.init()  # before the modules that read its library
    shrink_wan()
    with torch.inference_mode():
        write_models(base)
    if is_dynamic:
        use_dynamic_memory()
    runpy.run_path(str(root / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()

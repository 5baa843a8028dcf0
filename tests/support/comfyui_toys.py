"""Nodes for tests in the real ComfyUI: inputs without a text encoder, faults, and facts of the process."""

import os
import time
from typing import Any, ClassVar

import folder_paths  # type: ignore[import-not-found]
import torch
from safetensors.torch import save_file


class _Toy:
    RETURN_TYPES: tuple[str, ...] = ()
    FUNCTION, CATEGORY, OUTPUT_NODE = "run", "toys", False
    REQUIRED: ClassVar[dict[str, Any]] = {}
    OPTIONAL: ClassVar[dict[str, Any]] = {}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": cls.REQUIRED, "optional": cls.OPTIONAL}


class ToyConditioning(_Toy):
    RETURN_TYPES = ("CONDITIONING",)

    REQUIRED: ClassVar[dict[str, Any]] = {"text": ("STRING", {"default": ""})}

    def run(self, text: str) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(len(text))
        states, pooled = (
            torch.randn(1, 4, 4096, generator=generator),
            torch.randn(1, 2048, generator=generator),
        )
        return ([[states, {"pooled_output": pooled}]],)


class ToyClip(_Toy):
    """A text encoder for the benchmark."""

    RETURN_TYPES = ("CLIP",)

    def run(self) -> tuple[Any, ...]:
        return (self,)

    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> Any:
        return ToyConditioning().run(tokens)[0]


class ToyNoise(_Toy):
    RETURN_TYPES = ("LATENT",)

    REQUIRED: ClassVar[dict[str, Any]] = {
        name: ("INT", {"default": 8}) for name in ("frames", "height", "width")
    }

    def run(self, frames: int, height: int, width: int) -> tuple[Any, ...]:
        shape = (1, 16, frames, height, width) if frames else (1, 16, height, width)
        return ({"samples": torch.randn(shape, generator=torch.Generator().manual_seed(1))},)


class ToyKeep(_Toy):
    OUTPUT_NODE = True

    REQUIRED: ClassVar[dict[str, Any]] = {"name": ("STRING", {"default": ""})}
    OPTIONAL: ClassVar[dict[str, Any]] = {"image": ("IMAGE",), "latent": ("LATENT",)}

    def run(self, name: str, image: Any = None, latent: Any = None) -> dict[str, Any]:
        value = image if latent is None else latent["samples"]
        path = os.path.join(folder_paths.get_output_directory(), name)
        save_file({"value": value.contiguous().clone()}, path)
        return {"ui": {"path": [path]}}


class ToyFault(_Toy):
    """A VAE whose convolutions fail, whose memory runs out, or whose blocks take long."""

    RETURN_TYPES = ("VAE",)

    REQUIRED: ClassVar[dict[str, Any]] = {"vae": ("VAE",), "kind": (["conv", "memory", "slow", "none"],)}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        return float("nan")

    def run(self, vae: Any, kind: str) -> tuple[Any, ...]:
        network = vae.first_stage_model
        for handle in getattr(vae, "toy_handles", []):
            handle.remove()
        vae.toy_handles = []
        if kind == "slow":
            blocks = [part for part in network.modules() if type(part).__name__ == "ResidualBlock"]
            vae.toy_handles = [part.register_forward_hook(_slowly) for part in blocks]
        if kind == "memory":
            vae.toy_handles = [network.decoder.register_forward_pre_hook(_short)]
        if kind == "conv":
            place = network.decoder.conv1
            place.weight = _Broken(place.weight)
            vae.toy_handles = [_Restore(place)]
        return (vae,)


def _slowly(*_: Any) -> None:
    with open(os.path.join(folder_paths.get_output_directory(), "slow.txt"), "a", encoding="ascii") as file:
        file.write("block\n")
    time.sleep(0.2)


def _short(*_: Any) -> None:
    raise torch.OutOfMemoryError(
        "HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which "
        "1.00 GiB is free."
    )


class _Broken(torch.nn.Parameter):
    """A weight with which torch's 3D convolution fails as MIOpen does, and all else works."""

    def __new__(cls, plain: torch.Tensor) -> "_Broken":
        return torch.Tensor._make_subclass(cls, plain.detach(), False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv3d:
            raise RuntimeError("miopenStatusUnknownError")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class _Restore:
    def __init__(self, place: Any) -> None:
        self.place = place

    def remove(self) -> None:
        plain = self.place.weight.as_subclass(torch.Tensor)
        self.place.weight = torch.nn.Parameter(plain, requires_grad=False)


class ToyProcess(_Toy):
    """What a node must not change in the process."""

    OUTPUT_NODE = True

    REQUIRED: ClassVar[dict[str, Any]] = {"vae": ("VAE",)}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        return float("nan")

    def run(self, vae: Any) -> dict[str, Any]:
        import logging
        import sys
        import warnings

        functional, network = torch.nn.functional, vae.first_stage_model
        hooks = sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in network.modules())
        own = sorted(
            {key for part in network.modules() for key in vars(part) if key in ("forward", "_conv_forward")}
        )
        facts = [
            str(sorted(os.environ.items())), str(functional.conv3d is torch.conv3d), str(hooks), str(own),
            str(torch.get_default_dtype()), str(torch.get_num_threads()), str(logging.getLogger().handlers),
            str(logging.getLogger().level), str(next(network.parameters()).dtype), str(sys.path),
            str(warnings.filters),
        ]  # fmt: skip
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return {"ui": {"facts": facts, "rss": [pages * os.sysconf("SC_PAGE_SIZE")]}}


class ToySignatures(_Toy):
    """The parameters of functions, for a comparison with those that the double was made after."""

    OUTPUT_NODE = True

    REQUIRED: ClassVar[dict[str, Any]] = {"names": ("STRING", {"default": ""})}

    def run(self, names: str) -> dict[str, Any]:
        import importlib
        import inspect

        found: list[str] = []
        for name in names.split():
            module, _, rest = name.partition(":")
            place: Any = importlib.import_module(module)
            for part in rest.split("."):
                place = getattr(place, part)
            found.append(" ".join(inspect.signature(place).parameters))
        return {"ui": {"parameters": found}}


NODE_CLASS_MAPPINGS = {
    kind.__name__: kind
    for kind in (ToyClip, ToyConditioning, ToyNoise, ToyKeep, ToyFault, ToyProcess, ToySignatures)
}

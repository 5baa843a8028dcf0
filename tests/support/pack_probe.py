"""A program that loads copies of the pack beside modules of others with the names of ours, as ComfyUI does.

    python -P pack_probe.py ORDER HOSTILE OUTPUT PACK...

ORDER is "hostile" or "pack", which says what is loaded first. HOSTILE is a folder with the others' modules,
and OUTPUT a folder for the results of two nodes and a JSON object with what was found. Longtake's own folder
is not on the path.
"""

import importlib
import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

OWN = ("app", "cache", "diffusers_helper", "rocm_nodes", "training")


def loaded(name: str, file: Path) -> ModuleType:
    """Load a file under a name. The file of a package gets the places of its modules from its own name."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_pack(folder: str) -> ModuleType:
    """Load a folder as `load_custom_node` of ComfyUI does."""
    return loaded(folder.replace(".", "_x_"), Path(folder, "__init__.py"))


def load_hostile() -> dict[str, dict[str, Any]]:
    return {name: dict(vars(importlib.import_module(name))) for name in OWN}


def below(pack: ModuleType) -> dict[str, ModuleType]:
    """Return the modules of a pack by their names in it."""
    start = f"{pack.__name__}._vendor."
    return {name.removeprefix(start): one for name, one in sys.modules.items() if name.startswith(start)}


def load_everything(pack: ModuleType) -> None:
    """Load also what the pack's modules only load when it is needed."""
    (folder,) = pack.__path__
    for file in sorted(Path(folder, "_vendor").rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        importlib.import_module(".".join([pack.__name__, *parts]).removesuffix(".__init__"))


def state(pack: ModuleType) -> dict[int, str]:
    """Return what the pack's modules have made, and what they hold that can change."""
    return {
        id(value): f"{name}.{key}"
        for name, module in below(pack).items()
        for key, value in vars(module).items()
        if key != "__builtins__"
        and (
            isinstance(value, dict | list | set | logging.Logger)
            or str(getattr(value, "__module__", "")).startswith(f"{pack.__name__}.")
        )
    }


def run(pack: ModuleType, name: str, **inputs: Any) -> tuple[torch.Tensor, str]:
    node = pack.NODE_CLASS_MAPPINGS[name]
    with torch.inference_mode():
        found = getattr(node(), node.FUNCTION)(**inputs)
    return found["result"][0].contiguous(), found["ui"]["text"][0]


def inputs_of(double: ModuleType) -> dict[str, dict[str, Any]]:
    """Return inputs for two nodes, which the test gives to the nodes that are not packed, too."""
    latents = torch.randn(1, 16, 4, 6, generator=torch.Generator().manual_seed(1))
    decoder = {"samples": {"samples": latents}, "vae": double.VAE(double.PictureVae())}
    image = torch.linspace(0, 1, 64 * 64 * 3).reshape(1, 64, 64, 3)
    video = {"image": image, "prompt": "the red ball moves right", "model": "demo", "seconds": 1.0}
    return {
        "ROCMOptimizedVAEDecode": decoder | {"tile_size": 768, "overlap": 96},
        "ROCMFramePackVideo": video | {"seed": 1, "steps": 1},
    }


def in_files(module: ModuleType, *folders: str) -> bool:
    return str(getattr(module, "__file__", "")).startswith(folders)


def main(order: str, hostile: str, output: Path, *folders: str) -> None:
    sys.path.insert(0, hostile)
    double = loaded("comfy_double", Path(__file__).with_name("comfy_double.py"))
    with pytest.MonkeyPatch.context() as patch:
        double.Comfy(patch, output)
        before = load_hostile() if order == "hostile" else {}
        packs = [load_pack(folder) for folder in folders]
        before = before or load_hostile()
        runs = {name: run(packs[0], name, **inputs) for name, inputs in inputs_of(double).items()}
        for pack in packs:
            load_everything(pack)
    save_file({name: tensor for name, (tensor, _) in runs.items()}, output / "results.safetensors")
    first, second = (state(pack) for pack in packs)
    modules, names = list(sys.modules.items()), tuple(pack.__name__ for pack in packs)
    # What torch or diffusers owns can be in both, such as a table that a module has imported from there.
    of_others = {
        id(value) for name, one in modules if not name.startswith(names) for value in vars(one).values()
    }
    facts = {
        "nodes": list(packs[0].NODE_CLASS_MAPPINGS),
        "titles": packs[0].NODE_DISPLAY_NAME_MAPPINGS,
        "modules": [sorted(below(pack)) for pack in packs],
        "sizes": [len(first), len(second)],
        "shared": [first[one] for one in first.keys() & second.keys() - of_others],
        "changed": [name for name, content in before.items() if dict(vars(sys.modules[name])) != content],
        "asked": [name for content in before.values() for name in content["asked"]],
        "bare": [name for name, one in modules if name.split(".")[0] in OWN and not in_files(one, hostile)],
        "leaked": [name for name, one in modules if in_files(one, *folders) and not name.startswith(names)],
        "loggers": [one._log.name for one in below(packs[0]).values() if hasattr(one, "_log")],
        "lazy": [
            below(packs[1])["diffusers_helper.sampling"].sampler("unipc").__module__,
            below(packs[1])["diffusers_helper.memory"].unload_complete_models.__module__,
        ],
        "path": sys.path,
        "texts": [text for _, text in runs.values()],
        "names": names,
    }
    Path(output, "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])

"""The only module that reaches ComfyUI: its modules by name, its device, interrupt and progress bar."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import torch

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.files import is_visible
from diffusers_helper.memory.device import Device, open_device
from diffusers_helper.units import gb_text

# Packages are imported within this, which takes back the filters for warnings that some of them add.
importing = warnings.catch_warnings


def comfy(name: str) -> Any:
    return importlib.import_module(name)


def management() -> Any:
    return comfy("comfy.model_management")


def device() -> Device:
    return open_device(management().get_torch_device(), is_guest=True)


def file_names(kind: str) -> list[str]:
    return _visible(comfy("folder_paths").get_filename_list(kind))


def model_files(kind: str) -> list[str]:
    """List the files of `file_names`, with GGUF files, which ComfyUI omits."""
    paths = comfy("folder_paths")
    listings = (paths.recursive_search(folder)[0] for folder in paths.get_folder_paths(kind))
    extra = [name for names in listings for name in names if name.lower().endswith(".gguf")]
    return sorted({*file_names(kind), *_visible(extra)})


def _visible(names: Iterable[str]) -> list[str]:
    return [name for name in names if all(map(is_visible, PurePath(name).parts))]


class Interrupt(CancelToken):
    def check(self) -> None:
        if management().processing_interrupted():
            raise GenerationCancelled


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    try:
        yield Interrupt()
    except GenerationCancelled:
        pass
    else:
        return
    host = management()
    host.throw_exception_if_processing_interrupted()
    raise host.InterruptProcessingException


def progress_bar() -> Callable[..., None]:
    bars: list[Any] = []

    def show(value: int, total: int, preview: Any = None) -> None:
        if not bars:
            bars.append(comfy("comfy.utils").ProgressBar(total))
        bars[0].update_absolute(value, total, preview)

    return show


def show_text(text: str) -> None:
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is not None and server.last_node_id is not None:
        server.send_progress_text(text, server.last_node_id, server.client_id)


def free_bytes(torch_device: torch.device) -> int:
    return int(management().get_free_memory(torch_device))


def is_rocm() -> bool:
    return torch.version.hip is not None and management().get_torch_device().type == "cuda"


def device_lines() -> tuple[str, str]:
    torch_device = management().get_torch_device()
    name = "CPU"
    software = "no GPU"
    if torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(torch_device)
        name = properties.name
        software = f"CUDA {torch.version.cuda}"
        if torch.version.hip is not None:
            software = f"ROCm {torch.version.hip}, {properties.gcnArchName.split(':')[0]}"
    machine = f"Device: {name} ({software}), torch {torch.__version__}. {miopen_line()}".rstrip()
    free, total = free_bytes(torch_device), int(management().get_total_memory(torch_device))
    return machine, f"{gb_text(total - free)} GB used of {gb_text(total)} GB; {gb_text(free)} GB free"


def miopen_line() -> str:
    """Describe MIOpen on an AMD card, which ComfyUI switches off on most; "" for other devices."""
    if not is_rocm():
        return ""
    if not torch.backends.cudnn.enabled:
        return (
            "MIOpen is off, which ComfyUI chooses on most AMD cards; newer versions leave it on with "
            "COMFYUI_ENABLE_MIOPEN=1."
        )
    search = "searches for" if torch.backends.cudnn.benchmark else "does not search for"
    mode = os.environ.get("MIOPEN_FIND_MODE", "not set")
    return f"MIOpen is on, torch {search} kernels, and MIOPEN_FIND_MODE is {mode}."

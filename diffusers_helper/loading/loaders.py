"""The loaders of a model's components, which find their files on disk or on the hub, check and load them.

The weights are mapped from the files, so the kernel can reclaim their memory at any time. Before a network
computes for the first time, the kernel reads its files, if it can keep them; while the encoders compute, it
reads those of the transformer. A network whose results are known already is not read.
"""

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, SiglipImageProcessorPil

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.families.family import LORA
from diffusers_helper.files import sha256_of
from diffusers_helper.loading.networks import LoadedNetwork, check_fit, load_network, load_scheduler
from diffusers_helper.loading.reading import can_keep, drop_pages, pieces_of, read_ahead
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import block_lists, type_on_cpu
from diffusers_helper.weights.inspection import inspect_checkpoint
from diffusers_helper.weights.reading import weight_files

_log = logging.getLogger(__name__)

# The libraries' exceptions for files that are missing, damaged or of another kind
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)

_TRANSFORMER = "transformer"  # the network that every job needs, and needs last

# The number and size of the samples of each file that make up a fingerprint.
_SAMPLES, _SAMPLE_BYTES = 16, 65536


class Models:
    """The components of one model, each loaded on first use, in main memory and in their stored type."""

    def __init__(
        self, info: ModelInfo, device: torch.device, convolutions: MIOpenFallbackHandler | None = None
    ) -> None:
        self.info = info
        self.device = device
        self.convolutions = initialize_miopen_fallback() if convolutions is None else convolutions
        self._components: dict[str, Any] = {}
        self._loaded: dict[str, LoadedNetwork] = {}
        self._fingerprints: dict[str, str] = {}
        self._files = defaultdict[str, list[Path]](list)  # a stand-in for a network has none
        self._requested: set[str] = set()  # the networks whose files were to be read
        self._reader: threading.Thread | None = None

    @property
    def fingerprint(self) -> str:
        return sha256_of([json.dumps(self._fingerprints, sort_keys=True).encode()])

    def cache_facts(self, name: str, *other_components: str) -> dict[str, str]:
        """List the facts that the results of a network and its other components depend on, besides inputs."""
        return {
            "weights": str([self._fingerprints[component] for component in (name, *other_components)]),
            "type": str(self.compute_dtype(name) or self.stored_dtype(name)),
            "device": self.device_name,
        }

    @property
    def device_name(self) -> str:
        """The name of the GPU, or of the instructions that torch uses on the CPU, such as "AVX512"."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return torch.backends.cpu.get_cpu_capability()

    @property
    def is_loaded(self) -> bool:
        return len(self._components) == len(self.info.components)

    def load(self, cancel: CancelToken) -> None:
        for name in self.info.components:
            cancel.check()
            self.component(name)
        check_fit(self.info, lambda component, name: getattr(self._components[component].config, name))

    def read(
        self, name: str, cancel: CancelToken, on_bytes: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Read a network's files once, and let those of the transformer be read while the network computes.

        The transformer is read if it is loaded. Files that main memory cannot keep are not read.
        """
        self.component(name)
        if name in self._requested:
            return
        self._requested.add(name)
        read_ahead(self._files[name], cancel, on_bytes)
        later = [] if self._reader or _TRANSFORMER in self._requested else self._files[_TRANSFORMER]
        if later and can_keep(self._files[name] + later):
            self._reader = threading.Thread(target=self._read_ahead, name="read-ahead", daemon=True)
            self._reader.start()

    def _read_ahead(self) -> None:
        # An error occurs again in that stage, which reports it.
        with suppress(OSError), closing(pieces_of(self._files[_TRANSFORMER])) as pieces:
            for _ in pieces:
                if _TRANSFORMER in self._requested:
                    return

    def drop_pages(self, name: str) -> None:
        for file in self._files[name]:
            drop_pages(file)
        self._requested.discard(name)

    def blocks(self, name: str) -> Sequence[nn.Module]:
        network = self.component(name)
        lists = [network.get_submodule(path) for path in block_lists(name, type(network).__name__)]
        return [block for blocks in lists for block in cast(nn.ModuleList, blocks)]

    def compute_dtype(self, name: str) -> torch.dtype | None:
        stored_dtype = self.stored_dtype(name)
        if self.device.type != "cpu":
            return None
        stored = str(stored_dtype).removeprefix("torch.")
        compute_dtype = getattr(torch, type_on_cpu(name, stored, is_bf16_kept=self._loaded[name].keeps_bf16))
        return None if compute_dtype == stored_dtype else compute_dtype

    def stored_dtype(self, name: str) -> torch.dtype:
        """Tell the type that a network computes in unless job or device ask for another one."""
        self.component(name)
        return self._loaded[name].dtype

    def component(self, name: str) -> Any:
        if name not in self._components:
            source = self.info.components[name]
            if source.is_missing:
                raise LongtakeError(
                    f"{source.location} is not completely on this machine.",
                    "Download the model on the page under Models, or with longtake models get.",
                    code="download",
                )
            path = source.folder
            start_time = time.monotonic()
            try:
                # The `.data` of a tensor that is created in inference mode cannot be replaced later.
                with torch.inference_mode(False):
                    self._components[name] = self._load(name, path)
                samples = (sample for file in weight_files(path) for sample in _samples(file))
                self._fingerprints[name] = sha256_of(samples)  # to read a large model takes minutes
            except _LOAD_ERRORS as error:
                raise LongtakeError(
                    f"{name} of model {self.info.name} cannot be loaded from {path} "
                    f"({_reason(name, path, error)}).",
                    "Check that the folder is complete, or download the model's files again."
                    if source.config is None
                    else f"Put the file back, or add the model again with models add {self.info.name}.",
                ) from error
            _log.info("mapped %s from %s in %.2f s", name, path, time.monotonic() - start_time)
            if name in self.info.family.networks:
                self.convolutions.install(self._components[name])
        return self._components[name]

    def _load(self, name: str, path: Path) -> Any:
        network = self.info.family.networks.get(name)
        if name == LORA:
            return weight_files(path)
        if network is None:
            is_scheduler = name == "scheduler"
            return load_scheduler(path, self.info.family) if is_scheduler else _load_processor(name, path)
        self._loaded[name] = load_network(name, path, self.info.components[name].config, network.class_name)
        self._files[name] = weight_files(path)
        return self._loaded[name].network


def load_models(
    info: ModelInfo,
    *,
    device: str | None = None,
    cancel: CancelToken | None = None,
    convolutions: MIOpenFallbackHandler | None = None,
) -> Models:
    if cancel is not None:
        cancel.check()
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Models(info, torch.device(name), convolutions)


def _reason(name: str, path: Path, error: Exception) -> str:
    if not path.exists():
        return "it is not there any more"
    for problem in inspect_checkpoint(path, name).problems:
        return problem.rstrip(".")
    return first_line(error)


def _load_processor(name: str, folder: Path) -> Any:
    if name == "feature_extractor":
        return SiglipImageProcessorPil.from_pretrained(folder)
    # This class keeps the file's pre-tokenizer, which transformers' LlamaTokenizer would replace.
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    if not (folder / "vocab.json").is_file():
        raise FileNotFoundError("it contains neither tokenizer.json nor vocab.json")
    return CLIPTokenizer.from_pretrained(folder)


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size} ".encode()
    with path.open("rb") as file:
        for index in range(_SAMPLES):
            file.seek(size * index // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)

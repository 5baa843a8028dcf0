"""The loaders of a model's parts, which find their files on disk or on the hub, check and load them.

The weights are mapped from the files into memory. As long as they are not written to and keep their stored
type, the kernel can reclaim their memory at any time. Before a network computes for the first time, the
kernel reads its files, if it can keep them, so that no later step waits for the disk. While the encoders
compute, it reads those of the transformer. What a job does not use, since its results are known, is not read.
"""

from __future__ import annotations

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
from diffusers_helper.files import sha256_of
from diffusers_helper.loading.networks import LoadedNetwork, check_fit, load_network, load_scheduler
from diffusers_helper.loading.reading import can_keep, drop_pages, pieces_of, read_ahead
from diffusers_helper.machine.sysfs import slow_types
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import block_lists
from diffusers_helper.weights.inspection import inspect_checkpoint
from diffusers_helper.weights.reading import weight_files

_log = logging.getLogger(__name__)

# The libraries' exceptions for files that are missing, damaged or of another kind
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


_LARGEST = "transformer"  # the network that every job needs, and needs last

# The number and size of the samples of each file that make up a fingerprint.
_SAMPLES, _SAMPLE_BYTES = 16, 65536


class Models:
    """The parts of one model. Each part is loaded on first use, and stays loaded.

    Attributes:
        device: The device that computes. The parts stay in main memory, in their stored type.
    """

    def __init__(
        self, info: ModelInfo, device: torch.device, convolutions: MIOpenFallbackHandler | None = None
    ) -> None:
        self.info, self.device = info, device
        self.convolutions = initialize_miopen_fallback() if convolutions is None else convolutions
        self._parts: dict[str, Any] = {}
        self._loaded: dict[str, LoadedNetwork] = {}
        self._fingerprints: dict[str, str] = {}
        self._files = defaultdict[str, list[Path]](list)  # a stand-in for a network has none
        self._asked: set[str] = set()  # the networks whose files were to be read
        self._ahead: threading.Thread | None = None

    @property
    def fingerprint(self) -> str:
        """Return a checksum that identifies the weights of the parts that are loaded so far."""
        return sha256_of([json.dumps(self._fingerprints, sort_keys=True).encode()])

    def computes_as(self, name: str, *others: str) -> dict[str, str]:
        """Return what the results of a network and of its other parts depend on, besides their inputs."""
        return {
            "weights": str([self._fingerprints[part] for part in (name, *others)]),
            "type": str(self.compute_dtype(name) or self.stored_dtype(name)),
            "device": self.device_name,
        }

    @property
    def device_name(self) -> str:
        """Return the name of the GPU, or of the instructions that torch uses on the CPU, such as "AVX512"."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return torch.backends.cpu.get_cpu_capability()

    @property
    def is_loaded(self) -> bool:
        return len(self._parts) == len(self.info.parts)

    def load(self, cancel: CancelToken) -> None:
        """Load the parts that are not loaded yet, without reading their weights.

        Raises:
            GenerationCancelled: If the job was cancelled before all parts were loaded.
            LongtakeError: If a part is not available, lacks a file, or does not fit the others.
        """
        for name in self.info.parts:
            cancel.check()
            self.part(name)
        check_fit(self.info, lambda part, name: getattr(self._parts[part].config, name))

    def read(
        self, name: str, cancel: CancelToken, on_bytes: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Read a network's files once, and let those of the transformer be read while the network computes.

        The transformer is read if it is loaded. Only what main memory can keep is read.

        Args:
            on_bytes: See `read_ahead`.

        Raises:
            GenerationCancelled: If the job was cancelled.
            LongtakeError: If the network cannot be loaded.
            OSError: If a file cannot be read.
        """
        self.part(name)
        if name in self._asked:
            return
        self._asked.add(name)
        read_ahead(self._files[name], cancel, on_bytes)
        later = [] if self._ahead or _LARGEST in self._asked else self._files[_LARGEST]
        if later and can_keep(self._files[name] + later):
            self._ahead = threading.Thread(target=self._read_ahead, name="read-ahead", daemon=True)
            self._ahead.start()

    def _read_ahead(self) -> None:
        """Read the transformer's files until a stage asks for them, which then reads the rest itself."""
        # That stage meets the same error, and reports it.
        with suppress(OSError), closing(pieces_of(self._files[_LARGEST])) as pieces:
            for _ in pieces:
                if _LARGEST in self._asked:
                    return

    def drop_pages(self, name: str) -> None:
        """Drop a network's files from main memory. `read` reads them again when they are needed."""
        for file in self._files[name]:
            drop_pages(file)
        self._asked.discard(name)

    def blocks(self, name: str) -> Sequence[nn.Module]:
        """Return the blocks of a network that can be streamed, in the order in which they run."""
        network = self.part(name)
        lists = [network.get_submodule(path) for path in block_lists(name, type(network).__name__)]
        return [block for blocks in lists for block in cast(nn.ModuleList, blocks)]

    def compute_dtype(self, name: str) -> torch.dtype | None:
        """Return the type that a network computes in, or None for that of its files."""
        stored = self.stored_dtype(name)
        wanted = dtype_for(name, stored, self.device, keeps=self._loaded[name].keeps_bf16)
        return None if wanted == stored else wanted

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the type that a network computes in unless job or device ask for another one."""
        self.part(name)
        return self._loaded[name].dtype

    def part(self, name: str) -> Any:
        """Return one of the model's parts, in main memory. Load it first if necessary.

        Raises:
            LongtakeError: If the part is not available or lacks a file.
        """
        if name not in self._parts:
            source = self.info.parts[name]
            if source.is_missing:
                raise LongtakeError(
                    f"{source.location} is not completely on this machine.",
                    "Download the model on the page under Models, or with python -m app models get.",
                    code="download",
                )
            place, began = source.folder, time.monotonic()
            try:
                # The `.data` of a tensor that is created in inference mode cannot be replaced later.
                with torch.inference_mode(False):
                    self._parts[name] = self._load(name, place)
                self._fingerprints[name] = _fingerprint(place)
            except _LOAD_ERRORS as error:
                raise LongtakeError(
                    f"{name} of model {self.info.name} cannot be loaded from {place} "
                    f"({_reason(name, place, error)}).",
                    "Check that the folder is complete, or download the model's files again."
                    if source.config is None
                    else f"Put the file back, or add the model again with models add {self.info.name}.",
                ) from error
            _log.info("mapped %s from %s in %.2f s", name, place, time.monotonic() - began)
            if name in self.info.family.networks:
                self.convolutions.install(self._parts[name])
        return self._parts[name]

    def _load(self, name: str, place: Path) -> Any:
        known = self.info.family.networks.get(name)
        if known is None:
            is_scheduler = name == "scheduler"
            return load_scheduler(place, self.info.family) if is_scheduler else _load_words(name, place)
        self._loaded[name] = load_network(name, place, self.info.parts[name].config, known.kind)
        self._files[name] = weight_files(place)
        return self._loaded[name].network


def load_models(
    info: ModelInfo,
    *,
    device: str | None = None,
    cancel: CancelToken | None = None,
    convolutions: MIOpenFallbackHandler | None = None,
) -> Models:
    """Return the parts of a model, none of which is loaded yet. `Models.load` or the first use loads them.

    Args:
        device: The device that computes; None for the first GPU, or for the CPU without one.
        cancel: The token of the job. If it is already set, GenerationCancelled is raised.
        convolutions: The fallback for convolutions that fail; None for one that stores nothing on the disk.
    """
    if cancel is not None:
        cancel.check()
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Models(info, torch.device(name), convolutions)


def dtype_for(name: str, stored: torch.dtype, device: torch.device, *, keeps: bool = False) -> torch.dtype:
    """Return the type in which a part computes, which is the stored one except for 16 bit on a CPU.

    CPUs compute fp16 slowly, if at all, and bf16 well only with AVX-512 or the like. Without, the demo model
    takes more than ten minutes in bf16 for what it makes in half a minute in fp32. There, the large text
    encoder computes in bf16, which takes no more memory than its files, and the smaller parts in fp32.
    """
    if device.type != "cpu" or str(stored).removeprefix("torch.") not in slow_types(keeps=keeps):
        return stored
    return torch.bfloat16 if name == "text_encoder" else torch.float32


def _reason(name: str, place: Path, error: Exception) -> str:
    """Return why a part cannot be loaded: what is wrong with its files, or what the libraries say."""
    if not place.exists():
        return "it is not there any more"
    for problem in inspect_checkpoint(place, name).problems:
        return problem.rstrip(".")
    return first_line(error)


def _load_words(name: str, folder: Path) -> Any:
    """Return a tokenizer, or the processor of pictures."""
    if name == "feature_extractor":
        return SiglipImageProcessorPil.from_pretrained(folder)
    # This class keeps the file's pre-tokenizer, which transformers' LlamaTokenizer would replace.
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    if not (folder / "vocab.json").is_file():
        raise FileNotFoundError("it contains neither tokenizer.json nor vocab.json")
    return CLIPTokenizer.from_pretrained(folder)


def _fingerprint(place: Path) -> str:
    """Return a checksum of files by names, sizes and samples, since reading a large model takes minutes."""
    return sha256_of(part for path in weight_files(place) for part in _samples(path))


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size} ".encode()
    with path.open("rb") as file:
        for place in range(_SAMPLES):
            file.seek(size * place // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)

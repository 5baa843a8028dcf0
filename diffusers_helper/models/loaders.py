"""The loaders of a model's parts, which find their files on disk or on the hub, check and load them.

The libraries map the weights from the files into memory. As long as the weights are not written to and keep
their stored type, the kernel can reclaim their memory at any time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from torch import nn
from transformers import (
    CLIPTextModel,
    CLIPTokenizer,
    LlamaModel,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
    SiglipVisionModel,
)
from transformers.utils import logging as transformers_logging

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.files import sha256_of
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.models.downloads import Download, absence_of
from diffusers_helper.models.fetch import find_part
from diffusers_helper.models.inspect import inspect_checkpoint
from diffusers_helper.models.part_files import fingerprint, stored_dtype
from diffusers_helper.models.registry import PARTS, ModelInfo
from diffusers_helper.planning.networks import BLOCKS

_log = logging.getLogger(__name__)

_CLASSES: dict[str, Any] = {
    "transformer": HunyuanVideoFramepackTransformer3DModel,
    "vae": AutoencoderKLHunyuanVideo,
    "text_encoder": LlamaModel,
    "text_encoder_2": CLIPTextModel,
    "image_encoder": SiglipVisionModel,
}
# The libraries' exceptions for files that are missing, damaged or of another kind
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


class Models:
    """The parts of one model. Each part is loaded on first use, and stays loaded.

    Attributes:
        info: The model.
        device: The device that computes. The parts stay in main memory, in their stored type.
    """

    def __init__(
        self, info: ModelInfo, device: torch.device, convolutions: MIOpenFallbackHandler | None = None
    ) -> None:
        self.info, self.device = info, device
        self._convolutions = initialize_miopen_fallback() if convolutions is None else convolutions
        self._parts: dict[str, Any] = {}
        self._fingerprints: dict[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """Return a checksum that identifies the weights of the parts that are loaded so far."""
        return sha256_of([json.dumps(self._fingerprints, sort_keys=True).encode()])

    @property
    def is_loaded(self) -> bool:
        return len(self._parts) == len(PARTS)

    def load(
        self, cancel: CancelToken, on_download: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Load the parts that are not loaded yet.

        Args:
            cancel: The token that ends the loading.
            on_download: A function that is called regularly with the bytes downloaded so far and the total.

        Raises:
            GenerationCancelled: If the job was cancelled between two parts or during a download.
            LongtakeError: If a part is not available, lacks a file, or does not fit the others.
        """
        download = Download(absence_of(self.info), on_download)
        for name in PARTS:
            self.part(name, cancel, partial(download.received, name))
            download.finished(name)
        _check_fit(self.info, {name: self._parts[name] for name in _CLASSES})

    def blocks(self, name: str) -> Sequence[nn.Module]:
        """Return the blocks of a network that can be streamed, in the order in which they run."""
        network = self.part(name)
        return [block for blocks in BLOCKS.get(name, ()) for block in getattr(network, blocks)]

    def compute_dtype(self, name: str) -> torch.dtype | None:
        """Return the type of a network's weights on the device, or None for their stored type."""
        stored: torch.dtype = self.part(name).dtype
        wanted = dtype_for(name, stored, self.device)
        return None if wanted == stored else wanted

    def part(
        self,
        name: str,
        cancel: CancelToken | None = None,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> Any:
        """Return one of `registry.PARTS`, in main memory. Load it first if necessary.

        Args:
            name: The name of the part.
            cancel: The token that ends a download.
            on_bytes: A function that is called with the number of bytes downloaded so far.

        Raises:
            GenerationCancelled: If the job was cancelled before the part was loaded.
            LongtakeError: If the part is not available or lacks a file.
        """
        if name not in self._parts:
            cancel = cancel or CancelToken()
            cancel.check()
            folder = find_part(self.info.parts[name], cancel, on_bytes)
            _log.info("loading %s from %s", name, folder)
            try:
                # The `.data` of a tensor that is created in inference mode cannot be replaced later.
                with torch.inference_mode(False):
                    self._parts[name] = _load(name, folder)
                self._fingerprints[name] = fingerprint(folder)
            except _LOAD_ERRORS as error:
                raise LongtakeError(
                    f"{name} of model {self.info.name} cannot be loaded from {folder} "
                    f"({_reason(name, folder, error)}).",
                    "Check that the folder is complete, or download the model's files again.",
                ) from error
            if name in ("transformer", "vae"):
                self._convolutions.install(self._parts[name])
        return self._parts[name]


def load_models(
    info: ModelInfo,
    *,
    device: str | None = None,
    cancel: CancelToken | None = None,
    convolutions: MIOpenFallbackHandler | None = None,
) -> Models:
    """Return the parts of a model, none of which is loaded yet. `Models.load` or the first use loads them.

    Args:
        info: The model.
        device: The device that computes; None for the first GPU, or for the CPU without one.
        cancel: The token of the job. If it is already set, GenerationCancelled is raised.
        convolutions: The fallback for convolutions that fail; None for one that stores nothing on the disk.
    """
    if cancel is not None:
        cancel.check()
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Models(info, torch.device(name), convolutions)


def dtype_for(name: str, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which a part computes, which is the stored one except for fp16 on a CPU.

    CPUs compute fp16 slowly, if at all. On a CPU, the large text encoder therefore computes in bf16, which
    takes no more memory, and the smaller parts in fp32.
    """
    if device.type != "cpu" or stored != torch.float16:
        return stored
    return torch.bfloat16 if name == "text_encoder" else torch.float32


def _reason(name: str, folder: Path, error: Exception) -> str:
    """Return why a part cannot be loaded: what is wrong with its files, or what the libraries say."""
    if folder.is_dir():
        for problem in inspect_checkpoint(folder, name).problems:
            return problem.rstrip(".")
    return first_line(error)


def _load(name: str, folder: Path) -> Any:
    if name == "feature_extractor":
        return SiglipImageProcessorPil.from_pretrained(folder)
    if name.startswith("tokenizer"):
        # This class keeps the file's pre-tokenizer, which transformers' LlamaTokenizer would replace.
        if (folder / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(folder)
        if not (folder / "vocab.json").is_file():
            raise FileNotFoundError("it contains neither tokenizer.json nor vocab.json")
        return CLIPTokenizer.from_pretrained(folder)
    kind = _CLASSES[name]
    _check_class(folder, kind)
    with _no_progress_bars():
        module, report = kind.from_pretrained(
            folder, dtype=stored_dtype(folder), use_safetensors=True, output_loading_info=True
        )
    lacking = sorted([*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])])
    if lacking:
        raise ValueError(
            f"{len(lacking)} weights are missing or have another shape; the first is {lacking[0]}"
        )
    return cast(nn.Module, module).eval().requires_grad_(False)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Disable the libraries' progress bars within the context, since they would interrupt the log."""
    both = (diffusers_logging, transformers_logging)
    libraries = [library for library in both if library.is_progress_bar_enabled()]
    for library in libraries:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in libraries:
            library.enable_progress_bar()


def _check_class(folder: Path, kind: Any) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = config.get("_class_name") or next(iter(config.get("architectures") or ()), kind.__name__)
    if found != kind.__name__:
        raise ValueError(f"its config is for {found}; expected {kind.__name__}")


def _check_fit(info: ModelInfo, parts: dict[str, Any]) -> None:
    """Check that the inputs and outputs of the parts have matching sizes.

    Raises:
        LongtakeError: If they do not match.
    """
    transformer = parts["transformer"].config
    expected = {
        "transformer takes latents of %s channels": (transformer.in_channels, 16),
        "transformer takes history (has_clean_x_embedder %s)": (bool(transformer.has_clean_x_embedder), True),
        "transformer takes the picture (has_image_proj %s)": (bool(transformer.has_image_proj), True),
        "vae gives latents of %s channels": (parts["vae"].config.latent_channels, transformer.in_channels),
        "vae shrinks pictures by %s": (parts["vae"].spatial_compression_ratio, 8),
        "vae shrinks time by %s": (parts["vae"].temporal_compression_ratio, 4),
        "text_encoder gives %s values per token": (
            parts["text_encoder"].config.hidden_size, transformer.text_embed_dim,
        ),
        "text_encoder_2 gives %s values": (
            parts["text_encoder_2"].config.hidden_size, transformer.pooled_projection_dim,
        ),
        "image_encoder gives %s values per token": (
            parts["image_encoder"].config.hidden_size, transformer.image_proj_dim,
        ),
    }  # fmt: skip
    for fact, (found, wanted) in expected.items():
        if found != wanted:
            raise LongtakeError(
                f"The parts of model {info.name} do not match: {fact % found}; expected {wanted}.",
                "Use parts that were made for each other.",
            )

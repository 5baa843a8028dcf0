"""What the header of a file with weights tells: its format, tensors, types, layout, and likely model.

No tensor is read and torch is not needed, so that a file of any size is examined in milliseconds.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

Format = Literal["safetensors", "gguf", "pickle", "unknown"]
KeyStyle = Literal["checkpoint", "diffusers", "original", "unknown"]
_MOST_HEADER_BYTES = 100_000_000
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a safetensors file, without its values.

    Attributes:
        begin, end: The place of its bytes behind the header.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Return the number of values."""
        product = 1
        for side in self.shape:
            product *= side
        return product


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file.

    Attributes:
        tensors: The tensors by name.
        metadata: What the file's author has noted.
        num_bytes: The bytes before the first tensor.
    """

    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]
    num_bytes: int


def read_header(file: Path) -> Header:
    """Return the header of a safetensors file.

    Raises:
        OSError: If the file cannot be read.
        ValueError, struct.error: If it is no safetensors file.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        content: Any = json.loads(stream.read(length))
    if not isinstance(content, dict):
        raise ValueError("a header that is no JSON object")
    entries = cast(dict[str, Any], content)
    metadata: Any = entries.pop("__metadata__", {})
    try:
        tensors = {
            name: Entry(entry["dtype"], tuple(entry["shape"]), *entry.get("data_offsets", (0, 0)))
            for name, entry in entries.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a header without the type and shape of each tensor") from error
    return Header(tensors, cast(Mapping[str, str], metadata or {}), 8 + length)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts about a file with weights.

    Attributes:
        file_bytes: The size of the file.
        tensors: The number of tensors; 0 where the format does not list them in front.
        tensor_bytes: The bytes of all tensors.
        shares: The share of these bytes by type, the largest first.
        keys: The layout of the names: a whole checkpoint, diffusers', or that of the model's authors.
        quantised: The kind of quantisation; "" for none, or where only the name hints at one.
        model: The models that the names belong to; "" if none is known.
        problems: What is wrong with the file, in sentences; empty for a file that can be loaded.
        hints: What only the file's name says, in sentences.
    """

    path: str
    format: Format
    file_bytes: int
    tensors: int = 0
    tensor_bytes: int = 0
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    keys: KeyStyle = "unknown"
    quantised: str = ""
    model: str = ""
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the facts as one JSON object."""
        return json.dumps(asdict(self))


def inspect_checkpoint(path: Path) -> Inspection:
    """Return what the header of a file with weights tells.

    Raises:
        OSError: If the file cannot be read.
    """
    size, hints = path.stat().st_size, _hints(path.name)
    with path.open("rb") as stream:
        start = stream.read(10)
    kind = _format(path, start)
    if kind != "safetensors":
        problems = () if kind != "unknown" else ("The format of the file is not known.",)
        return Inspection(
            str(path), kind, size, quantised="gguf" if kind == "gguf" else "", problems=problems, hints=hints
        )
    try:
        header = read_header(path)
    except (ValueError, struct.error) as error:
        problem = f"The header cannot be read ({error}); the file is damaged or incomplete."
        return Inspection(str(path), kind, size, problems=(problem,), hints=hints)
    tensors = header.tensors
    by_type: Counter[str] = Counter()
    for entry in tensors.values():
        by_type[entry.dtype] += _bytes(entry)
    total = sum(by_type.values())
    return Inspection(
        str(path), kind, size,
        tensors=len(tensors),
        tensor_bytes=total,
        shares={name: count / total for name, count in by_type.most_common() if total},
        keys=_key_style(tensors),
        quantised=_quantised(tensors),
        model=" + ".join(_models(tensors)),
        problems=tuple(_problems(header, size)),
        hints=hints,
    )  # fmt: skip


def _format(path: Path, start: bytes) -> Format:
    if start[:4] == b"GGUF":
        return "gguf"
    if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"):
        return "pickle"
    return "safetensors" if path.suffix == ".safetensors" or start[8:9] == b"{" else "unknown"


def _bytes(entry: Entry) -> int:
    return entry.count * _BITS.get(entry.dtype, 8) // 8


def _problems(header: Header, size: int) -> Iterable[str]:
    if not header.tensors:
        yield "The file contains no tensor."
    needed = header.num_bytes + max((entry.end for entry in header.tensors.values()), default=0)
    if size < needed:
        yield f"The file has {size} bytes of {needed}; it is incomplete."
    unknown = sorted({entry.dtype for entry in header.tensors.values()} - set(_BITS))
    if unknown:
        yield f"The types {', '.join(unknown)} are not known."
    for name, entry in header.tensors.items():
        if entry.end and entry.dtype in _BITS and entry.end - entry.begin != _bytes(entry):
            yield f"Tensor {name} has {entry.end - entry.begin} bytes of {_bytes(entry)}."
            return


def _key_style(names: Collection[str]) -> KeyStyle:
    if any(name.startswith(("model.diffusion_model.", "first_stage_model.")) for name in names):
        return "checkpoint"
    signs = ("transformer_blocks.", "down_blocks.", "up_blocks.", "mid_block.")
    if any(sign in name for name in names for sign in signs):
        return "diffusers"
    return "original" if names else "unknown"


def _quantised(tensors: Mapping[str, Entry]) -> str:
    """Return the kind of quantisation that types and names show."""
    types = {entry.dtype for entry in tensors.values() if len(entry.shape) > 1}
    if any("quant_state.bitsandbytes" in name for name in tensors):
        return "bitsandbytes"
    scaled = any(name.endswith(("scaled_fp8", ".scale_weight", ".weight_scale")) for name in tensors)
    for prefix, name in (("F8", "fp8"), ("I8", "int8"), ("F4", "fp4")):
        if any(kind.startswith(prefix) for kind in types):
            return f"scaled {name}" if scaled else name
    return ""


# Names that only one model has, once the prefix of a whole checkpoint is cut off.
_SIGNS = (
    ("FramePack", r"clean_x_embedder\."),
    ("HunyuanVideo", r"txt_in\.individual_token_refiner\.|context_embedder\.token_refiner\."),
    ("Flux", r"double_blocks\.0\.img_attn\.norm\.key_norm\.|^transformer_blocks\.0\.norm1_context\."),
    ("Wan", r"^blocks\.0\.self_attn\.q\.|^condition_embedder\.time_embedder\."),
    ("SD3", r"^joint_blocks\.0\.context_block\."),
    ("LTX", r"^patchify_proj\.|^adaln_single\.emb\..*\blinear_1\b"),
    ("SDXL", r"^input_blocks\.7\.1\.transformer_blocks\.9\.|^label_emb\."),
    ("SD", r"^input_blocks\.1\.1\.transformer_blocks\.0\.|^down_blocks\.0\.attentions\.0\."),
    ("T5", r"(?:^|\.)encoder\.block\.0\.layer\.0\.SelfAttention\."),
    ("CLIP", r"(?:^|\.)text_model\.encoder\.layers\.0\."),
    ("Llama", r"(?:^|\.)layers\.0\.self_attn\.q_proj\.(?!.*vision)"),
    ("Wan VAE", r"^decoder\.middle\.0\.residual\.0\.gamma|^decoder\.mid_block\.resnets\.0\.norm1\.gamma"),
    ("TAESD", r"^taesd_decoder\.1\."),
    ("VAE", r"^decoder\.conv_in\.|^decoder\.conv_in\.conv\."),
)
_PREFIX = re.compile(r"(?m)^(?:model\.diffusion_model\.|first_stage_model\.|vae\.|model\.model\.)")
# A sign that says less than another one, which replaces it.
_COVERED = {"HunyuanVideo": "FramePack", "SD": "SDXL", "VAE": "Wan VAE", "Flux": "HunyuanVideo"}


def _models(names: Collection[str]) -> list[str]:
    # A line for each name: one search for a sign is much faster than one for each name.
    plain = _PREFIX.sub("", "\n".join(names))
    found = [model for model, sign in _SIGNS if re.search(sign, plain, re.MULTILINE)]
    return [model for model in found if _COVERED.get(model) not in found]


def _hints(name: str) -> tuple[str, ...]:
    """Return what a file's name says; a word counts only if it stands alone, as in `flux1-dev-fp8`."""
    words = re.findall(r"(?<![a-z0-9])(fp8|int8|int4|nf4|bnb|gguf|quantized)(?![a-z0-9])", name.lower())
    return tuple(f"The name of the file says {word}." for word in dict.fromkeys(words))

"""A program for what may crash, take long or never end: drivers, kernels and encoders.

`python -m app.probe` tells the devices that torch sees, and the attention kernel that it runs; `doctor` asks
for them. `python -m app.probe QUESTION` tries and measures kernels for `app.trials`, and writes videos in
other formats for the page. The question is a list in JSON that begins with the name of one of the functions
in `_QUESTIONS`, and goes on with its arguments. Each answer is a line of JSON, or the bytes of a file that is
sent.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from app.jobs.stdio import take_stdout, write_whole
from diffusers_helper.machine.routes import ATTENTION, BLAS, BLOCK_WORK, CONVOLUTION
from diffusers_helper.machine.signals import end_with_parent
from diffusers_helper.planning.backend import missing_kernels

# A section of FramePack at 640 has 18485 tokens, with 24 heads of 128. Fewer tokens select the same kernel.
_TOKENS, _HEADS, _HEAD_DIM = 2048, 24, 128


def main() -> None:
    end_with_parent()
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 would tell its settings
    answers = take_stdout()
    name, *question = json.loads(sys.argv[1]) if sys.argv[1:] else ["facts"]
    for answer in _QUESTIONS[name](*question):
        write_whole(answers, answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")


def _ways(device: str, limit_bytes: int) -> Iterator[dict[str, Any]]:
    """Try a way for each task on stdin, which has the operation's name, its arguments and the way.

    The first answer is empty: it can be asked.
    """
    import torch

    from cache.conv_probe import convolution_work
    from cache.trial import TrialWork, try_candidates
    from diffusers_helper.attention.trial import attention_work, blas_work, block_work
    from diffusers_helper.memory.device import open_device

    tasks = (json.loads(line)["task"] for line in sys.stdin)
    works: dict[str, Callable[..., TrialWork]] = {
        ATTENTION: attention_work, BLOCK_WORK: block_work, BLAS: blas_work, CONVOLUTION: convolution_work,
    }  # fmt: skip
    torch_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    opened_device = open_device(torch_device)
    opened_device.limit(limit_bytes or None)
    with opened_device:
        yield {}
        yield from try_candidates(
            (
                partial(works[operation], *arguments, device=torch_device),
                (candidate for *_, candidate in group),
            )
            for (operation, arguments), group in groupby(tasks, lambda task: task[:2])
        )


def _bench(*arguments: Any) -> Iterator[dict[str, Any]]:
    from app.machine import load_added_models
    from diffusers_helper.bench.cases import measure_cases

    load_added_models()
    yield from measure_cases(dict(os.environ), *arguments)
    os._exit(0)  # an ordinary end may hang in a native library


def _formats(video: str) -> Iterator[dict[str, Any]]:
    """Name the formats in which this machine can write a video, and none that would become too large."""
    from diffusers_helper.errors import InputError
    from diffusers_helper.output.export import FORMATS, estimated_bytes
    from diffusers_helper.units import size_text

    for name, form in FORMATS.items():
        with suppress(InputError):
            if name != "frame" and (size := estimated_bytes(Path(video), name)) is not None:
                prefix = "" if name in ("h264", "png") else "about "
                offer = {"format": name, "label": form.label, "suffix": form.suffix}
                yield {**offer, "bytes": size, "size": prefix + size_text(size)}


def _export(video: str, target: str, name: str) -> Iterator[Any]:
    from diffusers_helper.errors import LongtakeError
    from diffusers_helper.output.export import exported

    try:
        yield from exported(Path(video), Path(target), name)
    except (LongtakeError, OSError) as error:
        yield str(error)


def _frames(video: str) -> Iterator[bytes]:
    from diffusers_helper.output.export import frames_zip

    return frames_zip(Path(video))[1]


def _facts() -> Iterator[dict[str, Any]]:
    import torch

    from cache.kitchen import kitchen

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "hip": torch.version.hip or "",
        "cuda": torch.version.cuda or "",
        "devices": 0,
    }
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        facts |= {
            "devices": torch.cuda.device_count(), "name": properties.name,
            "arch": getattr(properties, "gcnArchName", "").split(":")[0],
            "arch_list": torch.cuda.get_arch_list(),
            "free_bytes": free, "total_bytes": total,
            # On ROCm this is the version of MIOpen.
            "dnn": torch.backends.cudnn.version() or 0,
        }  # fmt: skip
    has_kernels = not missing_kernels(facts.get("arch", ""), facts.get("arch_list", ()))
    facts["kernel"] = _kernel(device) if has_kernels else ""
    yield facts
    # This may end the process.
    if package := kitchen():
        backends = package.list_backends().items()
        yield {"kitchen": [name for name, backend in backends if backend["available"]]}


def _kernel(device: Any) -> str:
    import torch

    from diffusers_helper.attention.operation import operation_of

    tokens = _TOKENS if device.type == "cuda" else 256
    shape = (1, _HEADS, tokens, _HEAD_DIM)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    return operation_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))


_QUESTIONS: dict[str, Callable[..., Iterator[Any]]] = {
    "facts": _facts, "ways": _ways, "bench": _bench, "formats": _formats, "export": _export,
    "frames": _frames,
}  # fmt: skip

if __name__ == "__main__":
    main()

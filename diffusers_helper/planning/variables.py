"""The engine's environment variables: those that suit a family of cards, and those with choices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.machine.packages import rocm_of_torch
from diffusers_helper.machine.routes import CONV_RUNGS
from diffusers_helper.machine.sysfs import VISIBLE_VARIABLES

T = TypeVar("T")

CONV_RUNG_VARIABLE, DEBUG_VARIABLE = "LONGTAKE_CONV_RUNG", "LONGTAKE_DEBUG"
ENCODINGS_VARIABLE, FP32_VARIABLE = "LONGTAKE_ENCODINGS", "LONGTAKE_FP32"
FIND_MODE_VARIABLE, FIND_ENFORCE_VARIABLE = "MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE"
# The ways to compute a convolution (`cache.conv_rungs.RUNGS`), the choice among them, and no choice at all.
CONV_AUTO, CONV_OFF = "auto", "off"
CONV_CHOICES = (CONV_AUTO, *CONV_RUNGS, CONV_OFF)
FIND_MODES = {
    "NORMAL": "times every kernel for each new shape: slow at first, the fastest kernel afterwards",
    "FAST": "takes the kernel that MIOpen's database or heuristic names, without a search; may be slow",
    "HYBRID": "works as FAST for shapes in MIOpen's database and as NORMAL for all others",
    "DYNAMIC_HYBRID": "works as HYBRID, but without kernels that would be compiled for one shape only",
}
# The same modes as numbers, and two further modes of MIOpen's documentation.
_FIND_MODE_NUMBERS = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
_OTHER_FIND_MODES = ("TRUST_VERIFY", "TRUST_VERIFY_FULL", "6", "7")
_ENFORCE_MODES = ("NONE", "DB_UPDATE", "SEARCH", "SEARCH_DB_UPDATE", "DB_CLEAN")
# The values that each variable may have, and those that a refusal names. MIOpen ignores case and blanks.
_CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    CONV_RUNG_VARIABLE: (CONV_CHOICES, CONV_CHOICES),
    **dict.fromkeys((DEBUG_VARIABLE, ENCODINGS_VARIABLE, FP32_VARIABLE), (("0", "1"), ("0", "1"))),
    FIND_MODE_VARIABLE: ((*FIND_MODES, *_FIND_MODE_NUMBERS, *_OTHER_FIND_MODES), tuple(FIND_MODES)),
    FIND_ENFORCE_VARIABLE: ((*_ENFORCE_MODES, *"12345"), _ENFORCE_MODES),
}


def check_choices(environ: Mapping[str, str]) -> None:
    for variable, (choices, expected) in _CHOICES.items():
        value = environ.get(variable, "")
        text = value.strip().upper() if variable.startswith("MIOPEN") else value
        if text and text not in choices:
            raise InputError(
                f"{variable} is {short_repr(value[:60])}; expected one of {', '.join(expected)}.",
                "Correct it, or leave it out.",
            )


def conv_rung(environ: Mapping[str, str]) -> str:
    check_choices(environ)
    return environ.get(CONV_RUNG_VARIABLE) or CONV_AUTO


def find_mode_of(value: str) -> str:
    """Find the find mode that a value selects; "" if MIOpen's documentation does not have it."""
    text = value.strip().upper()
    return text if text in FIND_MODES or text in _OTHER_FIND_MODES else _FIND_MODE_NUMBERS.get(text, "")


DOCUMENT = "the memory document, see docs/amd-memory.md"
# The same setting under its present and its older names. If the user has set any of them, Longtake sets none.
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
YOU = "you"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    value: T
    reason: str
    source: str


_FAST = Setting(
    "FAST",
    "skips the benchmark of all solvers before the first decode, which then took 7 s instead of 84 s on a "
    "7900 XTX",
    "MIOpen's documentation; YuE pull request 169",
)
_NAIVE = Setting(
    "0",
    "keeps out the naive kernels, which FAST takes for 3D convolutions on RDNA and which need minutes; if no "
    "kernel is left, the ladder of convolutions has other ways",
    "rocm-libraries issue 1329; ComfyUI issue 5759; TheRock issue 5845",
)
_NHWC = Setting(
    "0",
    "keeps the layout of tensors for which MIOpen has kernels on RDNA",
    "ComfyUI pull request 11381; not tried",
)
_XDLOPS = Setting("1", "the kernels for MFMA instructions stay in the search; only CDNA has them", DOCUMENT)
_AOTRITON = Setting(
    "1", "otherwise, SDPA falls back to the kernel that stores all scores", "PyTorch; unsloth 8225 and 8821"
)
_TRITON = Setting(
    "TRUE", "otherwise, flash-attn looks for kernels that only CDNA has", "flash-attn's page on AMD cards"
)
_THRESHOLD = Setting(
    "garbage_collection_threshold:0.8",
    "returns memory early; a largest size of split blocks, which the memory document adds, would keep "
    "activations of 100 to 450 MB from sharing blocks",
    DOCUMENT,
)
_EXPANDABLE = Setting(
    "expandable_segments:True",
    "a block grows where it lies, so memory does not fragment",
    "PyTorch pull requests 177974 and 192814; not tried",
)
_VISIBLE = "hides the processor's graphics, which may be the first device", "TheRock issue 3392"
_PASSIVE = Setting("PASSIVE", "waiting threads leave the cores to the page and the encoder", "OpenMP")
# By default, glibc returns each large tensor to the system at once, and the next one is cleared page by page.
_HEAP = Setting(
    "1073741824", "large tensors reuse memory, so that a decode takes a fifth less processor time", "glibc"
)


_RDNA = ("gfx1100", "gfx1151", "gfx1200", "gfx103x")


def variables_for(family: str, visible: str = "") -> dict[str, Setting[str]]:
    if family == "cpu":
        return {
            "OMP_WAIT_POLICY": _PASSIVE, "MALLOC_MMAP_THRESHOLD_": _HEAP, "MALLOC_TRIM_THRESHOLD_": _HEAP,
        }  # fmt: skip
    if family == "cuda":
        return {}
    settings = {"MIOPEN_FIND_MODE": _FAST}
    if visible:
        settings[VISIBLE_VARIABLES[0]] = Setting(visible, *_VISIBLE)
    if family in _RDNA:
        settings |= {"MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD": _NAIVE, "PYTORCH_MIOPEN_SUGGEST_NHWC": _NHWC}
    if family != "cdna":
        settings["FLASH_ATTENTION_TRITON_AMD_ENABLE"] = _TRITON
    if family in ("gfx1100", "gfx1151", "gfx1200"):
        settings["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] = _AOTRITON
    if family == "cdna":
        settings["MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS"] = _XDLOPS
    if family in ("gfx1100", "gfx1200", "gfx103x", "radeon"):
        # PyTorch's own tests of a memory limit with expandable segments pass from ROCm 10 on.
        settings[ALLOCATOR_VARIABLES[0]] = _EXPANDABLE if rocm_of_torch() >= (10,) else _THRESHOLD
    return settings


def environment_report(
    settings: Mapping[str, Setting[str]], environ: Mapping[str, str]
) -> dict[str, Setting[str]]:
    report = dict[str, Setting[str]]()
    for name, setting in settings.items():
        groups = (ALLOCATOR_VARIABLES, VISIBLE_VARIABLES, (name,))
        aliases = next(group for group in groups if name in group)
        user_variable = next((alias for alias in aliases if alias in environ), None)
        if user_variable is None:
            report[name] = setting
        else:
            is_same = environ[user_variable] == setting.value
            reason = setting.reason if is_same else f"replaces {setting.value}: {setting.reason}"
            report[user_variable] = Setting(environ[user_variable], reason, YOU)
    return report


def engine_environment(settings: Mapping[str, Setting[str]], environ: Mapping[str, str]) -> dict[str, str]:
    report = environment_report(settings, environ).items()
    return {name: setting.value for name, setting in report if setting.source != YOU}

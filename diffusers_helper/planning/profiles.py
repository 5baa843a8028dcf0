"""The settings that suit a card, each with its reason: memory, allocator, VAE, attention and MIOpen.

They are decided before torch is imported, because the engine's environment has to be complete when it starts.
Longtake has measured none of them on a card; the source of each says who recommends it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeVar, get_args

from diffusers_helper.attention.backends import BACKENDS, NATIVE, SLICED, slice_bytes
from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import Local, deviation_of, fastest_by_shape, stored_kernel
from diffusers_helper.machine.routes import ATTENTION
from diffusers_helper.machine.sysfs import (
    ROOT,
    Gpu,
    Link,
    amd_gpus,
    gfx_name,
    has_nvidia,
    host_memory,
    is_hidden,
    names_to_see,
    nvidia_link,
    visible_gpu,
)
from diffusers_helper.planning.backend import FACTORS, NO_BF16, Attention, Backend, reserve_of
from diffusers_helper.planning.budget import MAX_VRAM_USAGE_GB, Budget
from diffusers_helper.planning.variables import DOCUMENT, YOU, Setting, check_choices, variables_for
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import GB, gb_bytes, gb_text

Kind = Literal["rocm", "cuda", "cpu"]
VaeDtype = Literal["stored", "fp32", "bf16", "fp16"]
T = TypeVar("T")

CAP_VARIABLE, PRESERVED_VARIABLE = "LONGTAKE_VRAM_CAP_GB", "LONGTAKE_PRESERVED_GB"
HELPER_VARIABLE = "LONGTAKE_HELPER_CAP_GB"
TILE_VARIABLE, VAE_DTYPE_VARIABLE = "LONGTAKE_VAE_TILE", "LONGTAKE_VAE_DTYPE"
ATTENTION_VARIABLE, PROFILE_VARIABLE = "LONGTAKE_ATTENTION", "LONGTAKE_PROFILE"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that computes; `total_bytes` is 0 if only its driver knows it.

    `memory` is a phrase such as "VRAM", and `visible` what ROCR_VISIBLE_DEVICES has to be to hide the
    processor's graphics; "" for nothing.
    """

    kind: Kind
    arch: str
    name: str
    total_bytes: int
    is_apu: bool = False
    link: Link | None = None
    memory: str = ""
    visible: str = ""

    @property
    def card(self) -> str:
        """The name under which measurements are stored, such as "gfx1100", "cuda" or "cpu"."""
        return self.arch or self.kind


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that suit a machine.

    Without bf16, networks compute in fp32 with weights in bf16. `deviation` is the share by which results of
    a backend that `auto` takes may differ from fp32 math; `backends` are by `machine.local.shape_key`.
    """

    family: str
    machine: Machine
    cap_bytes: Setting[int]
    preserved_bytes: Setting[int]
    reserve_bytes: Setting[int]
    vae_dtype: Setting[VaeDtype]
    vae_tile: Setting[int]
    kernel: Setting[Attention]
    attention: Setting[str]
    environment: Mapping[str, Setting[str]] = field(default_factory=dict[str, Setting[str]])
    backends: Mapping[str, str] = field(default_factory=dict[str, str])
    slice_bytes: int = 0
    helper_bytes: int = 0
    has_bf16: bool = True
    deviation: float = 0.0

    @property
    def backend(self) -> Backend:
        machine = self.machine
        slices = self.slice_bytes or slice_bytes(self.cap_bytes.value)
        names = machine.kind, self.family, machine.card  # what is known of the card counts most
        factors = {attribute: value for group in names for attribute, value in FACTORS.get(group, {}).items()}
        backend = Backend(self.kernel.value, attention_backend=self.attention.value, slice_bytes=slices)
        return replace(backend, **factors)

    @property
    def vae_bytes(self) -> int | None:
        return {"stored": None, "fp32": 4, "bf16": 2, "fp16": 2}[self.vae_dtype.value]

    def with_kernel(self, kernel: str) -> Self:
        """Replace the attention kernel by the one that SDPA was seen to run; "" if none was seen."""
        if not kernel:
            return self
        kernel_kind: Attention = "math" if "math" in kernel else "fused"
        observed: Setting[Attention] = Setting(kernel_kind, f"SDPA ran {kernel} here", "`doctor` measured it")
        is_set = self.attention.source == YOU
        attention = self.attention if is_set else _attention_backend(observed, self.machine)
        return replace(self, kernel=observed, attention=attention)

    def with_measurements(self, local: Local) -> Self:
        card = self.machine.card
        backends = fastest_by_shape(local, ATTENTION, card, self.deviation)
        return replace(self.with_kernel(stored_kernel(local.kernels, card)), backends=backends)

    def attention_for(self, request: GenerationRequest, key: str) -> Setting[str]:
        if request.attention != AUTO:
            return Setting(request.attention, "set for the job", YOU)
        if key in self.backends and self.attention.source != YOU and self.machine.kind != "cpu":
            backend = self.backends[key]
            reason = "no other way could be used" if backend == SLICED else "the fastest on this card"
            return Setting(backend, reason, "measured")
        return self.attention

    def budget(self, cap_gb: float | None = None, preserved_gb: float | None = None) -> Budget:
        """Make a budget, with the values in GB that the user has set for the job.

        Defaults give way: the cap to a job that needs more, and the preserved memory to a small cap.
        """
        cap_bytes = self.cap_bytes.value if cap_gb is None else gb_bytes(cap_gb)
        if self.machine.total_bytes:
            cap_bytes = min(cap_bytes, self.machine.total_bytes)
        preserved_bytes = self.preserved_bytes.value if preserved_gb is None else gb_bytes(preserved_gb)
        is_default = preserved_gb is None and self.preserved_bytes.source != YOU
        if is_default and cap_bytes:
            preserved_bytes = max(0, min(preserved_bytes, cap_bytes - _MIN_WEIGHT_BYTES))
        is_fixed = cap_gb is not None or self.cap_bytes.source == YOU
        reserve = self.reserve_bytes.value
        helper = Budget(self.helper_bytes, self.helper_bytes, 0, reserve) if self.helper_bytes else None
        return Budget(
            total_bytes=self.machine.total_bytes or cap_bytes,
            cap_bytes=cap_bytes,
            preserved_bytes=preserved_bytes,
            reserve_bytes=reserve,
            is_default=is_default,
            max_cap_bytes=0 if is_fixed else self.max_cap_bytes,
            helper=helper,
        )

    @property
    def max_cap_bytes(self) -> int:
        cap = self.machine.total_bytes - _MIN_FREE_BYTES
        if _is_small_radeon(self.family, self.machine):
            cap = min(cap, gb_bytes(MAX_VRAM_USAGE_GB))
        return max(self.cap_bytes.value, cap)

    def preserved_advice(self, budget: Budget) -> str:
        """Advise a user who preserves less memory than recommended for this card; "" otherwise."""
        advised_bytes = min(_MIN_PRESERVED_BYTES, budget.cap_bytes - _MIN_WEIGHT_BYTES)
        is_enough = budget.is_default or budget.preserved_bytes >= advised_bytes
        if is_enough or not _is_small_radeon(self.family, self.machine):
            return ""
        preserved = gb_text(budget.preserved_bytes)
        return (
            f"At least {gb_text(advised_bytes)} GB of preserved memory are advised for this card; with "
            f"{preserved} GB, the driver may find no contiguous memory (BlockAllocator failures)."
        )


# The memory document (docs/amd-memory.md) preserves 18 GB on cards of 20 to 24 GB, and at least this much.
_MIN_PRESERVED_BYTES = 16 * GB
# The memory for weights that the default of preserved memory leaves at least: 18 of 20 GB leave this much.
_MIN_WEIGHT_BYTES = 2 * GB
# The memory that a raised cap leaves to the display and other programs. It was not measured.
_MIN_FREE_BYTES = gb_bytes(1.5)
_FRAMEPACK = "FramePack's default"
_NOT_MEASURED = "not measured"


def detect(environ: Mapping[str, str], root: Path = ROOT, gpus: list[Gpu] | None = None) -> Machine:
    """Describe the machine that the engine will compute on, without importing torch."""
    all_gpus = amd_gpus(root) if gpus is None else gpus
    gpu = visible_gpu(all_gpus, environ, has_nvidia=has_nvidia(root))
    if gpu is not None:
        arch, total, memory = gpu.arch, gpu.total_bytes, "VRAM"
        if match := re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", environ.get("HSA_OVERRIDE_GFX_VERSION", "")):
            major, minor, stepping = map(int, match.groups())
            arch = gfx_name(major * 10000 + minor * 100 + stepping)
        if gpu.uses_gtt:
            # The driver lends main memory only as far as it is available.
            total, memory = min(total, host_memory(root).available or total), "main memory, lent as GTT"
        elif gpu.is_apu:
            memory = "main memory that the firmware reserves"
        visible = "" if gpu.is_apu else names_to_see(all_gpus)
        return Machine("rocm", arch, gpu.name or arch, total, gpu.is_apu, gpu.link, memory, visible)
    if has_nvidia(root) and not is_hidden(environ.get("CUDA_VISIBLE_DEVICES", "0")):
        return Machine("cuda", "", "NVIDIA GPU", 0, link=nvidia_link(root), memory="VRAM")
    return Machine("cpu", "", "CPU", host_memory(root).total, memory="main memory")


_FAMILIES = {
    "gfx1100": r"gfx110[0-9]",
    "gfx1151": r"gfx115[0-9]",
    "gfx1200": r"gfx120[0-9]",
    "gfx103x": r"gfx103[0-9a-f]",
    "cdna": r"gfx(90a|94[0-9]|950)",
}
FAMILIES = (*_FAMILIES, "radeon", "cuda", "cpu")


def gfx_family(machine: Machine) -> str:
    """Find the machine's family, one of `FAMILIES`; "radeon" for an AMD card that fits no other."""
    if machine.kind != "rocm":
        return machine.kind
    families = (family for family, pattern in _FAMILIES.items() if re.fullmatch(pattern, machine.arch))
    return next(families, "radeon")


def profile_for(machine: Machine, environ: Mapping[str, str]) -> Profile:
    check_choices(environ)
    family = environ.get(PROFILE_VARIABLE) or gfx_family(machine)
    if family not in FAMILIES:
        raise InputError(
            f"{PROFILE_VARIABLE} is {family!r}; expected one of {', '.join(FAMILIES)}.",
            "Correct it, or leave it out.",
        )
    profile = Profile(
        family=family,
        machine=machine,
        cap_bytes=_cap(family, machine),
        preserved_bytes=_preserved(family, machine),
        reserve_bytes=reserve_of(machine.card, family),
        vae_dtype=_vae_dtype(family),
        vae_tile=Setting(256, "tiles that fit every card; larger Conv3d shapes abort on gfx1151", _FRAMEPACK),
        kernel=_kernel(family),
        attention=_attention_backend(_kernel(family), machine),
        environment=variables_for(family, machine.visible),
        has_bf16=family not in NO_BF16,
    )
    return _with_environment(profile, environ)


def profile_in_force(machine: Machine, local: Local) -> Profile:
    return profile_for(machine, local.environ).with_measurements(local)


def _is_small_radeon(family: str, machine: Machine) -> bool:
    return family in ("gfx1100", "gfx1200", "gfx103x", "radeon") and machine.total_bytes <= 24 * GB


def _cap(family: str, machine: Machine) -> Setting[int]:
    total = machine.total_bytes
    if family == "cpu":
        cap = max(total - max(2 * GB, total // 8), total // 2)
        return Setting(cap, "main memory less the system's share", _NOT_MEASURED)
    if not total:
        return Setting(0, "only the card's driver knows its size", "asked by the engine")
    room = max(total - gb_bytes(3.5), total // 2)
    if _is_small_radeon(family, machine):
        cap = min(gb_bytes(MAX_VRAM_USAGE_GB), room)
        return Setting(cap, "3.5 GB stay free against fragmentation", DOCUMENT)
    return Setting(room, "3.5 GB stay free for the display and other programs", DOCUMENT)


def _preserved(family: str, machine: Machine) -> Setting[int]:
    if family == "cpu":
        return Setting(0, "not needed in main memory", _NOT_MEASURED)
    if _is_small_radeon(family, machine):
        return Setting(18 * GB, "18 GB, or less if the cap would leave under 2 GB for weights", DOCUMENT)
    return Setting(6 * GB, "enough for the activations at 640 pixels", _FRAMEPACK)


def _vae_dtype(family: str) -> Setting[VaeDtype]:
    if family == "gfx1151":
        # fp32 runs at about 1 TFLOP/s there (rocm-libraries 5946).
        return Setting("bf16", "fp16 was unstable on this chip, and fp32 is slow", "others' notes; not tried")
    if family == "cpu":
        return Setting("stored", "the format of the weights' files", _NOT_MEASURED)
    return Setting("fp16", "the format in which FramePack decodes", _FRAMEPACK)


def _kernel(family: str) -> Setting[Attention]:
    caveat = ", until `doctor` has tested it"
    if family == "gfx103x":
        return Setting("math", "AOTriton has no kernels for this card", f"AOTriton's list of targets{caveat}")
    return Setting("fused", "SDPA's flash or memory-efficient kernel", f"reports of others{caveat}")


def _attention_backend(kernel: Setting[Attention], machine: Machine) -> Setting[str]:
    """Choose the attention backend for a kernel of SDPA, whose scores must not fill a card."""
    is_sliced = kernel.value == "math" and machine.kind != "cpu"
    return Setting(SLICED if is_sliced else NATIVE, kernel.reason, kernel.source)


def _with_environment(profile: Profile, environ: Mapping[str, str]) -> Profile:
    def read(variable: str, default: Setting[T], expected: str, parse: Callable[[str], T]) -> Setting[T]:
        text = environ.get(variable)
        if not text:
            return default
        try:
            return Setting(parse(text), f"set by {variable}", YOU)
        except ValueError:
            raise InputError(
                f"{variable} is {text[:60]!r}; expected {expected}.", "Correct it, or leave it out."
            ) from None

    def number(
        variable: str, default: Setting[int], name: str, convert: Callable[[float], int] = gb_bytes
    ) -> Setting[int]:
        info = SETTINGS[name]
        return read(variable, default, info.expected, lambda text: convert(info.check(float(text))))

    def choice(variable: str, default: Setting[T], choices: Sequence[T]) -> Setting[T]:
        names = [*map(str, choices)]
        return read(variable, default, " or ".join(names), lambda text: choices[names.index(text)])

    attention = choice(ATTENTION_VARIABLE, profile.attention, (AUTO, *BACKENDS))
    return replace(
        profile,
        cap_bytes=number(CAP_VARIABLE, profile.cap_bytes, "vram_cap_gb"),
        preserved_bytes=number(PRESERVED_VARIABLE, profile.preserved_bytes, "preserved_gb"),
        vae_tile=number(TILE_VARIABLE, profile.vae_tile, "vae_tile", int),
        vae_dtype=choice(VAE_DTYPE_VARIABLE, profile.vae_dtype, get_args(VaeDtype)),
        attention=attention if attention.value in BACKENDS else profile.attention,
        deviation=deviation_of(environ),
        helper_bytes=number(HELPER_VARIABLE, Setting(0, "", ""), "vram_cap_gb").value,
    )

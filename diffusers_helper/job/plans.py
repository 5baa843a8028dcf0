"""The memory plans of one job, and the source of its networks in the types that these plans require."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from diffusers_helper.attention.backends import (
    BLOCKS,
    COMPILED,
    FAST_8_BIT,
    FUSED,
    LIBRARIES,
    PLAIN,
    TORCHS_CHOICE,
    candidate_backends,
    check_backend,
)
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.loading.casting import EIGHT_BIT, WEIGHT_DTYPES, cast_weights
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import (
    Local,
    Speeds,
    blocks_key,
    max_error,
    shape_key,
    speeds,
    store_speeds,
)
from diffusers_helper.machine.packages import kernels_version, kitchen_problem
from diffusers_helper.machine.routes import ATTENTION, BLAS, BLOCK_WORK, KernelCase, Task, fastest
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.memory.device import Device, open_device, second_device
from diffusers_helper.memory.staging import host_copy_speed
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import NETWORKS, TRANSFORMERS
from diffusers_helper.planning.backend import missing_kernels, wider_types
from diffusers_helper.planning.budget import JobPlan
from diffusers_helper.planning.cards.speeds import MEASURED, keep_times, step_key
from diffusers_helper.planning.estimates import calibration_of
from diffusers_helper.planning.notes import COMPILES, choice_notes
from diffusers_helper.planning.profiles import (
    YOU,
    Kind,
    Machine,
    Profile,
    Setting,
    VaeDtype,
    detect,
    profile_in_force,
)
from diffusers_helper.planning.smaller_plans import level_key
from diffusers_helper.planning.times import expected_times
from diffusers_helper.planning.video import (
    attention_shape,
    demands_for,
    known_networks,
    longest_text,
    plan_video,
    profile_of,
)
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.vae.passes import DTYPES, PRECISIONS

_log = logging.getLogger(__name__)

TRIAL_SECONDS = 60.0  # of a job that waits
LATE = f"Trying all kernels takes more than {TRIAL_SECONDS:g} seconds here: the next video tries the others."


def kind_of(device: torch.device) -> Kind:
    if device.type == "cpu":
        return "cpu"
    return "cuda" if torch.version.hip is None else "rocm"


def machine_of(device: Device, environ: Mapping[str, str]) -> Machine:
    detected = detect(environ)
    if not device.has_gpu:
        return Machine("cpu", "", "CPU", host_memory().total or device.total_bytes)
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip is None:
        return Machine("cuda", "", properties.name, device.total_bytes)
    arch = properties.gcnArchName.split(":")[0]
    if missing := missing_kernels(arch, torch.cuda.get_arch_list()):
        raise LongtakeError(*missing, code="installation")
    is_apu = detected.is_apu or bool(getattr(properties, "is_integrated", False))
    # For an APU, torch may report only the memory that the firmware reserves.
    total = max(detected.total_bytes, device.total_bytes) if is_apu else device.total_bytes
    return Machine("rocm", arch, properties.name, total, is_apu)


def unseen_card_note(device: Device, environ: Mapping[str, str]) -> str:
    card = detect(environ)
    if device.has_gpu or card.kind == "cpu" or torch.cuda.is_available():
        return ""  # the job computes on it, or a person has chosen the processor
    return (
        f"PyTorch does not see the {card.name}, so the processor computes, which takes far longer. "
        "`longtake doctor` says what to do."
    )


class MemoryPlans:
    """The memory plans of one job, each smaller than the one before. Nothing is moved here.

    It is the source of the networks for the store (`memory.store.Source`), in the types of the plans.
    `widened` is the network, other than the VAE, that computes in another type for now.
    """

    def __init__(
        self,
        request: GenerationRequest,
        models: Models,
        height: int,
        width: int,
        local: Local,
        *,
        vae_precision: str = "",
        stored_attention: tuple[str, int] | None = None,
        stored_blas: str = "",
    ) -> None:
        """`vae_precision` and the others are what an earlier run has widened and stored."""
        self.models = models
        self.blocks = models.blocks
        self.widened: tuple[str, torch.dtype] | None = None
        self.device = open_device(models.device, is_guest=local.is_guest)
        machine = machine_of(self.device, local.environ)
        self.card = machine.card
        self.helper: Device | None = None
        profile = profile_of(request, profile_in_force(machine, local), models.info)
        if profile.helper_bytes:
            self.helper = open_device(second_device(self.device.torch_device))
        self._local = local
        self.size = (height, width)
        request, profile, self.blas, has_tried_all = _with_kernels_tried(
            request, profile, models.info, self.size, local, stored_attention
        )
        if stored_blas in LIBRARIES[machine.kind]:
            self.blas = stored_blas
        self._calibration = calibration_of(local.calibration, machine.card)
        self._video = plan_video(
            request, models.info, profile, shape=self.size, local=local,
            free_ram_bytes=host_memory().available or None,
        )  # fmt: skip
        first, attention = self._video.first, self._video.attention
        self.request, self._profile, self.levels = first.request, first.profile, first.levels
        _log.info("attention: %s (%s; %s)", attention.value, attention.reason, attention.source)
        _log.info("kernels: %s; products: %s", self.request.kernels, self.blas)
        compiles = COMPILES if self.request.kernels == COMPILED else ""
        unseen = unseen_card_note(self.device, local.environ)
        notes = unseen, *choice_notes(first), compiles, "" if has_tried_all else LATE
        self.notes = [*filter(None, notes)]
        if vae_precision:
            self.widen_vae(vae_precision)

    @property
    def plan(self) -> JobPlan:
        return self.levels.plan

    def component(self, name: str) -> Any:
        network = self.models.component(name)
        if name in NETWORKS:
            storage = self.weight_dtype if name in TRANSFORMERS else None
            cast_weights(network, self.dtype_of(name), storage, casts_bf16=self._casts_bf16(name))
        return network

    def compute_dtype(self, name: str) -> torch.dtype | None:
        dtype = DTYPES.get(self._profile.vae_dtype.value) if name == "vae" else None
        if name in TRANSFORMERS and self.weight_dtype not in EIGHT_BIT:
            dtype = self.weight_dtype
        if self.widened and name == self.widened[0]:
            dtype = self.widened[1]
        if dtype is None and self._casts_bf16(name):
            dtype = torch.float32
        return dtype or self.models.compute_dtype(name)

    def stays_on_device(self, name: str) -> None:
        """Free the main memory that a network's files take, if its weights are in the same memory now."""
        if self.is_apu:
            self.models.drop_pages(name)

    def measure_copies(self, name: str) -> None:
        facts = self._local.speeds
        card = self.card
        if facts.file and speeds(facts, card).host_copy_bytes_per_second is None:
            speed = host_copy_speed(self.models.component(name))
            store_speeds(facts, card, Speeds(host_copy_bytes_per_second=speed))

    def dtype_of(self, name: str) -> torch.dtype:
        return self.compute_dtype(name) or self.models.stored_dtype(name)

    def _casts_bf16(self, name: str) -> bool:
        """Where the card emulates bf16, it computes in fp32, unless the job or the profile has a type."""
        is_open = name != "vae" and (name not in TRANSFORMERS or self.weight_dtype in (None, *EIGHT_BIT))
        emulates_bf16 = not self._profile.has_bf16
        return is_open and emulates_bf16 and self.models.stored_dtype(name) == torch.bfloat16

    @property
    def attention(self) -> tuple[str, int]:
        return self.levels.demands[0].attention.value, self._profile.slice_bytes

    @property
    def kernels(self) -> str:
        """Name the package whose kernels the blocks use, as `kernels_version` does; "" if there is none."""
        return kernels_version(self.request.kernels) if self.request.kernels != PLAIN else ""

    def expected_seconds(self) -> dict[str, float]:
        plan = self._video
        is_first = plan.step is None or plan.step.source != MEASURED
        times = expected_times(plan, self._profile, self.models.info, is_first=is_first)
        return {stage: time.seconds for stage, time in times.items()}

    @property
    def weight_dtype(self) -> torch.dtype | None:
        return WEIGHT_DTYPES.get(self.request.weight_dtype)

    def keep_times(self, step_seconds: float, latents_per_second: float) -> None:
        key = step_key(self._profile.machine, self.models.info)
        height, width = self.size
        decode_speed = height * width * latents_per_second
        keep_times(self._local.step_times, key, self._video.work, step_seconds, decode_speed)

    def wider(self, name: str) -> tuple[str, ...]:
        """List the types in which a network's stage is repeated if its result is not finite."""
        return wider_types(self._profile.family, PRECISIONS[self.dtype_of(name)], name, self._local.environ)

    def widen_vae(self, precision: str = "") -> str:
        """Plan for a VAE that computes in this type from now on, or in the next wider one for ""."""
        profile = self._profile
        wider_precision = cast(VaeDtype, precision or self.wider("vae")[0])
        setting = Setting(wider_precision, f"{profile.vae_dtype.value} overflowed", "this job")
        self._profile = replace(profile, vae_dtype=setting)
        self._renew_plans()
        return wider_precision

    def widen(self, widened: tuple[str, torch.dtype] | None) -> None:
        """Plan for a network, other than the VAE, in another type; None for no network."""
        self.widened = widened
        self._renew_plans()

    def _renew_plans(self) -> None:
        request, info, profile = self.request, self.models.info, self._profile
        network, dtype = self.widened or ("", None)
        in_fp32 = network if dtype == torch.float32 and not self._casts_bf16(network) else ""
        demands = demands_for(request, info, profile, *self.size, self._calibration, in_fp32)
        self.levels.renew(demands, level_key(request, info, profile, *self.size))

    @property
    def is_apu(self) -> bool:
        return self._profile.machine.is_apu


def _with_kernels_tried(
    request: GenerationRequest, profile: Profile, info: ModelInfo, size: tuple[int, int], local: Local,
    stored_attention: tuple[str, int] | None,
) -> tuple[GenerationRequest, Profile, str, bool]:  # fmt: skip
    """Set the ways to compute attention, and the other work of the blocks, in the request and the profile.

    The last results are the library for products, and whether the time sufficed for all trials.

    They are those that an earlier run has stored, or that the user has set. Otherwise, the ways that this GPU
    has are tried at the job's shape, unless that was done before.
    """
    if stored_attention:
        request = replace(request, attention=stored_attention[0])
        profile = replace(profile, slice_bytes=stored_attention[1])
    has_gpu = profile.machine.kind != "cpu"
    is_open = request.attention == AUTO
    sized_request = request
    if request.weight_dtype == AUTO:
        sized_request = replace(request, weight_dtype=SETTINGS["weight_dtype"].default)
    networks = known_networks(info, profile, weight_dtype=sized_request.weight_dtype)
    shape = attention_shape(sized_request, info.family, networks, *size, longest_text(sized_request, info))
    card, routes, is_complete = profile.machine.card, local.routes, True

    def choice(operation: str, key: str, candidates: Sequence[str], *arguments: object) -> str:
        """Try what was not tried on this card yet, and choose; "" if nothing is known."""
        nonlocal is_complete
        case = KernelCase(operation, card, key)
        route, has_all = routes.get(case), False
        untried = [candidate for candidate in candidates if candidate not in route.candidates]
        if untried and local.try_candidates:
            has_all = local.try_candidates([Task(case, [*shape, *arguments], untried)], routes)
            is_complete &= has_all
            route = routes.get(case)
        # If all have failed, with reasons that may be gone next time, this job has the sure way.
        is_known = has_all or route.candidates
        return fastest(operation, route, max_error(key, profile.deviation)) if is_known else ""

    if request.kernels == PLAIN:
        profile = replace(profile, backends={})
    elif has_gpu and is_open and profile.attention.source != YOU:
        key = shape_key(*shape)
        backend = choice(ATTENTION, key, candidate_backends(), profile.slice_bytes)
        profile = profile.with_measurements(local)
        if backend:
            profile = replace(profile, backends={**profile.backends, key: backend})
    blas = TORCHS_CHOICE
    if request.kernels == AUTO:
        if has_gpu:
            blas = choice(BLAS, shape_key(*shape), LIBRARIES[profile.machine.kind]) or TORCHS_CHOICE
        kernels = PLAIN
        names = [name for name in BLOCKS if not kernels_problem(name, profile.machine.kind)]
        if has_gpu and len(names) > 1:
            spans_heads = networks["transformer"].config.get("qk_norm") != "rms_norm"
            key = blocks_key(shape, spans_heads=spans_heads)
            kernels = choice(BLOCK_WORK, key, names, spans_heads) or PLAIN
        request = replace(request, kernels=kernels)
    _check_kernels(request.kernels, profile.machine.kind)
    check_backend(profile.attention.value if is_open else request.attention, has_gpu=has_gpu)
    return request, profile, blas, is_complete


def _check_kernels(name: str, kind: Kind) -> None:
    if problem := kernels_problem(name, kind):
        raise InputError(
            setting="kernels", problem=f"is {name}, but {problem}",
            expected="a way that this machine has", remedy="Set `kernels` to auto or plain.",
        )  # fmt: skip


def kernels_problem(name: str, kind: Kind) -> str:
    if name in (FUSED, FAST_8_BIT) and (problem := kitchen_problem()):
        return f"comfy-kitchen cannot be used ({problem})"
    # On RDNA compiling takes minutes, and on a CPU the account of tensors would be compiled, too.
    return "blocks are compiled on NVIDIA's cards alone" if name == COMPILED and kind != "cuda" else ""

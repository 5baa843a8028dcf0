"""The memory plans of one job, and the source of its networks in the types that these plans require."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from diffusers_helper.attention.ways import check_way, tried_ways
from diffusers_helper.loading.casting import EIGHT_BIT, WEIGHT_DTYPES, cast_weights
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Facts, Local, keep_trial, shape_key
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.memory.device import Device, open_device, second_device
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import NETWORKS
from diffusers_helper.planning.budget import Demand, JobPlan
from diffusers_helper.planning.estimates import TILES, calibration_of
from diffusers_helper.planning.ladder import first_plan, level_key, limit_notes
from diffusers_helper.planning.profiles import YOU, Machine, Profile, Setting, detect, profile_in_force
from diffusers_helper.planning.video import (
    attention_note,
    attention_shape,
    demands_for,
    known_networks,
    longest_text,
    profile_of,
)
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import duration, gb_text
from diffusers_helper.vae.passes import DTYPES

# A smaller gain may be due to chance.
_LEAST_GAIN = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TileTimes:
    """The times that it took to decode a section with tiles of each size, in jobs of one size.

    Advice needs at least two measurements, since the speed of other tiles is not known before a job has used
    them.

    Attributes:
        key: The machine, the model, the video's size, and all else that the time depends on except the tiles.
    """

    facts: Facts
    key: str

    def note(self, tile_px: int, seconds: float, peak_bytes: int) -> None:
        """Store the measurement of a job.

        Args:
            peak_bytes: The peak of the memory that the process held while it decoded.
        """
        self.facts.write(self._key(tile_px), {"seconds": round(seconds, 3), "bytes": peak_bytes})

    def advice(self, tile_px: int, cap_bytes: int) -> str:
        """Return a sentence of advice if tiles of another size were faster and fit under the cap, or ""."""
        known = {tile: entry for tile in (*TILES, tile_px) if (entry := self._read(tile))}
        fitting = {tile: entry for tile, entry in known.items() if entry["bytes"] <= cap_bytes}
        if tile_px not in known or not fitting:
            return ""
        mine, best = known[tile_px]["seconds"], min(fitting, key=lambda tile: fitting[tile]["seconds"])
        seconds, peak = fitting[best]["seconds"], gb_text(fitting[best]["bytes"])
        if (gain := 1 - seconds / mine) < _LEAST_GAIN:
            return ""
        return (
            f"VAE tiles of {best} pixels would have fitted and been {gain:.0%} faster: in an earlier job, a "
            f"section took {duration(seconds)} to decode instead of {duration(mine)}, with a peak of {peak} "
            f"of {gb_text(cap_bytes)} GB. The pixels would differ."
        )

    def _key(self, tile_px: int) -> str:
        return f"{self.key}, tiles {tile_px}"

    def _read(self, tile_px: int) -> dict[str, Any]:
        entry = self.facts.read(self._key(tile_px))
        numbers = [entry.get(name) for name in ("seconds", "bytes")]
        return entry if all(isinstance(one, int | float) and one > 0 for one in numbers) else {}


def machine_of(device: Device, environ: Mapping[str, str]) -> Machine:
    """Return the facts about the machine, as the kernel and torch report them for a device."""
    seen = detect(environ)
    if not device.has_gpu:
        return Machine("cpu", "", "CPU", host_memory().total or device.total_bytes)
    properties = torch.cuda.get_device_properties(device.torch_device)
    if torch.version.hip is None:
        return Machine("cuda", "", properties.name, device.total_bytes)
    arch = properties.gcnArchName.split(":")[0]
    # For an APU, torch may report only the memory that the firmware reserves.
    total = max(seen.total_bytes, device.total_bytes) if seen.is_apu else device.total_bytes
    return Machine("rocm", arch, properties.name, total, seen.is_apu)


class MemoryPlans:
    """The memory plans of one job, each smaller than the one before. Nothing is moved here.

    It is the source of the networks for the store (`memory.store.Source`), in the types of the plans.

    Attributes:
        request: The settings of the video, in which the type of the weights is known.
        notes: Sentences on the type of the weights and on defaults that have given way.
        ladder: The plan in force, with the smaller ones that can follow it.
        in_fp32: The name of the network, other than the VAE, that computes in fp32; "" for none.
        card: The class of the device, such as "gfx1100" or "cpu".
        helper: The second card, which may do all but sampling; None for none.
    """

    def __init__(
        self,
        request: GenerationRequest,
        models: Models,
        height: int,
        width: int,
        local: Local,
        *,
        overflowed: bool = False,
        stored_attention: tuple[str, int] | None = None,
    ) -> None:
        """Make the first plan, at the level that was stored after shortages in earlier jobs.

        Args:
            height, width: The sides of the video in pixels.
            models: The request's model, which need not be loaded.
            stored_attention: What an earlier run of the job has stored of `attention`; None for nothing.

        Raises:
            DoesNotFit: If no plan keeps within the cap.
            InputError: For a value in the environment that cannot be used.
            LongtakeError: If a local model's files cannot be read.
        """
        self.models, self.blocks, self.in_fp32 = models, models.blocks, ""
        self.device = open_device(models.device, is_guest=local.is_guest)
        machine = machine_of(self.device, local.environ)
        self.card = machine.card
        self.helper: Device | None = None
        profile = profile_of(request, profile_in_force(machine, local), models.info)
        if profile.helper_bytes:
            self.helper = open_device(second_device(self.device.torch_device))
        self._local, self._size = local, (height, width)
        request, self._profile = _with_attention(
            request, profile, models.info, self._size, local, stored_attention
        )
        self._calibration = calibration_of(local.calibration, machine.card)
        self.request, self.ladder, why = first_plan(
            request, models.info, self._profile, height, width, self._demands, local.learned
        )
        attention = self.ladder.demands[0].attention
        _log.info("attention: %s (%s; %s)", attention.value, attention.reason, attention.source)
        own = why, attention_note(attention)
        self.notes = (*filter(None, own), *limit_notes(self.plan, self._profile))
        if overflowed:
            self.use_fp32()

    def _demands(self, request: GenerationRequest, height: int, width: int) -> Sequence[Demand]:
        info, in_fp32 = self.models.info, self.in_fp32
        return demands_for(request, info, self._profile, height, width, self._calibration, in_fp32)

    @property
    def plan(self) -> JobPlan:
        return self.ladder.plan

    def part(self, name: str) -> Any:
        """Return a network, in main memory, whose layers cast their weights as the job asks."""
        network = self.models.part(name)
        if name in NETWORKS:
            storage = self.weight_dtype if name == "transformer" else None
            cast_weights(network, self.compute_dtype(name) or self.models.stored_dtype(name), storage)
        return network

    def compute_dtype(self, name: str) -> torch.dtype | None:
        """Return the type that a network computes in, or None for the type of its weights."""
        wanted = DTYPES.get(self._profile.vae_dtype.value) if name == "vae" else None
        if name == "transformer" and self.weight_dtype not in EIGHT_BIT:
            wanted = self.weight_dtype
        if name == self.in_fp32:
            wanted = torch.float32
        return wanted or self.models.compute_dtype(name)

    @property
    def attention(self) -> tuple[str, int]:
        """Return the way to compute the transformer's attention, and the bytes of a slice of it."""
        return self.ladder.demands[0].attention.value, self._profile.slice_bytes

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """Return the type of the transformer's weights in the job, or None for that of the files."""
        return WEIGHT_DTYPES.get(self.request.weight_dtype)

    @property
    def tile_times(self) -> TileTimes:
        """Return the stored times to decode with tiles of each size, for the VAE's current type."""
        info, (height, width), dtype = self.models.info, self._size, self._profile.vae_dtype.value
        size = f"{self.card}, {info.folder or info.name}, {width}x{height}"
        key = f"{size}, VAE {dtype}, chunk {self.request.vae_chunk}"
        return TileTimes(self._local.tile_times, key)

    def use_fp32(self) -> None:
        """Plan for a VAE that computes in fp32 from now on.

        Raises:
            DoesNotFit: If the VAE does not fit in fp32.
        """
        before = self._profile
        fp32 = Setting("fp32", f"{before.vae_dtype.value} overflowed", "this job")
        self._profile = replace(before, vae_dtype=fp32)
        self._renew()

    def widen(self, network: str) -> None:
        """Plan for one network, other than the VAE, that computes in fp32.

        Args:
            network: The name of the network; "" for none, as before.

        Raises:
            DoesNotFit: If the network does not fit in fp32.
        """
        self.in_fp32 = network
        self._renew()

    def _renew(self) -> None:
        key = level_key(self.request, self.models.info, self._profile, *self._size)
        self.ladder.renew(self._demands(self.request, *self._size), key)

    @property
    def is_apu(self) -> bool:
        """Return whether the device shares the main memory."""
        return self._profile.machine.is_apu


def _with_attention(
    request: GenerationRequest, profile: Profile, info: ModelInfo, size: tuple[int, int], local: Local,
    stored: tuple[str, int] | None,
) -> tuple[GenerationRequest, Profile]:  # fmt: skip
    """Return the request and the profile with which the job computes attention.

    The way is the one that an earlier run has stored, or that the user has set. Otherwise, the ways that this
    GPU has are tried at the job's shape, unless that was done before.

    Raises:
        InputError: If this machine does not have the way.
    """
    if stored:
        request, profile = replace(request, attention=stored[0]), replace(profile, slice_bytes=stored[1])
    has_gpu, is_open = profile.machine.kind != "cpu", request.attention == AUTO
    if has_gpu and is_open and profile.attention.source != YOU and local.try_attention:
        is_known = request.weight_dtype != AUTO
        known = request if is_known else replace(request, weight_dtype=SETTINGS["weight_dtype"].default)
        networks = known_networks(info, profile, weight_dtype=known.weight_dtype)
        shape = attention_shape(known, networks, *size, longest_text(known, info))
        if shape_key(*shape) not in profile.ways:
            found = local.try_attention(tried_ways(), *shape, profile.slice_bytes)
            keep_trial(local.kernels, profile.machine.card, shape_key(*shape), found)
            profile = profile.with_seen(local)
    check_way(profile.attention.value if is_open else request.attention, has_gpu=has_gpu)
    return request, profile

"""What streamed weights cost: the path to the card, the preserved memory, and the type of the weights.

Every layer computes in 16 or 32 bit, so a smaller type is only a way of storing weights. int8 is as small as
fp8 and more precise. It pays if it keeps all blocks on the device. If blocks are streamed, each of them is
rounded again in every pass, which takes the processor much longer than copying it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from diffusers_helper.errors import InputError
from diffusers_helper.machine.local import Speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, JobPlan, plan_job
from diffusers_helper.planning.profiles import Machine, gfx_family
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import GB, gb_bytes, gb_text

_STORED = SETTINGS["weight_dtype"].default
Source = Literal["measured", "from the card's link", "assumed"]

# The share of a link's bytes that copies reach: 28.4 of 31.5 GB/s on an RX 7900 XTX, which a user reported of
# rocm-bandwidth-test (ROCm's issue 2253 on its build).
_LINK_EFFICIENCY = 0.9
# The makers' figures for the cards of a family; those of up to 8 GB have 8 lanes (RX 7600, RX 6600).
_LINKS = {"gfx1200": Link(5, 16)}
_USUAL_LINK, _SMALL_CARD_LINK, _SMALL_CARD_BYTES = Link(4, 16), Link(4, 8), 8 * GB
# A chip that shares the main memory copies within it. The memory of Strix Halo carries 256 GB/s (LPDDR5X-8000
# on 256 bits), and each byte crosses it four times: it is read and written on its way into the ring and out.
_SHARED_MEMORY_SPEED = 256e9 / 4
# The copy from the files' pages to pinned memory, with two channels of DDR4-3200, which carry 51.2 GB/s. Each
# byte crosses them four times: it is read, its place is read and written, and the card reads it there.
_HOST_COPY_SPEED = 51.2e9 / 4


@dataclass(frozen=True, slots=True)
class Bus:
    bytes_per_second: float
    name: str
    source: Source

    def reading(self, read_bytes: int, copied_bytes: int) -> Self:
        """Scale a disk's speed, for copies of which only some bytes are read from it."""
        speed = self.bytes_per_second * copied_bytes / read_bytes if read_bytes else math.inf
        return replace(self, bytes_per_second=speed)

    def seconds(self, num_bytes: int) -> float | None:
        return None if self.source == "assumed" else num_bytes / self.bytes_per_second


def disk_of(speed: float | None) -> Bus:
    """Describe a disk of this measured speed; without one, the speed of an SSD on PCIe 3.0 is assumed."""
    return Bus(speed, "the disk", "measured") if speed else Bus(2e9, "the disk", "assumed")


def bus_of(machine: Machine, measured: Speeds = Speeds()) -> Bus | None:  # noqa: B008 - frozen
    if machine.kind == "cpu":
        return None
    if machine.link is not None and not machine.is_apu:
        bus = _bus_over(machine.link)
    elif machine.is_apu:
        bus = Bus(_SHARED_MEMORY_SPEED, "the shared memory", "assumed")
    else:
        is_small = machine.kind == "rocm" and machine.total_bytes <= _SMALL_CARD_BYTES
        usual = _SMALL_CARD_LINK if is_small else _USUAL_LINK
        bus = _bus_over(_LINKS.get(gfx_family(machine), usual), "assumed")
    pinned, plain = measured.host_to_device_pinned_bytes_per_second, measured.host_to_device_bytes_per_second
    if speed := pinned or plain:
        return Bus(speed, "the card's bus" if bus.source == "assumed" else bus.name, "measured")
    return bus


def copies_of(machine: Machine, measured: Speeds, disk: Bus) -> Bus | None:
    """Find the slowest segment of the path of streamed weights: bus, copy within main memory, or disk."""
    bus = bus_of(machine, measured)
    if bus is None:
        return None
    host_speed = measured.host_copy_bytes_per_second
    host = Bus(host_speed or _HOST_COPY_SPEED, "main memory", "measured" if host_speed else "assumed")
    segments = (bus, disk) if machine.is_apu else (bus, host, disk)
    return min(segments, key=lambda segment: segment.bytes_per_second)


def _bus_over(link: Link, source: Source = "from the card's link") -> Bus:
    return Bus(_LINK_EFFICIENCY * link.bytes_per_second, link.name, source)


def fewest_copies(plan: JobPlan, demands: Sequence[Demand]) -> JobPlan:
    """Plan with the largest preserved memory that holds no weights back, for one of these demands."""
    budget = plan.budget
    demand = next(demand for demand in demands if demand.vae_tile_px == plan.vae_tile_px)
    unpreserved = plan_job(budget.preserving(0), (demand,))
    free_bytes = budget.cap_bytes - unpreserved.held_bytes
    tenths = math.floor(free_bytes * 10 / GB)  # the setting has steps of a tenth of a GB
    return plan_job(budget.preserving(gb_bytes(max(0, tenths) / 10)), (demand,))


DemandsOf = Callable[[GenerationRequest], Sequence[Demand]]


def waiting_bytes(request: GenerationRequest, plan: JobPlan, demands_of: DemandsOf) -> int:
    streamed_bytes = plan.stage("sample").streamed_bytes
    if request.weight_dtype == _STORED:
        return streamed_bytes
    stored_bytes = _transformer_bytes(demands_of(replace(request, weight_dtype=_STORED)))
    return streamed_bytes * stored_bytes // _transformer_bytes(demands_of(request))


def _transformer_bytes(demands: Sequence[Demand]) -> int:
    return next(stage.model.total_bytes for stage in demands[0].stages if stage.name == "sample")


def choose_streaming(
    request: GenerationRequest, budget: Budget, demands_of: DemandsOf, free_bytes: int | None
) -> tuple[GenerationRequest, Budget, str]:
    """Choose the type of the weights, and how much memory is preserved, as far as neither is set, and why.

    Where free main memory cannot hold the weights that would be streamed, as little memory is preserved as
    the estimates allow. If it cannot hold the remaining ones either, the weights are rounded to int8 where
    they then stay on the device.
    """
    chosen_request, reason = choose_weights(request, budget, demands_of)
    unchanged = chosen_request, budget, reason
    demands = demands_of(chosen_request)
    streamed_bytes = _streamed_bytes(budget, demands)
    if free_bytes is None or not budget.is_default or not streamed_bytes:
        return unchanged
    plan = plan_job(budget, demands)
    if (needed_bytes := waiting_bytes(chosen_request, plan, demands_of)) <= free_bytes:
        return unchanged
    fewest = fewest_copies(plan, demands)
    lower_budget = replace(fewest.budget, is_default=True)
    if waiting_bytes(chosen_request, fewest, demands_of) > free_bytes:
        chosen_request, reason = choose_weights(request, lower_budget, demands_of)
    if _streamed_bytes(lower_budget, demands_of(chosen_request)) == streamed_bytes:
        return unchanged
    reason = (
        f"Only {gb_text(free_bytes)} GB of main memory are free for {gb_text(needed_bytes)} GB of weights to "
        f"stream, so {gb_text(lower_budget.preserved_bytes)} GB are preserved instead of "
        f"{gb_text(budget.preserved_bytes)} GB, and more weights stay on the device. {reason}"
    )
    return chosen_request, lower_budget, reason.rstrip()


def choose_weights(
    request: GenerationRequest, budget: Budget, demands_of: DemandsOf
) -> tuple[GenerationRequest, str]:
    """Choose the type of the weights that the budget suggests, if the request leaves it open, and say why."""
    if request.weight_dtype != AUTO:
        return request, ""
    stored = replace(request, weight_dtype=_STORED)
    small = replace(request, weight_dtype="int8")
    stored_streamed = _streamed_bytes(budget, demands_of(stored))
    if stored_streamed == 0:
        return stored, _keeps_type("all of the transformer stays on the device")
    try:
        int8_demands = demands_of(small)
    except InputError:  # the only refusal that the type of the files does not meet
        return stored, _keeps_type("they are in GGUF or have scales")
    if stored_streamed is None:  # if int8 does not fit either, the refusal names the cap that it needs
        return small, "The weights are rounded to int8, because they do not fit otherwise."
    int8_streamed = _streamed_bytes(budget, int8_demands)
    if int8_streamed == 0:
        return small, (
            "The weights are rounded to int8, because all of the transformer then stays on the device; "
            f"otherwise, {gb_text(stored_streamed)} GB would be streamed in each pass."
        )
    if int8_streamed is None or int8_streamed >= stored_streamed:
        return stored, _keeps_type("int8 would not be smaller")
    return stored, _keeps_type(
        f"in int8, {gb_text(int8_streamed)} GB would still be streamed in each pass, and be rounded each "
        "time; a copy in int8, which longtake models convert writes, needs no rounding"
    )


def _keeps_type(reason: str) -> str:
    return f"The weights keep the type of the files, because {reason}."


def _streamed_bytes(budget: Budget, demands: Sequence[Demand]) -> int | None:
    try:
        return plan_job(budget, demands).stage("sample").streamed_bytes
    except DoesNotFit:
        return None

"""The cards on which jobs are made at the same time: as a user names them, and what each one can make."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from app.jobs.job import Job, size_of
from app.jobs.making.watchdog import card_in_use
from app.machine import output_of, parse_gb, this_local, this_machine
from diffusers_helper.errors import InputError, LongtakeError, short_repr
from diffusers_helper.machine.control_groups import processors
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import ROOT, amd_gpus, has_nvidia, usable_gpus, visible_gpu
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.profiles import (
    CAP_VARIABLE,
    HELPER_VARIABLE,
    YOU,
    Profile,
    profile_for,
    profile_in_force,
)
from diffusers_helper.planning.video import plan_video
from diffusers_helper.units import GB, gb_text

_log = logging.getLogger(__name__)
_MAX_CACHED_FITS = 20_000

_CPU = "cpu"
_NO_GPU = {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True, slots=True)
class NamedCard:
    """One card, or the processor, for an engine of its own.

    Attributes:
        names: Its number, its PCI address and its UUID, as far as they are known.
        variables: They let a process see this card alone.
    """

    names: tuple[str, ...]
    variables: Mapping[str, str]


def list_cards(root: Path = ROOT) -> list[NamedCard]:
    """List the cards on which jobs run, those of AMD or else those of NVIDIA, by their order on the bus.

    A process gets a card by its UUID where the driver tells it, since HIP, ROCr and the bus each have an
    order of their own. AMD cards without a UUID get their number in the kernel's order, which ROCr shares.
    """
    gpus = amd_gpus(root)
    usable = usable_gpus(gpus, has_nvidia=has_nvidia(root))
    amd = sorted((gpu.address, number, gpu) for number, gpu in enumerate(gpus) if gpu in usable)
    cards = [(at, gpu.uuid, {"ROCR_VISIBLE_DEVICES": gpu.uuid or str(number)}) for at, number, gpu in amd]
    if not cards and root == ROOT:
        answer = output_of("nvidia-smi", "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
        rows = sorted(line.split(", ") for line in answer.splitlines() if line.count(", ") == 1)
        cards = [(address, uuid, {"CUDA_VISIBLE_DEVICES": uuid}) for address, uuid in rows]
    return [
        NamedCard(tuple(filter(None, (str(number), address.lower(), uuid.lower()))), variables)
        for number, (address, uuid, variables) in enumerate(cards)
    ]


def parse_devices(text: str, cards: list[NamedCard]) -> list[dict[str, str]]:
    """Choose the environment variables for each engine that --devices asks for.

    Args:
        text: "auto" for all cards or, without any, for the processor; or names with commas between them, each
            with "=GB" behind it if it has a cap of its own. A card whose name follows another one's and a "+"
            helps that one.
    """
    if text == "auto":
        return [dict(card.variables) for card in cards] or [{}]
    groups = [[name.strip().lower().partition("=") for name in group.split("+")] for group in text.split(",")]
    num_on_cpu = sum(group[0][0] == _CPU for group in groups)
    threads = max(1, processors() // max(1, num_on_cpu))
    assigned = list[NamedCard]()

    def variables_of(name: str) -> dict[str, str]:
        if name == _CPU:
            return _NO_GPU | {"OMP_NUM_THREADS": str(threads)}
        card = next((card for card in cards if name in card.names and card not in assigned), None)
        if card is None:
            expected = ", ".join(" or ".join(card.names) for card in cards) or "it has none"
            raise InputError(
                f"devices names {short_repr(name)}; expected auto, cpu, or a card of this machine, "
                f"each once: {expected}.",
                "Correct the list, such as --devices 0,1.",
            )
        assigned.append(card)
        return dict(card.variables)

    engines = list[dict[str, str]]()
    for (name, _, cap), *helpers in groups:
        engine = variables_of(name) | ({CAP_VARIABLE: _cap(cap)} if cap else {})
        if len(helpers) > 1 or any((name == _CPU) != (helper == _CPU) for helper, _, _ in helpers):
            raise InputError(
                f"devices is {short_repr(text)}; expected at most one further card, of the same maker, "
                "that helps another.",
                "Correct the list, such as --devices 0+1.",
            )
        for helper, _, cap in helpers:
            helper_variables = variables_of(helper)
            if name != _CPU:
                engine |= {key: f"{engine[key]},{value}" for key, value in helper_variables.items()}
            engine[HELPER_VARIABLE] = _cap(cap) if cap else _default_cap(helper_variables)
        engines.append(engine)
    return engines


def _default_cap(variables: Mapping[str, str]) -> str:
    machine = this_machine({**os.environ, **variables})
    if cap := profile_for(machine, {}).cap_bytes.value:
        return f"{cap / GB:.3f}"
    raise InputError(
        "The memory of the card that is to help another one is not known.",
        "Name it, such as --devices 0+1=12.",
    )


def _cap(text: str) -> str:
    if parse_gb(text) <= 0:
        raise InputError(
            f"devices has a cap of {short_repr(text)}; expected a number of GB above 0.",
            "Correct it, such as --devices 0=12,1=20.",
        )
    return text


@dataclass(slots=True, eq=False)
class VideoCard:
    """A card, or the processor, on which one engine makes one job at a time.

    Attributes:
        key: The name of its lock, which no other card of the machine has.
        label: Its name in sentences, such as "card 1".
        address: Its address on the bus; "" for the processor.
        machine: The name of the other machine that has it; "" if it is here.
        models, away, reported_bytes: What that machine tells: the models that are there, why the card cannot
            be used just now ("" if it can), and how much of its memory is in use.
        in_use: What the limits of an engine's silence are learned for; see `card_in_use`.
    """

    key: str
    label: str
    profile: Profile
    local: Local
    in_use: str
    address: str = ""
    machine: str = ""
    models: Sequence[str] = ()
    away: str = ""
    reported_bytes: int = 0
    _fits: dict[object, bool] = field(default_factory=dict[object, bool])

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], root: Path = ROOT) -> Self:
        local = this_local(environ)
        profile = profile_in_force(this_machine(environ, root), local)
        gpu = visible_gpu(amd_gpus(root), environ, has_nvidia=has_nvidia(root))
        device = gpu.address if gpu else environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        cards = list_cards(root) if profile.machine.kind != "cpu" else []
        names = next((card.names for card in cards if device.lower() in card.names), ("0",) if cards else ())
        label = "processor" if profile.machine.kind == "cpu" else f"card {(*names, '0')[0]}"
        key = re.sub("[^a-z0-9]", "-", names[-1]) if names else _CPU
        return cls(key, label, profile, local, card_in_use(environ), gpu.address if gpu else "")

    @property
    def used_bytes(self) -> int:
        """How much of an AMD card's memory is in use, by whatever program; 0 for other cards."""
        used_bytes = {gpu.address: gpu.used_bytes for gpu in amd_gpus() if self.address}
        return used_bytes.get(self.address, self.reported_bytes)

    @property
    def size(self) -> str:
        """The memory in words, or the limit that a user has set; "" if only the driver knows it."""
        cap, total = self.profile.cap_bytes, self.profile.machine.total_bytes
        size = cap.value if cap.source == YOU else total or cap.value
        helper = f" and {gb_text(self.profile.helper_bytes)} GB" if self.profile.helper_bytes else ""
        return f"{gb_text(size)} GB{helper}" if size else ""

    @property
    def name(self) -> str:
        return f"{self.label} ({self.size})" if self.size else self.label

    def update(self, current: Self) -> None:
        if (self.models, self.profile) != (current.models, current.profile):
            self._fits.clear()
        for name in ("label", "profile", "local", "models", "away", "reported_bytes"):
            setattr(self, name, getattr(current, name))

    def lacks(self, job: Job) -> str:
        if self.machine and job.request.model not in self.models:
            return f"lacks the model {Path(job.request.model).name}"
        return "does not have LoRAs" if self.machine and job.request.lora else ""

    def fits(self, job: Job) -> bool:
        """Plan a job within the card's cap; also true if only the engine can tell.

        The answer is cached, since a plan costs milliseconds and a queue is read again and again.
        """
        key = job.id, job.request
        if key not in self._fits:
            if len(self._fits) >= _MAX_CACHED_FITS:
                self._fits.clear()
            self._fits[key] = self._plans(job)
        return self._fits[key]

    def _plans(self, job: Job) -> bool:
        if self.lacks(job):
            return False
        profile = self.profile.with_measurements(self.local)
        try:
            info = find_model(job.request.model, allow_folder=True)
            width, height = size_of(job)
            shape = (height, width) if width else None
            plan_video(job.request, info, profile, shape=shape, local=self.local)
        except DoesNotFit:
            return False
        except LongtakeError as error:
            _log.info("the plan of job %s is left to the engine: %s", job.id, error)
        return True


def with_unique_keys(cards: Sequence[VideoCard]) -> list[VideoCard]:
    """Give numbers to the cards that share a key, such as those of several engines on the processor."""
    numbered = list[VideoCard]()
    keys = [card.key for card in cards]
    for index, card in enumerate(cards):
        number = keys[: index + 1].count(card.key)
        if keys.count(card.key) > 1:
            key = card.key if number == 1 else f"{card.key}-{number}"
            card = replace(card, key=key, label=f"{card.label} {number}")
        numbered.append(card)
    return numbered

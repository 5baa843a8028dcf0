"""The cards on which jobs are made at the same time: as a user names them, and what each one can make."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.jobs.job import Job, size_of
from app.jobs.making.watchdog import card_in_use
from app.machine import bytes_named, output_of, this_local, this_machine
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
_MOST_KNOWN = 20_000

_CPU = "cpu"
_HIDDEN = {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True, slots=True)
class NamedCard:
    """One card, or the processor, for an engine of its own.

    Attributes:
        names: The ways to name it: its number, its PCI address, and its UUID, as far as they are known.
        variables: The environment variables with which a process sees this card alone.
    """

    names: tuple[str, ...]
    variables: Mapping[str, str]


def cards_here(root: Path = ROOT) -> list[NamedCard]:
    """Return the cards on which jobs run, those of AMD or else those of NVIDIA, by their order on the bus.

    A process gets a card by its UUID where the driver tells one, since HIP, ROCr and the bus each have an
    order of their own. AMD cards without one get their number in the kernel's order, which is that of ROCr.
    """
    gpus = amd_gpus(root)
    usable = usable_gpus(gpus, has_nvidia=has_nvidia(root))
    amd = sorted((gpu.address, number, gpu) for number, gpu in enumerate(gpus) if gpu in usable)
    found = [
        (address, gpu.uuid, {"ROCR_VISIBLE_DEVICES": gpu.uuid or str(number)}) for address, number, gpu in amd
    ]
    if not found and root == ROOT:
        answer = output_of("nvidia-smi", "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
        rows = sorted(line.split(", ") for line in answer.splitlines() if line.count(", ") == 1)
        found = [(address, uuid, {"CUDA_VISIBLE_DEVICES": uuid}) for address, uuid in rows]
    return [
        NamedCard(tuple(filter(None, (str(number), address.lower(), uuid.lower()))), variables)
        for number, (address, uuid, variables) in enumerate(found)
    ]


def chosen_cards(text: str, here: list[NamedCard]) -> list[dict[str, str]]:
    """Return the environment variables for each engine that --devices asks for.

    Args:
        text: "auto" for all cards or, without any, for the processor; or names with commas between them, each
            with "=GB" behind it if it has a cap of its own. A card whose name follows another one's and a "+"
            helps that one.
        here: This machine's cards.

    Raises:
        InputError: If a name is of no card, or of one that is named before, or if a cap is no number, or if a
            card cannot help.
    """
    if text == "auto":
        return [dict(card.variables) for card in here] or [{}]
    groups = [[one.strip().lower().partition("=") for one in group.split("+")] for group in text.split(",")]
    on_cpu = sum(group[0][0] == _CPU for group in groups)
    threads = max(1, processors() // max(1, on_cpu))
    taken = list[NamedCard]()

    def variables_of(name: str) -> dict[str, str]:
        if name == _CPU:
            return _HIDDEN | {"OMP_NUM_THREADS": str(threads)}
        card = next((one for one in here if name in one.names and one not in taken), None)
        if card is None:
            known = ", ".join(" or ".join(one.names) for one in here) or "it has none"
            raise InputError(
                f"devices names {short_repr(name)}; expected auto, cpu, or a card of this machine, "
                f"each once: {known}.",
                "Correct the list, such as --devices 0,1.",
            )
        taken.append(card)
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
            second = variables_of(helper)
            most = _cap(cap) if cap else _default_cap(second)
            engine |= {key: f"{engine[key]},{value}" for key, value in second.items() if name != _CPU}
            engine[HELPER_VARIABLE] = most
        engines.append(engine)
    return engines


def _default_cap(variables: Mapping[str, str]) -> str:
    """Return the cap in GB of a card that helps another one; raise InputError if only its driver knows it."""
    machine = this_machine({**os.environ, **variables})
    if cap := profile_for(machine, {}).cap_bytes.value:
        return f"{cap / GB:.3f}"
    raise InputError(
        "The memory of the card that is to help another one is not known.",
        "Name it, such as --devices 0+1=12.",
    )


def _cap(text: str) -> str:
    if bytes_named(text) <= 0:
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
        models: The models that are there, if that is another machine.
        away: Why it is not to be had just now, if that is another machine; "" if it is to be had.
        told_bytes: How much of its memory is in use, if that is another machine.
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
    told_bytes: int = 0
    _known: dict[object, bool] = field(default_factory=dict[object, bool])

    @classmethod
    def seen_with(cls, environ: Mapping[str, str], root: Path = ROOT) -> VideoCard:
        """Return the card on which a process with these environment variables computes.

        Raises:
            InputError: If a variable has an invalid value.
        """
        local = this_local(environ)
        profile = profile_in_force(this_machine(environ, root), local)
        gpu = visible_gpu(amd_gpus(root), environ, has_nvidia=has_nvidia(root))
        seen = gpu.address if gpu else environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        here = cards_here(root) if profile.machine.kind != "cpu" else []
        names = next((one.names for one in here if seen.lower() in one.names), ("0",) if here else ())
        label = "processor" if profile.machine.kind == "cpu" else f"card {(*names, '0')[0]}"
        key = re.sub("[^a-z0-9]", "-", names[-1]) if names else _CPU
        return cls(key, label, profile, local, card_in_use(environ), gpu.address if gpu else "")

    @property
    def used_bytes(self) -> int:
        """Return how much of an AMD card's memory is in use, by whatever program; 0 for other cards."""
        gpu = next((one for one in amd_gpus() if self.address and one.address == self.address), None)
        return gpu.used_bytes if gpu else self.told_bytes

    @property
    def size(self) -> str:
        """Return its memory in words, or the limit that a user has set; "" if only its driver knows it."""
        cap, total = self.profile.cap_bytes, self.profile.machine.total_bytes
        size = cap.value if cap.source == YOU else total or cap.value
        helper = f" and {gb_text(self.profile.helper_bytes)} GB" if self.profile.helper_bytes else ""
        return f"{gb_text(size)} GB{helper}" if size else ""

    @property
    def name(self) -> str:
        return f"{self.label} ({self.size})" if self.size else self.label

    def update(self, seen: VideoCard) -> None:
        if (self.models, self.profile) != (seen.models, seen.profile):
            self._known.clear()
        self.label, self.profile, self.local, self.models = seen.label, seen.profile, seen.local, seen.models
        self.away, self.told_bytes = seen.away, seen.told_bytes

    def lacks(self, job: Job) -> str:
        """Return a phrase about the file that a job needs and another machine does not have; "" if none."""
        if self.machine and job.request.model not in self.models:
            return f"lacks the model {Path(job.request.model).name}"
        return "does not have LoRAs" if self.machine and job.request.lora else ""

    def fits(self, job: Job) -> bool:
        """Return whether a plan of a job keeps within the card's cap, or only the engine can tell.

        The answer is kept, since a plan costs milliseconds and a queue is read again and again.
        """
        key = job.id, job.request
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._plans(job)
        return self._known[key]

    def _plans(self, job: Job) -> bool:
        if self.lacks(job):
            return False
        try:
            info = find_model(job.request.model, allow_folder=True)
            width, height = size_of(job)
            shape = (height, width) if width else None
            plan_video(job.request, info, self.profile.with_seen(self.local), shape=shape, local=self.local)
        except DoesNotFit:
            return False
        except LongtakeError as error:
            _log.info("the plan of job %s is left to the engine: %s", job.id, error)
        return True


def told_apart(cards: Sequence[VideoCard]) -> list[VideoCard]:
    """Return cards, in which those of the same key, such as several engines on the processor, get numbers."""
    found = list[VideoCard]()
    keys = [card.key for card in cards]
    for number, card in enumerate(cards):
        same = keys[:number].count(card.key)
        if keys.count(card.key) > 1:
            key = f"{card.key}-{same + 1}" if same else card.key
            card = replace(card, key=key, label=f"{card.label} {same + 1}")
        found.append(card)
    return found

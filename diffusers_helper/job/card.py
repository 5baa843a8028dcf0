"""The GPU as something that one job has at a time, with all of its memory, and that a job can lose."""

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from cache.conv import works
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.file_locks import take_lock

_log = logging.getLogger(__name__)


@contextmanager
def card_alone(device: torch.device, folder: Path | None) -> Generator[None]:
    """Keep this user's other Longtake programs from the same GPU, or raise LongtakeError."""
    name = card_name(device)
    with ExitStack() as on_exit:
        if name and folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                take_lock(on_exit.enter_context((folder / f"{name}.lock").open("ab")), waits=False)
            except BlockingIOError as error:
                raise LongtakeError(
                    "Another Longtake program is making a video on this card, which has no room for both.",
                    "This one begins when that has ended. Programs with one outputs folder share a queue.",
                    code="card_busy",
                ) from error
            except OSError as error:  # the lock only prevents trouble, so a job does not end for lack of it
                _log.warning("The card cannot be locked for this job (%s).", error)
        yield


class CardLost(Exception):
    """The loss of the GPU in the middle of a job. Only another process can use the GPU again."""


def check_card(device: torch.device, error: Exception) -> None:
    if not works(device):
        raise CardLost from error


def card_name(device: torch.device) -> str:
    """Make a name by which all programs know a GPU, and which can name a file; "" for a CPU."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    # Cards of one kind may have the same uuid under ROCm, but never the same address on the bus.
    facts = ("pci_domain_id", "pci_bus_id", "pci_device_id", "uuid")
    return "-".join(["card", *(str(getattr(properties, fact, "")) for fact in facts)])

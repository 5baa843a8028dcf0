"""Tests of the console lines of the memory document, on a device with given figures."""

import logging
import subprocess
import sys

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.memory.device import Device
from diffusers_helper.memory.status import (
    check_vram_limit,
    clear_cache_near_limit,
    get_cuda_allocated_memory_gb,
    log_memory_status,
    low_memory_warning,
)

GB = 1024**3
LOGGER = "diffusers_helper.memory.status"


class Card(Device):
    """A card that reports what a test wants: bytes that are allocated, reserved and free."""

    has_gpu = True
    allocated_bytes, reserved_bytes, free_bytes = (
        lambda self, place=place: self.figures[place] for place in range(3)
    )

    def __init__(self, *figures_gb: float, cap_gb: float | None = None) -> None:
        super().__init__()
        self.figures = [int(figure * GB) for figure in figures_gb]
        self.cap_bytes = None if cap_gb is None else int(cap_gb * GB)
        self.cleared = 0

    def empty_cache(self) -> None:
        self.cleared += 1


def test_what_is_said_of_a_cards_memory(
    caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    for allocated, cap_gb in ((18.5, None), (18.5, 37), (0, None), (17.99, None), (18, None), (25, 0)):
        card = Card(allocated, 19.2, 2.34, cap_gb=cap_gb)
        log_memory_status(card, prefix="[Before Transformer Load] ")
        is_near = clear_cache_near_limit(card, "HunyuanVideoTransformer3DModelPacked")
        assert (card.cleared, check_vram_limit(card, limit_gb=100)) == (int(is_near), True)
    lines = list(caplog.messages)
    for free_gb, cap_gb, need_gb in (
        (3.9, 19, 2), (4, 19, 2), (5, 19, 5.5), (6, 19, 5.5), (2, 5, 1), (2.5, 5, 1)
    ):  # fmt: skip
        lines.append(low_memory_warning(Card(0, 0, free_gb, cap_gb=cap_gb), int(need_gb * GB)))
    assert not low_memory_warning(Device(), 10 * GB)  # an account sees what there is
    assert "\n".join(lines) == snapshot


def test_live_tensors_are_what_is_allocated(caplog: pytest.LogCaptureFixture) -> None:
    device = Device()
    device.limit(GB // 4)
    with device:
        held = torch.zeros(GB // 8, dtype=torch.uint8)
    assert get_cuda_allocated_memory_gb(device) == 0.125
    with caplog.at_level(logging.INFO, LOGGER):
        log_memory_status(device)
    assert caplog.messages == [
        "Free: 0.12 GB | Allocated: 0.12 GB (50.0% of 0.25GB limit) | Reserved: 0.12 GB"
    ]
    del held


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_status_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for device in (None, torch.device("cpu"), torch.device("cuda")):
        with caplog.at_level(logging.INFO, LOGGER):
            log_memory_status(device, prefix="[Here] ")
        assert get_cuda_allocated_memory_gb(device) == 0
        assert check_vram_limit(device)
        assert not clear_cache_near_limit(device, "X")
    assert caplog.messages == ["[Here] There is no GPU whose memory could be shown."] * 3


@pytest.mark.slow
def test_a_script_without_a_log_sees_the_lines_on_its_console() -> None:
    lines = (
        "log_memory_status(Device(), prefix='[Before VAE Load] ')",
        "check_vram_limit(Device(), limit_gb=0)",
    )
    code = (
        "from diffusers_helper.memory import log_memory_status, check_vram_limit",
        "from diffusers_helper.memory.device import Device",
        *lines, "import logging", "logging.basicConfig()", *lines,
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True)
    # The script's own log, which shows warnings only, decides from its beginning on.
    status, limit, logged = done.stderr.splitlines()
    assert status.startswith("[Before VAE Load] Free: ")
    assert status.endswith(" GB | Allocated: 0 GB (0.0% of 20GB limit) | Reserved: 0 GB")
    assert limit == "[VRAM Limit] Warning: Current allocation 0.00 GB near limit 0.00 GB"
    assert logged == f"WARNING:{LOGGER}:{limit}"
    assert done.stdout == ""

"""Tests of the console lines of the memory document, word for word, on the accounting device."""

import logging
import subprocess
import sys

import pytest
import torch

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


class Filled(Device):
    """A device that reports what a test wants."""

    def __init__(self, allocated_gb: float, reserved_gb: float, free_gb: float) -> None:
        super().__init__()
        self.figures = [int(figure * GB) for figure in (allocated_gb, reserved_gb, free_gb)]
        self.cleared = 0

    def allocated_bytes(self) -> int:
        return self.figures[0]

    def reserved_bytes(self) -> int:
        return self.figures[1]

    def free_bytes(self) -> int:
        return self.figures[2]

    def empty_cache(self) -> None:
        self.cleared += 1


@pytest.fixture
def device() -> Filled:
    return Filled(18.5, 19.2, 2.34)


@pytest.mark.parametrize(
    ("place", "cap_gb", "limit"),
    [("[Before Transformer Load] ", None, "92.5% of 20"), ("", 37, "50.0% of 37")],
)
def test_the_status_line_is_the_documents_with_the_cap_in_force(
    place: str, cap_gb: int | None, limit: str, device: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    device.cap_bytes = cap_gb and cap_gb * GB
    with caplog.at_level(logging.INFO, LOGGER):
        log_memory_status(device, prefix=place)
    line = f"{place}Free: 2.34 GB | Allocated: 18.5 GB ({limit}GB limit) | Reserved: 19.2 GB"
    assert caplog.messages == [line]


def test_near_the_limit_the_cache_is_cleared_and_said_so(
    device: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    assert clear_cache_near_limit(device, "HunyuanVideoTransformer3DModelPacked")
    assert device.cleared == 1
    assert caplog.messages == [
        "[VRAM Limit] Warning: Current allocation 18.50 GB near limit 20.00 GB",
        "[VRAM Limit] Forcing cache clear before loading HunyuanVideoTransformer3DModelPacked",
    ]


@pytest.mark.parametrize(("allocated_gb", "is_within"), [(0, True), (17.99, True), (18, False), (25, False)])
def test_the_threshold_is_nine_tenths_of_the_limit(
    allocated_gb: float, is_within: bool, caplog: pytest.LogCaptureFixture
) -> None:
    device = Filled(allocated_gb, allocated_gb, 1)
    assert check_vram_limit(device) is is_within
    assert bool(caplog.messages) is not is_within
    assert clear_cache_near_limit(device, "X") is not is_within
    assert device.cleared == (0 if is_within else 1)
    assert check_vram_limit(device, limit_gb=100)


def test_live_tensors_are_what_is_allocated(caplog: pytest.LogCaptureFixture) -> None:
    device = Device()
    device.limit(GB // 4)
    assert get_cuda_allocated_memory_gb(device) == 0
    with device:
        held = torch.zeros(GB // 8, dtype=torch.uint8)
    assert get_cuda_allocated_memory_gb(device) == 0.125
    with caplog.at_level(logging.INFO, LOGGER):
        log_memory_status(device, prefix="[Here] ")
    line = "[Here] Free: 0.12 GB | Allocated: 0.12 GB (50.0% of 0.25GB limit) | Reserved: 0.12 GB"
    assert caplog.messages == [line]
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


class Card(Filled):
    has_gpu = True


@pytest.mark.parametrize(
    ("free_gb", "cap_gb", "need_gb", "least"),
    [
        (3.9, 19, 2, "4 GB"), (4, 19, 2, None), (5, 19, 5.5, "5.5 GB"), (6, 19, 5.5, None),
        (2, 5, 1, "2.5 GB"), (2.5, 5, 1, None),
    ],
)  # fmt: skip
def test_before_the_vae_four_gb_are_asked_for_or_what_the_plan_needs(
    free_gb: float, cap_gb: float, need_gb: float, least: str | None
) -> None:
    device = Card(0, 0, free_gb)
    device.cap_bytes = int(cap_gb * GB)
    reported = low_memory_warning(device, int(need_gb * GB))
    assert bool(reported) == (least is not None)
    if least:
        assert f"Only {free_gb:g} GB of the card's memory are free before the VAE decodes;" in reported
        assert f"at least {least} should be." in reported
        assert "close other programs that use the card" in reported
    assert not low_memory_warning(Filled(0, 0, 0), 10 * GB)  # an account sees what there is

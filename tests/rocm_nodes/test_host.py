"""Tests of what nodes tell of the card, and of the times and the memory of a run."""

from types import SimpleNamespace

import pytest
import torch

from rocm_nodes import host, page, samplers
from tests.support.comfy_double import Comfy, ModelPatcher

GB = 1024**3


@pytest.mark.parametrize(("hip", "software"), [(None, "CUDA 13.0"), ("7.2", "ROCm 7.2, gfx1100")])
def test_the_card_its_software_and_its_memory_are_told(
    hip: str | None, software: str, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(name="Card", gcnArchName="gfx1100:sramecc+")
    monkeypatch.setattr(host.management(), "get_torch_device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(host, "miopen_line", lambda: "MIOpen is off.")
    comfy.free = 3 * GB
    assert host.device_lines() == (
        f"Device: Card ({software}), torch {torch.__version__}. MIOpen is off.",
        "13 GB used of 16 GB; 3 GB free",
    )
    assert host.is_rocm() is (hip is not None)
    monkeypatch.setattr(host.management(), "get_torch_device", lambda: SimpleNamespace(type="cpu"))
    assert not host.is_rocm()


def test_progress_and_lines_reach_the_page_of_the_node_that_runs(comfy: Comfy) -> None:
    show = host.progress_bar()
    show(1, 4)
    show(2, 4, "a preview")
    assert comfy.shown == [(1, 4), (2, 4, "a preview")]
    page.announce("One.")
    host.comfy("server").PromptServer.instance.last_node_id = None
    page.announce("Two.")
    assert comfy.texts == [("7", "One.")]


def test_an_error_that_only_quotes_a_library_is_left_alone() -> None:
    with pytest.raises(ValueError, match="miopenStatusUnknownError"), page.explained():
        raise ValueError("miopenStatusUnknownError")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_run_has_the_time_and_the_peak_of_its_own(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, peak = iter([10.0, 14.0]), [9 * GB]
    place = SimpleNamespace(has_gpu=has_gpu, reset_peak=peak.clear, peak_bytes=lambda: max(peak))
    monkeypatch.setattr(page, "device", lambda: place)
    monkeypatch.setattr(page.time, "perf_counter", lambda: next(clock))
    with page.timing() as measured:
        peak.append(2 * GB)
    assert (measured.seconds, measured.peak_bytes) == (4.0, 2 * GB if has_gpu else 0)
    assert measured.peak == ("The peak on the device was 2 GB." if has_gpu else "")


def test_steps_are_timed_between_marks_and_the_first_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 6.0, 7.0, 8.0, 11.0])
    monkeypatch.setattr(samplers, "_mark", lambda: next(clock))
    times = samplers.StepTimes()
    assert [times(lambda x, y: x + y, 1, y=number) for number in range(3)] == [1, 2, 3]
    assert times.measured() == (5.0, 1.0, 3.0)
    lines = samplers._lines(times, SimpleNamespace(seconds=20.0, peak="The peak."), ModelPatcher(), "bf16")
    assert lines[1:] == [
        "3 evaluations of the model: median 3 s each; the first took 5 s.", "The peak.",
        "The model computed in bf16 instead of float32, so the bits differ from stock.",
    ]  # fmt: skip
    cast = ModelPatcher()
    cast.set_model_compute_dtype(torch.bfloat16)
    assert samplers._lines(times, SimpleNamespace(seconds=20.0, peak=""), cast, "bf16")[3:] == [
        "The model computed in bfloat16, as ComfyUI chose."
    ]

    class Event:
        """An event of a card, whose times are in milliseconds."""

        def elapsed_time(self, other: object) -> float:
            return 1500.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    times._marks = [(Event(), Event())]
    assert times.seconds == (1.5,)

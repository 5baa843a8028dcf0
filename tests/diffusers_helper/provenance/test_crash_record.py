"""A test of the note that lack of memory has ended engines: it is heeded, told once, and learned from."""

import shutil
from pathlib import Path

import pytest

from diffusers_helper.events import Finished, Warned
from diffusers_helper.job.memory import MemoryPlans
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.planning.out_of_memory import OutOfDeviceMemory
from diffusers_helper.provenance.job_folder import CrashRecord, JobFolder
from tests.support.making import make, tiny_request

HSA = "HSA exception: MemoryRegion::BlockAllocator::alloc failed."


@pytest.mark.slow
def test_a_note_of_deaths_is_heeded_told_once_and_learned(
    deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    local = Local(folder=tmp_path / "cache")
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir()
    CrashRecord("decode", HSA).write(folder.crash_record)
    for warnings in (1, 0):
        _, events = make(
            tiny_request(small_scene), deep_models, folder.path, resume_from=folder.path, local=local
        )
        reported = [event.message for event in events if isinstance(event, Warned)]
        assert (
            sum("the driver ended the engine; the VAE works in tiles of 64" in text for text in reported)
            == warnings
        )
        assert isinstance(events[-1], Finished)
        assert events[-1].vae_tile_px == 64
        for name in ("segments", "sections"):
            shutil.rmtree(folder.path / name)
    _, events = make(tiny_request(small_scene), deep_models, tmp_path / "next", local=local)
    assert isinstance(events[-1], Finished)
    assert events[-1].vae_tile_px == 64
    plans = MemoryPlans(tiny_request(small_scene), deep_models, 64, 64, local)
    assert plans.levels.step_to_end("decode") is not None  # takes the room of the weights
    CrashRecord("decode", HSA).write(folder.crash_record)
    with pytest.raises(OutOfDeviceMemory, match="there is no smaller plan to try"):
        make(tiny_request(small_scene), deep_models, tmp_path / "other", resume_from=folder.path, local=local)

"""Tests of the fold with which a video is directed while it grows."""

from pathlib import Path

import pytest

from app.jobs.job import Job
from app.ui.live.scene import takes_for
from diffusers_helper.families.packing import Mode
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.pages import Stand


def grown(stand: Stand, photo: Path, sections: int, mode: Mode = "forward") -> Job:
    """Return a job that waits for a user after so many of its three sections."""
    stand.engine.go(10_000)
    request = GenerationRequest(image=str(photo), prompt="a ball", seconds=3.6, mode=mode)
    job = stand.service.queue.add(request, waits=True)
    for number in range(1, sections + 1):
        wait_until(lambda: stand.service.job(job.id).state == "paused")
        assert num_finished_sections(JobFolder(job.folder)) == number
        if number < sections:
            stand.service.queue.resume(job.id)
    return job


@pytest.mark.parametrize(("mode", "begin"), [("forward", 1.2), ("inverted", 0.0)])
def test_takes_are_named_by_their_time_in_the_whole_video(
    stand: Stand, photo: Path, mode: Mode, begin: float
) -> None:
    job = grown(stand, photo, 1, mode)
    takes = stand.service.steering.takes(job.id, 2)
    wait_until(lambda: all(stand.service.job(take.id).state == "paused" for take in takes))
    choice = takes_for(stand.service, job.id)
    assert choice is not None
    assert choice["title"] == "1.2 – 2.4 s: which take?"  # the second of three sections in both orders
    assert [(take["begin"], take["end"]) for take in choice["tiles"]] == 2 * [(begin, begin + 1.2)]

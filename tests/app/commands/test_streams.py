"""Tests of the command line whose reader leaves, whose disk is full, or whose standard streams are closed."""

import os

import pytest

from app.jobs.service import JobService
from tests.support.jobs import TIMEOUT
from tests.support.program import Program


def test_a_reader_that_leaves_interrupts_the_job(program: Program) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = program.start("generate", "--json", script="steps=2 at=1 fault=wait", stdout=writer)
    os.close(writer)
    _, rest = process.communicate(timeout=TIMEOUT)
    err = rest.decode()
    (job,) = (path.name for path in program.outputs.iterdir() if path.name[0] != ".")
    assert process.returncode == 141
    assert f"Interrupted. Continue with: longtake generate --resume {job} --outputs" in err
    assert "Traceback" not in err
    service = JobService(program.outputs)
    service.recover()
    assert service.job(job).state == "interrupted"


@pytest.mark.parametrize(
    ("shape", "fault", "state"), [((), "", "finished"), (("--json",), "at=1 fault=wait", "interrupted")]
)
def test_an_output_without_room_ends_the_program_with_a_sentence(
    program: Program, shape: tuple[str, ...], fault: str, state: str
) -> None:
    with open("/dev/full", "wb") as full:
        process = program.start("generate", *shape, script=f"sections=1 steps=2 {fault}", stdout=full)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert err.decode().endswith(
        "A file, or the standard output, cannot be used (No space left on device). "
        "Check its folder's rights and the disk's space.\n"
    )
    (job,) = (path.name for path in program.outputs.iterdir() if path.name[0] != ".")
    assert JobService(program.outputs).job(job).state == state


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_an_empty_one(program: Program, closed: int) -> None:
    process = program.start("generate", script="sections=1 steps=1", closed=closed)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    (job,) = (path for path in program.outputs.iterdir() if path.name[0] != ".")
    assert (job / "video.mp4").read_bytes() == b"video of 37 frames"
    assert out.decode() == ("" if closed == 1 else f"{job / 'video.mp4'}\n")
    assert (b"s, 1 section\n" in err) == (b"Finished" in err) == (closed != 2)

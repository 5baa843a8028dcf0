"""Tests of job folders of unknown origin among the others."""

from __future__ import annotations

import json
from pathlib import Path

from app.jobs.service import JobService
from app.jobs.storage.state_log import StateLog
from diffusers_helper.output.job_folder import JobFolder
from tests.support.staged_engine import StagedEngine

DEEP = b"[" * 200_000
GOOD = b'{"prompt": "a boat"}'
REQUESTS = {
    "deep": DEEP, "a list": b"[1]", "a text": b'"x"', "nothing": b"null", "binary": b"\xff\xfe",
    "long": json.dumps({"prompt": "x" * 5_000_000}).encode(), "types": b'{"prompt": {"a": [1]}, "seed": []}',
}  # fmt: skip
LOGS = {
    "deep": b'{"state": "paused"}\n' + DEEP + b"\n",
    "types": b'{"state": ["queued"], "created": "x", "place": {}, "video": 5, "favourite": "x"}\n',
    "numbers": b'{"state": "queued", "place": NaN, "frames": 1' + b"0" * 400 + b', "created": Infinity}\n',
    "another state": b'{"state": "nonsense", "time": "x", "reason": [], "message": "kept"}\n',
}


def write(folder: Path, **contents: bytes) -> None:
    folder.mkdir(parents=True)
    for name, content in {"request_json": GOOD, **contents}.items():
        (folder / name.replace("_", ".")).write_bytes(content)


def test_a_folder_of_hostile_files_costs_no_other_one(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    write(outputs / "good")
    for name, content in REQUESTS.items():
        write(outputs / f"request {name}", request_json=content)
    for name, content in LOGS.items():
        write(outputs / f"log {name}", states_jsonl=content)
    write(outputs / "lineage", lineage_json=DEEP)
    write(outputs / "events", events_jsonl=DEEP + b"\n")
    service = JobService(outputs, StagedEngine())
    found = {job.id: job for job in service.jobs()}
    assert found.keys() == {"good", "lineage", "events", *(f"log {name}" for name in LOGS)}
    assert found["log deep"].state == "paused"
    assert found["log types"].state == found["log another state"].state == "queued"
    assert found["log another state"].message == "kept"
    assert (found["log numbers"].place, found["log numbers"].frames) == (0.0, 0)
    folder = JobFolder(outputs / "log another state")
    assert StateLog(folder).transitions() == []

"""Whole answers of the calls of queue and history, over an evening of presses."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.evenings import Evening, evening, stand
from tests.support.jobs import wait_until
from tests.support.pages import FIRST, FURTHER, Stand
from tests.support.staged_engine import FAILING_LATE_PROMPT, FAILING_PROMPT

__all__ = ["evening", "stand"]


def add(stand: Stand, evening: Evening, prompt: str, **settings: Any) -> Any:
    evening.clock.now += 5
    return stand.service.queue.add(GenerationRequest(prompt=prompt, **settings))


def test_a_queue(stand: Stand, evening: Evening, photo: Path, snapshot: Any) -> None:
    press = evening.press
    first = add(stand, evening, "a &amp; b\nline", image=str(photo), seconds=2.4)
    evening.until(first.id, "running")
    second = add(stand, evening, "<b>b</b>", seconds=3.6, mode="forward", seed=2**62)
    third = add(stand, evening, FAILING_PROMPT, image=str(photo), seconds=2.4)
    press("jobs_queue")
    press("jobs_reorder", job=third.id, before=second.id)
    press("jobs_queue")
    press("jobs_reorder", job=third.id)
    press("jobs_reorder", job=third.id, first=True)
    press("jobs_reorder", job=third.id, after=second.id)
    press("jobs_edit", job=second.id, changes={"prompt": "x", "seed": 5})
    press("jobs_edit", job=second.id, changes={"image": "/etc/passwd"})
    press("jobs_edit", job=first.id, changes={"seed": 6})
    fourth = press("jobs_duplicate", job=second.id, changes={"seed": 6})["id"]
    press("jobs_duplicate", job=second.id, changes={"model": "gone"})
    press("jobs_cancel", jobs=[second.id, "none"])
    press("jobs_pause", jobs=[second.id, third.id])
    press("jobs_pause", jobs=[second.id])
    press("jobs_queue", first=1, limit=1)
    press("jobs_queue", first=99)
    press("jobs_resume", jobs=[second.id])
    press("jobs_wait", jobs=[second.id])
    press("jobs_change", job=second.id, changes={"prompt": "it stops"})
    press("jobs_change", job=second.id, changes={"model": "demo"})
    press("jobs_takes", job=second.id)
    press("jobs_branch", job=second.id, keep=1)
    press("jobs_branch", job=second.id)
    press("jobs_favourite", jobs=[second.id])
    press("jobs_remove", jobs=[fourth, second.id])
    press("jobs_queue", first=-5, limit=0)
    press("jobs_restore", jobs=[second.id])
    press("jobs_restore", jobs=[second.id])
    press("jobs_empty_trash")
    press("jobs_resume", jobs=[third.id])
    assert evening.transcript() == snapshot


def test_a_video_is_held_and_finished(stand: Stand, evening: Evening, photo: Path, snapshot: Any) -> None:
    press = evening.press
    first = add(stand, evening, "a ball", image=str(photo), seconds=2.4)
    evening.until(first.id, "running")
    second = add(stand, evening, "another")
    third = add(stand, evening, FAILING_PROMPT, image=str(photo), seconds=2.4)
    press("jobs_queue")
    evening.go(first, FIRST, seconds=40)
    wait_until(lambda: stand.service.job(first.id).frames)
    press("jobs_scene", job=first.id)
    press("jobs_wait", jobs=[first.id])
    press("jobs_cancel", jobs=[first.id], after_section=True)
    press("jobs_resume", jobs=[first.id])
    press("jobs_wait", jobs=[first.id], wait=False)
    press("jobs_hold")
    evening.until(first.id, "paused")
    press("jobs_queue")
    press("jobs_go_on")
    evening.until(first.id, "running")
    press("jobs_cancel", jobs=[third.id, second.id])
    press("jobs_retry", jobs=[third.id])
    press("jobs_duplicate", job=third.id)
    press("jobs_queue")
    evening.go(first, FURTHER + 3, seconds=10, again=1)
    evening.until(first.id, "finished")
    evening.until(third.id, "running")
    press("jobs_queue")
    press("jobs_list", limit=2)
    press("jobs_show", job=first.id)
    press("jobs_usage")
    assert evening.transcript() == snapshot


def make_history(stand: Stand, evening: Evening, photo: Path) -> list[Any]:
    """Make a finished video, one that has failed, one of a section, and a branch of the first."""
    parent = add(stand, evening, "A green ball &amp; more", image=str(photo), seconds=3.6, seed=7)
    evening.make(parent)
    failed = add(
        stand, evening, FAILING_LATE_PROMPT, mode="forward", seconds=3.6, seed=2**62, negative="blue"
    )
    evening.make(failed)
    short = add(stand, evening, "x" * 400, image=str(photo), seconds=1.0)
    evening.make(short)
    child = stand.service.queue.branch(parent.id, 2, prompt="another <end>", seconds=4.8)
    evening.make(child)
    stand.service.queue.pause_queue()
    return [parent, failed, short, child]


def test_the_history_is_searched(stand: Stand, evening: Evening, photo: Path, snapshot: Any) -> None:
    press = evening.press
    press("history_search")
    parent, failed, _, child = make_history(stand, evening, photo)
    press("history_search", limit=2)
    press("history_search", limit=2, before=evening.answer["next"])
    press("history_search", stacked=True)
    press("history_search", root=parent.id)
    press("history_search", stacked=True, text="green")
    press("history_search", text="green BALL")
    press("history_search", text="zebra")
    press("history_search", states=["failed", "queued"])
    press("history_search", states=["lost"])
    press("history_search", model="Another")
    press("history_search", model="Longtake demo model", min_seconds=3, max_seconds=3.6)
    press("jobs_favourite", jobs=[failed.id])
    press("history_search", favourites=True)
    press("jobs_favourite", jobs=[failed.id], favourite=False)
    press("history_search", favourites=True)
    press("jobs_list", states=["finished"], models=["demo"], text="ball")
    press("jobs_remove", jobs=[parent.id])
    press("history_search", stacked=True)
    press("jobs_usage")
    press("jobs_restore", jobs=[parent.id])
    press("jobs_delete", jobs=[child.id, failed.id])
    press("history_search", stacked=True)
    press("history_open", job=child.id)
    assert evening.transcript() == snapshot


def test_videos_are_opened_and_branched(stand: Stand, evening: Evening, photo: Path, snapshot: Any) -> None:
    press = evening.press
    parent, failed, short, child = make_history(stand, evening, photo)
    for job in (parent, child, failed, short):
        press("history_open", job=job.id)
        stand.service.queue.rebuild()
    assert evening.transcript() == snapshot
    press("jobs_branch", job=failed.id, keep=1, changes={"seed": 9})
    press("jobs_branch", job=parent.id, longer=1.2, changes={"prompt": "longer"})
    press("jobs_branch", job=failed.id, longer=1.2)
    press("jobs_takes", job=failed.id, count=2)
    press("history_settings", job=failed.id)
    press("history_settings", job=parent.id)
    picture = stand.outputs.parent / "cache" / evening.answer["pictures"]["image"].removeprefix("uploads/")
    assert picture.read_bytes() == (parent.folder / "input.png").read_bytes()
    press("history_continue", job=failed.id)
    press("history_continue", job=child.id)
    assert evening.transcript() == snapshot


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("jobs_show", {"job": 5}), ("jobs_show", {"job": "../../etc"}), ("jobs_pause", {"jobs": "one"}),
    ("jobs_pause", {"jobs": ["x"] * 5001}), ("jobs_restore", {"jobs": ["x"]}),
    ("jobs_queue", {"first": 0, "limit": 1.5}), ("jobs_list", {"states": ["done"]}),
    ("history_search", {"states": ["failed"] * 21}), ("history_search", {"min_seconds": "nan"}),
    ("history_search", {"before": "99999999999999999999:x"}), ("picture_check", {"file": {"path": 3}}),
    ("form_start", {"press": "x", "settings": {}, "may_download": False}),
    ("jobs_branch", {"job": "x", "keep": 1, "longer": 2.0}),
    ("finish_plan", {"video": {"path": "/etc/passwd"}, "steps": "speed:2"}),
    ("models_inspect", {"file": "../x"}), ("preset_load", {"name": "none"}),
    ("models_copy", {"model": "x", "weight_dtype": "int8"}),
]  # fmt: skip


def test_refusals_at_both_doors(stand: Stand, evening: Evening, snapshot: Any) -> None:
    for name, message in REFUSED:
        evening.press(name, **message)
    assert evening.transcript() == snapshot

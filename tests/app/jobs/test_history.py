"""Tests of the history: search, favourites, and the removal of old videos."""

import math
from typing import Any

import pytest

from app.jobs.history import Retention, Stack
from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.units import GB
from tests.support.jobs import wait_until
from tests.support.shared import Sharing


@pytest.fixture
def service(sharing: Sharing) -> JobService:
    return sharing.open(start=False)


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


def test_what_a_search_finds(sharing: Sharing, service: JobService) -> None:
    jobs = {
        "a": sharing.add(service, "Ein großer ROTER Ball", seed=4711, seconds=1.0),
        "b": sharing.add(service, "красный МЯЧ", negative="размыто", seconds=2.4, model="demo"),
        "c": sharing.add(service, "赤いボールが転がる", seconds=5.0),
        "d": sharing.add(service, "4712", seconds=9.0),
    }
    for name, facts in {"a": {"model": "framepack"}, "c": {"favourite": True}, "d": {"model": "wan"}}.items():
        service._store.add_facts(jobs[name].id, **facts)
    for name in "bd":
        service.queue.cancel(jobs[name].id)
    service._store.enter(jobs["a"].id, "paused")
    found: list[tuple[dict[str, Any], str]] = [
        ({}, "dcba"), ({"text": "ball GROSSER"}, "a"), ({"text": "мяч"}, "b"), ({"text": "РАЗМЫТО"}, "b"),
        ({"text": "ボール"}, "c"), ({"text": "4711"}, "a"), ({"text": "471"}, "da"), ({"text": "100%"}, ""),
        ({"text": "ball мяч"}, ""), ({"states": ["cancelled"]}, "db"), ({"favourites": True}, "c"),
        ({"states": ["paused", "queued"]}, "ca"), ({"min_seconds": 2.4}, "dcb"), ({"max_seconds": 2.4}, "ba"),
        ({"min_seconds": 2.0, "max_seconds": 5.0}, "cb"), ({"models": ["demo"], "limit": 1}, "c"),
        ({"models": ["wan", "framepack"]}, "da"), ({"models": ["x"]}, ""), ({"limit": 0}, ""),
        ({"text": "a", "states": ["paused"], "models": ["framepack"], "max_seconds": 1.0}, "a"),
        ({"states": ["cancelled"], "models": ["framepack"]}, ""), ({"root": jobs["b"].id}, "b"),
    ]  # fmt: skip
    names = {job.id: name for name, job in jobs.items()}
    for query, expected in found:
        page = service.history.search(**query)
        total = len(expected) if "limit" not in query else {1: 2, 0: 4}[query["limit"]]
        assert ("".join(names[job.id] for job in page.jobs), page.total) == (expected, total), query
    assert service.history.models() == ["demo", "framepack", "wan"]
    assert [service.history.count(states) for states in ((), ("cancelled",), ("paused", "queued"))] == [
        4,
        2,
        2,
    ]


def test_pages_follow_each_other_whatever_happens_meanwhile(sharing: Sharing, service: JobService) -> None:
    all_jobs = [sharing.add(service, str(number)) for number in range(7)]
    first = service.history.search(limit=3)
    sharing.add(service, "newer")
    service.queue.remove(first.jobs[-1].id)
    second = service.history.search(limit=3, before=first.next)
    third = service.history.search(limit=3, before=second.next)
    seen = ids([*first.jobs, *second.jobs, *third.jobs])
    assert seen == ids(all_jobs)[::-1]
    assert (len(third.jobs), third.next) == (1, "")
    whole = service.history.search(limit=7)
    assert (len(whole.jobs), whole.next) == (7, "")
    with pytest.raises(InputError, match="earlier page"):
        service.history.search(before="nonsense")


def test_a_tree_of_branches_is_one_stack_of_the_job_that_went_furthest(
    sharing: Sharing, service: JobService
) -> None:
    first, take, other, alone = (sharing.add(service, f"take {number}") for number in range(4))
    for job, facts in (
        (first, {"frames": 9}), (take, {"parent": first.id, "frames": 37}),
        (other, {"parent": take.id, "frames": 37, "created": other.created + 60}),
        (take, {"state": "finished"}),
    ):  # fmt: skip
        service._store.add_facts(job.id, **facts)
    search = service.history.search
    page = search(stacked=True)
    assert (ids(page.jobs), page.total) == ([take.id, alone.id], 4)  # by the newest of each
    assert page.stacks[take.id] == Stack(first.id, 3, other.created + 60)
    assert ids(search(root=first.id).jobs) == [other.id, take.id, first.id]
    assert search("0", stacked=True).stacks[first.id].count == 1  # only what the search meets
    sister = sharing.add(service, "sister")
    service._store.add_facts(sister.id, parent="removed", created=1.0)
    service._store.add_facts(alone.id, parent="removed")
    assert search(stacked=True).stacks[alone.id].count == 2
    service._store.add_facts(alone.id, parent="")
    service.queue.remove(sister.id)
    half = search(stacked=True, limit=1)
    assert ids(search(stacked=True, limit=1, before=half.next).jobs) == [alone.id]
    for job, kept in ((take, 2), (other, 1), (first, 0)):
        service._store.add_facts(job.id, kept=kept)
    service._store.add_facts(alone.id, parent=first.id, kept=3, created=9.0)  # older than its sister
    whole = [(first.id, 0, 0), (alone.id, 0, 3), (take.id, 0, 2), (other.id, 2, 1)]
    for job in (first, take, other, alone):
        nodes = [(node.job.id, node.parent, node.num_kept_sections) for node in service.history.tree(job.id)]
        assert nodes == whole
    assert len(service.history.tree(other.id, limit=3)) == 3
    service._store.add_facts(alone.id, parent="", created=alone.created)
    service._store.add_facts(first.id, parent=other.id)  # a forged circle
    assert {node.job.id for node in service.history.tree(take.id)} == {first.id, take.id, other.id}
    assert ids(search(stacked=True).jobs) == [other.id, alone.id, take.id, first.id]


def test_a_limit_of_size_frees_space_as_soon_as_a_job_has_ended_and_while_the_next_is_made(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_KEEP_GB", str(1 / GB))
    server = sharing.open()
    ended, made = sharing.add(server), sharing.add(server, seconds=3.6)
    sharing.go(server, 8 + 3)
    wait_until(lambda: [job.id for job in server.jobs()] == [made.id])
    assert not ended.folder.exists()
    assert server.job(made.id).state == "running"
    assert not (sharing.outputs / ".longtake" / "trash").exists()


def test_a_limit_is_a_number_above_zero() -> None:
    assert Retention.from_environment({}) == Retention(math.inf, math.inf)
    assert Retention.from_environment({"LONGTAKE_KEEP_DAYS": " 30 "}) == Retention(30 * 86400)
    limits = {"LONGTAKE_KEEP_DAYS": "", "LONGTAKE_KEEP_GB": "2.5"}
    assert Retention.from_environment(limits) == Retention(math.inf, 2.5 * GB)
    for name in limits:
        for value in ("0", "-1", "much", "nan"):
            with pytest.raises(InputError, match=f"{name} is '{value}'"):
                Retention.from_environment({name: value})


def test_the_jobs_of_a_press_are_found_oldest_first(sharing: Sharing, service: JobService) -> None:
    jobs = [service.queue.add(sharing.request(), press=press) for press in ("ab", "", "ab", "a")]
    assert ids(service.history.made_by("ab")) == [jobs[0].id, jobs[2].id]
    service._store.add_facts(jobs[2].id, created=1.0)
    assert ids(service.history.made_by("ab")) == [jobs[2].id, jobs[0].id]
    assert service.history.made_by("") == []

"""Both ends of a card of another machine, over doubles of Ray and the engine: who has it, what is carried."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app import cluster, host, relay
from app.cards import VideoCard
from app.cluster import ClusterTask
from app.host import Answer, Host
from app.jobs.making.engine_client import EngineDied, Order, Trial
from diffusers_helper import __version__
from diffusers_helper.errors import InputError
from diffusers_helper.events import Finished, StepDone, to_dict
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import asked_in

STEP = StepDone(job="job", time=1.0, section=1, step=1, steps=2)
TRIAL = Trial("a case", "taps")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(host, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(host.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return now


def actor(calls: list[str], *answers: Any) -> Any:
    """Return an actor over an engine that yields these, or dies by them."""

    def run(job: Any, blocklist: Any) -> Iterator[Any]:
        calls.append(f"run {job.id} {job.request.prompt} {blocklist}")
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    made: Any = Host({}, "card 0", "desk")
    made._engine = SimpleNamespace(
        kill=lambda: calls.append("kill"), cancel=lambda job: calls.append(f"cancel {job}"), run=run,
        card=VideoCard.from_environment({"LONGTAKE_VRAM_CAP_GB": "3"}), used_bytes=7,
    )  # fmt: skip
    return made


def test_an_owner_has_a_card_until_it_has_heard_the_end_or_is_silent(clock: list[float]) -> None:
    calls = list[str]()
    far = actor(calls)
    run, folder = far.begin("a", "job", Answer(files={"x/request.json": b"{}"}), {TRIAL: "it died"})
    assert (run, far._orders.get()) == (1, (1, "job", {TRIAL: "it died"}))
    assert (Path(folder) / "x" / "request.json").read_bytes() == b"{}"
    assert far.begin("b", "other", Answer(), {}) == (0, "a")
    assert far.since(run, folder, 0) == Answer()
    far._add_report(run, {"event": "one"}, is_last=False)
    (Path(folder) / "video.mp4").write_bytes(b"video")
    told = Answer(events=[{"event": "one"}], files={"video.mp4": b"video"})
    assert (far.since(run, folder, 0), far.since(run, folder, 1)) == (told, Answer())
    facts = far.facts()
    assert (facts["owner"], facts["label"], facts["machine"]) == ("a", "card 0 of desk", "desk")
    assert (facts["cap_bytes"], facts["used_bytes"], facts["version"]) == (3 * 2**30, 7, __version__)
    assert "demo" in facts["models"]
    far.cancel(run, "job")
    far.cancel(run + 1, "job")
    second, _ = far.begin("a", "job", Answer(), {})  # its owner has lost what it had begun
    assert (second, calls) == (2, ["cancel job", "kill"])
    assert not Path(folder).exists()
    assert far.since(run, folder, 0) == Answer(death=(None, None, ""))
    far._add_report(run, (-9, None, "of the run before"))
    assert far.since(second, str(far._folder / "2/job"), 0) == Answer()
    far._add_report(second, (-6, TRIAL, "words"))
    assert far.begin("b", "other", Answer(), {}) == (0, "a")  # which does not know of the end yet
    assert far.since(second, str(far._folder / "2/job"), 0).death == (-6, TRIAL, "words")
    assert far.begin("b", "other", Answer(), {})[0] == 3
    assert calls[2:] == []
    for seconds, owner in ((19.9, "b"), (20.0, "")):
        clock[0] = 1000.0 + seconds
        assert far.facts()["owner"] == owner
    clock[0] = 1000.0
    far.hear(2)
    clock[0] = 1019.0
    far.hear(3)
    clock[0] = 1030.0
    assert far.facts()["owner"] == "b"


@pytest.mark.parametrize(
    ("answers", "seconds", "events", "death", "killed"),
    [
        ((STEP, None, Finished(job="job", time=2.0, video="", frames=9, seconds=1.0)), 0.0, 2, None, False),
        ((STEP, EngineDied(-6, TRIAL)), 0.0, 1, (-6, TRIAL, ""), False),
        ((STEP,), 60.0, 1, None, True), ((ValueError("odd"),), 0.0, 0, (None, None, "odd"), False),
    ],
)  # fmt: skip
def test_an_actor_has_its_engine_make_a_job_and_reports_its_end(
    clock: list[float], tmp_path: Path, answers: Any, seconds: float, events: int, death: Any, killed: bool
) -> None:
    calls = list[str]()
    far = actor(calls, *answers)
    far.begin("a", "job", Answer(), {TRIAL: "it died"})
    asked_in(far._folder / "1" / "job", GenerationRequest(image="gone", prompt="a ball"))
    clock[0] += seconds  # in which nobody has asked
    (run, job, blocklist), far._orders = far._orders.get(), SimpleQueue()
    orders = iter([(run, job, blocklist)])
    far._orders = SimpleNamespace(get=lambda: next(orders))
    with pytest.raises(StopIteration):
        Host._work(far)
    assert calls == [f"run job a ball {blocklist}", *["kill"] * killed]
    assert (len(far._events), far._death) == (events, death)
    assert far._is_over == (not killed)


class Ray:
    """Ray, whose actors are at hand: what is asked of them has happened once `wait` says so."""

    exceptions = SimpleNamespace(RayError=KeyError)

    def __init__(self, silences: int = 0) -> None:
        self.silences = silences

    def wait(self, requests: list[Any], timeout: float) -> Any:
        self.silences -= 1
        return (requests, []) if self.silences < 0 else ([], requests)

    def get(self, answer: Any, timeout: float = 0.0) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


def remote(calls: list[str], **answers: Any) -> Any:
    """Return an actor that answers with these, one after the other, and notes what it is asked."""

    def method(name: str, results: Iterator[Any]) -> Any:
        def ask(*arguments: Any) -> Any:
            calls.append(" ".join(map(str, (name, *arguments))))
            return next(results, None)

        return SimpleNamespace(remote=ask)

    names = ("begin", "since", "cancel", "hear", "facts")
    return SimpleNamespace(**{name: method(name, iter(answers.get(name, ()))) for name in names})


def test_a_relay_carries_files_before_events_and_dies_as_the_engine_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    folder, task, lines = tmp_path / "job", ClusterTask("a:1", owner="me"), list[str]()
    folder.mkdir()
    (folder / "request.json").write_bytes(b"{}")
    end = Finished(job="job", time=2.0, video="/far/1/job/video.mp4", frames=9, seconds=1.0)
    whole = (
        Answer(events=[to_dict(STEP)], files={"latents": b"l"}),
        Answer(events=[to_dict(end), to_dict(STEP)], files={"video.mp4": b"v"}),
    )

    class Ended(Exception):
        pass

    def send(event: Any) -> None:
        lines.append(f"{event} beside {sorted(file.name for file in folder.iterdir())}")

    def leave(code: int) -> None:
        lines.append(f"exit {code}")
        raise Ended

    pipe: Any = SimpleNamespace(send=send, name_trial=lambda *trial: lines.append(f"trial {trial}"))
    monkeypatch.setattr(relay, "complain", lambda *words: lines.append(f"complains {words}"))
    monkeypatch.setattr(relay.os, "kill", lambda pid, number: lines.append(f"kill {number}"))
    monkeypatch.setattr(relay.os, "_exit", leave)
    for name, silences, begun, answers in (
        ("made", 2, (1, "/far/1/job"), whole), ("in use", 0, (0, "another"), ()),
        ("killed", 0, (1, "/far/1/job"), [Answer(death=(-6, TRIAL, "one\ntwo"))]),
        ("ended", 0, (1, "/far/1/job"), [Answer(death=(3, None, ""))]),
        ("lost", 0, (1, "/far/1/job"), [Answer(death=(None, None, ""))]),
    ):  # fmt: skip
        order = Order("job", folder, [{"case": "a case", "rung": "taps", "reason": "it died"}])
        order.cancel.cancel()
        lines.append(f"> {name}")
        try:
            said = relay._make(
                Ray(silences), remote(lines, begin=[begun], since=iter(answers)), task, order, pipe
            )
            lines.append(f"returns {said!r}")
        except Ended:
            pass
    assert "\n".join(lines).replace(str(tmp_path), "TMP") == snapshot


def test_a_folder_that_cannot_be_written_ends_its_job_and_a_lost_card_the_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends, sent, connected = (
        iter([relay._Unwritable(28, "Full", "/x"), "", RuntimeError("gone")]),
        list[Any](),
        list[str](),
    )

    def make(*_: object) -> str:
        end = next(ends)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(relay, "connect", lambda task: connected.append("ray") or Ray())
    monkeypatch.setattr(Ray, "get_actor", lambda _, name: connected.append(name), raising=False)
    monkeypatch.setattr(relay, "_make", make)
    orders: Any = SimpleNamespace(take=lambda: Order("job", Path("x"), []))
    relay._make_all(ClusterTask("a:1", card="desk-0"), orders, SimpleNamespace(send=sent.append))  # pyright: ignore
    assert [(event.code, event.message) for event in sent] == [
        ("disk_full", "The disk is full; the video cannot be written."),
        ("card_away", "Its machine is out of reach."),
    ]  # fmt: skip
    assert (connected[:2], connected.count("ray")) == (["ray", "desk-0"], 1)


def test_which_cards_of_a_cluster_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    task, written = ClusterTask("a:1", owner="me"), list[Any]()
    told = {"free": ("", __version__), "mine": ("me", __version__), "theirs": ("other", __version__),
            "old": ("", "0.1")}  # fmt: skip
    actors: dict[str, Any] = {
        name: remote([], facts=[{"owner": owner, "version": version}])
        for name, (owner, version) in told.items()
    }
    actors["lost"] = remote([], facts=[KeyError("gone")])
    monkeypatch.setattr(relay, "list_actors", lambda ray: actors)
    monkeypatch.setattr(relay.time, "sleep", lambda seconds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        relay._watch(Ray(), task, SimpleNamespace(write=written.append))  # pyright: ignore
    ((told_cards,),) = [message.values() for message in written]
    assert {card["name"]: card["away"] for card in told_cards} == {
        "free": "", "mine": "", "theirs": "Longtake on other uses it.",
        "old": f"Its machine has Longtake 0.1, and this one {__version__}.",
    }  # fmt: skip


def test_cards_come_go_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, over, cards = list[str](), threading.Event(), dict[str, VideoCard]()
    facts = {"name": "cpu", "kind": "cpu", "arch": "", "total_bytes": 2**33}
    desk = {
        "name": "desk-0", "label": "card 0 of desk", "facts": facts, "machine": "desk", "models": ["demo"],
        "cap_bytes": 0, "used_bytes": 5, "away": "",
    }  # fmt: skip
    rounds = iter([
        [[], [desk], [desk | {"away": "Other."}], []], InputError("Not private.", "Do."), [[desk]], [],
    ])  # fmt: skip

    def lines() -> Iterator[Any]:
        answers = next(rounds)
        if isinstance(answers, InputError):
            raise answers
        for answer in answers:
            yield {"cards": answer}
            calls.append(f"{[(card.away, card.reported_bytes) for card in cards.values()]}")

    def add(engine: Any) -> None:
        cards[engine.card.label] = engine.card
        told = json.loads(engine._command[-1])
        calls.append(f"adds {[told[name] for name in ('action', 'card', 'owner', 'machine')]}")

    service: Any = SimpleNamespace(expect_cards=lambda why: calls.append(f"expects {why}"), add_engine=add)
    task: Any = ClusterTask("a:1", owner="me", machine="here")
    monkeypatch.setattr(ClusterTask, "lines", lambda _: lines())
    waits = iter([False, False, False, True])
    over.wait = lambda seconds=None: over.set() if next(waits) else None  # pyright: ignore
    cluster.watch_cards(task, service, over)
    end = [(card.away, card.reported_bytes) for card in cards.values()]
    assert calls == [
        "expects No machine of the cluster has one now.", "[]",
        "adds ['make', 'desk-0', 'me', 'here']",
        "expects No machine of the cluster has one now.", "[('', 5)]",
        "expects No machine of the cluster has one now.", "[('Other.', 5)]",
        "expects No machine of the cluster has one now.", "[('Its machine is out of reach.', 5)]",
        "expects The cluster at a:1 is out of reach.", "expects Not private.",
        "expects No machine of the cluster has one now.", "[('', 5)]",
        *["expects The cluster at a:1 is out of reach."] * 2,
    ]  # fmt: skip
    assert end == [("The cluster at a:1 is out of reach.", 5)]


def test_a_machine_gives_its_cards_on_a_node_of_its_own_and_again_after_each_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, rounds = list[str](), iter(list[list[dict[str, str]]]())

    def wait(seconds: float) -> None:
        heard.append(f"{seconds:g} s")
        if heard.count("5 s") == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "list_cards", list)
    monkeypatch.setattr(cluster, "say", heard.append)
    monkeypatch.setattr(cluster, "complain", heard.append)
    monkeypatch.setattr(cluster.time, "sleep", wait)
    monkeypatch.setattr(ClusterTask, "lines", lambda task: heard.append(task.action) or next(rounds))
    node = SimpleNamespace(terminate=lambda: heard.append("ends"), wait=lambda: heard.append("waits"))
    monkeypatch.setattr(
        cluster.subprocess, "Popen", lambda command, **_: heard.append(" ".join(command[1:4])) or node
    )
    for address in ("a:1", "auto"):
        heard.clear()
        rounds = iter([[], [], [{"cards": "card 0"}], []])
        with pytest.raises(KeyboardInterrupt):
            cluster.join(ClusterTask(address, devices="cpu"))
        begin = ["start --address=a:1 --num-gpus=0", "host"] if address == "a:1" else ["host"]
        end = ["ends", "waits"] if address == "a:1" else []
        lost = f"The cluster at {address} is out of reach. This is tried again until it is back."
        given = f"These cards make the videos of {address} until you press Ctrl-C: card 0."
        tries = [[*end, lost], end, [given, *end, lost], end]
        assert heard == [word for rest in tries for word in (*begin, *rest, "5 s")]


def test_the_actors_of_a_machine_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"namespace": "longtake", "name": name} for name in ("desk-0", "gone")]
    entries.append({"namespace": "other", "name": "theirs"})
    waits, made, clock = list[float](), list[Any](), [0.0]

    def get_actor(name: str, namespace: str) -> str:
        if name == "gone":
            raise ValueError("it has ended")
        return f"{name} of {namespace}"

    def wait(seconds: float) -> None:
        clock[0] += seconds
        waits.append(seconds)
        if len(waits) == 2:
            entries.clear()

    def options(**facts: Any) -> Any:
        return SimpleNamespace(remote=lambda *arguments: made.append((facts, arguments)) or facts["name"])

    nodes = [
        {"Alive": False, "NodeID": "dead", "Resources": {"label": 1}},
        {"Alive": True, "NodeID": "another", "Resources": {}},
        {"Alive": True, "NodeID": "own", "Resources": {"label": 1}},
    ]
    ray: Any = SimpleNamespace(
        util=SimpleNamespace(list_named_actors=lambda all_namespaces: [*entries]), get_actor=get_actor,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "here"), nodes=lambda: nodes,
        remote=lambda **limits: lambda kind: SimpleNamespace(options=options),
    )  # fmt: skip
    place = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node_id, soft: (node_id, soft))
    monkeypatch.setattr(cluster, "import_module", lambda name: place)
    monkeypatch.setattr(cluster, "list_cards", list)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=wait))
    assert cluster.list_actors(ray) == {"desk-0": "desk-0 of longtake"}
    entries[0]["name"] = "desk-cpu"
    task = ClusterTask("a:1", machine="desk", devices="cpu,cpu", node_label="label")
    assert cluster.host_cards(ray, task) == {"desk-cpu": "desk-cpu", "desk-cpu-2": "desk-cpu-2"}
    assert (waits, [facts["scheduling_strategy"] for facts, _ in made]) == ([1.0, 1.0], [("own", False)] * 2)
    assert [arguments[1:] for _, arguments in made] == [("processor 1", "desk"), ("processor 2", "desk")]
    entries.append({"namespace": "longtake", "name": "desk-cpu"})
    with pytest.raises(InputError, match="Another machine has joined as desk"):
        cluster.host_cards(ray, task)
    assert clock[0] > 60.0


def test_one_public_address_of_a_name_is_enough_to_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in ("192.168.1.2", "8.8.8.8")]
    monkeypatch.setattr(cluster.socket, "getaddrinfo", lambda host, port: found)
    with pytest.raises(InputError, match="desk is not in a private network"):
        cluster.check_private("desk:1", is_public=False)
    cluster.check_private("desk:1", is_public=True)
    del found[1]
    cluster.check_private("desk:1", is_public=False)


def test_what_a_process_of_the_cluster_tells(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; print('noise', file=sys.stderr)\nfor line in {}: print(line)"
    lines = ['{"cards": []}', '{"refused": ["No.", "Do."]}']
    monkeypatch.setattr(ClusterTask, "command", lambda _: (sys.executable, "-c", script.format(lines)))
    for level in ("INFO", "WARNING"):
        monkeypatch.setattr(cluster.logging, "getLevelName", lambda _, level=level: level)
        told = ClusterTask("a:1").lines()
        assert next(told) == {"cards": []}
        with pytest.raises(InputError, match=r"No\. Do\."):
            next(told)
        assert ("noise" in capfd.readouterr().err) is (level == "INFO")
    facts = {"name": "cpu", "kind": "cpu", "arch": "", "total_bytes": 2**33}
    desk = {"label": "card", "facts": facts, "machine": "desk", "models": [], "away": "", "used_bytes": 5}
    card = cluster.remote_card({**desk, "name": "Desk 0", "cap_bytes": 3 * 2**30})
    assert (card.key, card.profile.cap_bytes.value, card.in_use) == ("desk-0", 3 * 2**30, "cpu of card")

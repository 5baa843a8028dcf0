"""What the supervisor makes of engines that die or fall silent, over an engine that plays a script."""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.job import Job
from app.jobs.making import supervisor as module
from app.jobs.making.engine_client import EngineDied, Trial
from app.jobs.making.supervisor import Supervisor
from app.jobs.making.watchdog import FIRST_SECONDS, WatchdogTimeouts, card_in_use
from diffusers_helper.events import Event, Failed, StageStarted, Warned
from diffusers_helper.planning.profiles import Machine
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.reported_jobs import job_of, slow_start
from tests.support.scripted_engine import (
    ABOUT,
    END,
    STARTED,
    Clock,
    Script,
    card_of,
    done,
    job_for,
    make,
    stage,
    step,
    warnings,
)

HIP = "torch.OutOfMemoryError: HIP out of memory. Tried 2 GiB."
SAYS = {"unknown": "An unknown word."}
# Each run of the engine: what it says, seconds of silence (~), and its exit code (!) with the
# convolution that it tried (@) or its last words (%). What is known before comes first, as seconds by stage.
DEATHS = {
    "inverted": "S unknown sample1 done1 sample2 step2.1 !-6 / S unknown decode1 done1 done2 done3+36 E",
    "forward": "S done1 sample2 !-6 / S done1 done2 E",
    "three": "S decode1 !-6 / S decode1 !3 / S decode1 !-11 / E",
    "a section in between": "S !-6 / S !-6 / S done1 !-6 / S !-6 / S done2 E",
    "three after a section": "S done1 sample2 !-6 / S sample2 !-6 / S sample2 step2.1 !-6 / E",
    "kills at two points": " / ".join(f"S sample1 step1.{1 + n % 2} !-9" for n in range(9)) + " / S done1 E",
    "four kills at one point": "S sample1 step1.1 !-9 / " * 4 + "E",
    "five kills at one point": "S sample1 step1.1 !-9 / " * 5 + "E",
    "25 kills before a section": "S text !-9 / " * 25 + "E",
    "each cause": "S done1 sample2 !-6 / S done2 sample3 !-9 / S done3 ~1e6 / S done4 &!-9 / S done5 !-9 / E",
    "memory was full": "&!-9 / S sample1 &!-9 / S sample1 &!-9 / E",
    "where it goes on": "S text !-6 / S sample1 !-6 / E",
    "ended with its group, as asked": "polite S sample1 !-15",
    "ended with its group, unasked": "S sample1 !-15 / S sample1 !-1 / E",
    "silent without an end": "alone S !None",
    "lack of memory": "S sample1 !-6%HIP / S sample1 !-6%HIP / E",
    "lack of memory in two stages": "S sample1 !-6%HIP / S decode1 !-6%HIP / E",
    "lack of memory once": "S sample1 !-6 / S sample1 !-6%HIP / E",
    "lack of memory three times": "S sample1 !-6%HIP / S sample1 !-6%HIP / S sample1 !-6%HIP / E",
}
TRIALS = {
    "a crash": "S decode1 !-6@a / S done1 E",
    "lack of memory": "S decode1 !-6@a%HIP / S done1 E",
    "six": " / ".join(f"S sample1 !-6@{n}" for n in range(6)) + " / E",
    "seven": " / ".join(f"S sample1 !-6@{n}" for n in range(7)) + " / E",
    "two beside one's own": "S sample1 !-6@a / S sample1 !-6 / S sample1 !-6@b / S sample1 !-6 / S !-6 / E",
    "killed, but not twice in a row": "S !-9@a / S !-9 / S !-9@a / E",
    "killed at two": "S !-9@a / S !-9@b / E",
    "killed twice": "S !-9@a / S !-9@a / E",
    "killed twice, with a section between": "S !-9@a / S done1 !-9@a / E",
    "a hang": "decode=10 S decode1 ~200@a / E",
}
SILENCES = {
    "too long": "sample=10 S sample1 ~79 step1.1 ~700 / S done1 E",
    "at the limit": "sample=10 S sample1 ~80 step1.1 E",
    "short ones": "sample=1 S sample1 ~59 step1.1 E",
    "an engine that cannot be started again": "sample=1 alone S sample1 ~500 E",
    "the first time": "S sample1 ~2640 step1.1 E",
    "the first time, with kernels to compile": "rocm S sample1 ~2640 step1.1 E",
    "known, with kernels to compile": "rocm decode=1 S decode1 ~1800 done1 E",
    "known, with compiled kernels": "rocm home decode=1 S decode1 ~1800 done1 E / E",
    "too long the first time": "S sample1 ~3300 step1.1 E / E",
    "too long, though it took long before": "sample=10000 S sample1 ~3300 E / E",
    "a trial of attention": "attention=2 S attention ~2640 sample1 step1.1 E",
    "an endless trial of attention": "S attention ~3300 E / E",
    "an endless choice of convolutions": "S convolutions ~3300 E / E",
    "a load after the trials": "attention ~30 S ~3300 sample1 step1.1 E",
    "a step that compiles": "sample=1 C sample1 ~600 step1.1 E",
    "the step after it": "sample=1 C sample1 step1.1 ~600 step1.2 E / E",
    "of a slow card": "slow S sample1 ~700 E",
    "of a fast card": "fast S sample1 ~700 / E",
    "after a request to end": "asked S sample1 ~300 E",
    "after a request to end a slow step": "asked sample=10 S sample1 ~79 E",
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.chdir(tmp_path)  # the job's folder is a relative path
    monkeypatch.setenv("HOME", str(tmp_path))
    return clock


class Played(Script):
    """The engine of a case, whose silences may be those of a trial, and whose kills those of the system."""

    trial: Trial | None = None
    kills = 0

    def run(self, job: Job, **settings: Any) -> Iterator[Event | None]:
        self.kills += "&" in self.runs[self.attempts]
        self.runs[self.attempts] = [item for item in self.runs[self.attempts] if item != "&"]
        try:
            yield from super().run(job, **settings)
        except EngineDied as died:
            if self.killed and self.trial:
                raise EngineDied(died.exit_code, self.trial) from died
            raise


def played(text: str, clock: Clock) -> tuple[Played, WatchdogTimeouts, dict[str, Any]]:
    timeouts, options, engine = WatchdogTimeouts(), dict[str, Any](), Played([], clock)
    for run in text.split(" / "):
        engine.runs.append([])
        for word in run.split():
            name, is_known, value = word.partition("=")
            if is_known:
                timeouts.learn(f"CPU: demo {name} 64x64", float(value))
            elif word in ("slow", "fast"):
                for card, seconds in (("slow", 100.0), ("fast", 10.0)):
                    timeouts.learn(f"{card}: demo sample 64x64", seconds)
                engine.card = card_of(word)
            elif word in ("alone", "rocm", "asked", "polite"):
                options[word] = True
            elif word == "home":
                Path(".cache/miopen").mkdir(parents=True)
            elif word[0] == "~":
                seconds, _, trial = word[1:].partition("@")
                engine.runs[-1].append(float(seconds))
                engine.trial = Trial(trial, "taps") if trial else None
            else:
                engine.runs[-1] += [*("&" * (word[0] == "&")), said(word.lstrip("&"))]
    engine.restarts = "alone" not in options
    return engine, timeouts, options


def said(word: str) -> object:
    if word in SAYS:
        return Warned(**ABOUT, message=SAYS[word])
    if word == "C":
        return replace(STARTED, kernels="compiled")
    if word in ("S", "E"):
        return STARTED if word == "S" else END
    if word[0] == "!":
        code, _, words = word[1:].partition("%")
        code, _, trial = code.partition("@")
        died = EngineDied(None if code == "None" else int(code), Trial(trial, "miopen") if trial else None)
        died.errors = HIP if words else ""
        return died
    name, number = word.rstrip("0123456789.+"), word.lstrip("abcdefghijklmnopqrstuvwxyz")
    if name == "done":
        return done(*map(int, number.split("+")))
    if name == "step":
        return step(*map(int, number.split(".")))
    return stage(int(number), name) if number else StageStarted(**ABOUT, stage=name)  # pyright: ignore


def told(text: str, clock: Clock, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Tell what a reader of the job hears, and what is remembered."""
    engine, timeouts, options = played(text, clock)
    patch.setattr(module, "_memory_kills", lambda: engine.kills)
    began, line = clock.now, list[str]()
    mode = "inverted" if "+36" in text else "forward"
    is_asked = {"asked"} & {*options}, {"asked", "polite"} & {*options}
    supervisor = Supervisor(
        job_for(mode), engine, timeouts, lambda wait: bool(is_asked[wait > 0]), compiles="rocm" in options
    )
    try:
        for event in supervisor.make():
            facts = (getattr(event, name, None) for name in ("stage", "section", "step", "added_in_front"))
            line.append(" ".join([type(event).__name__, *(f"{fact}" for fact in facts if fact)]))
            if isinstance(event, Warned | Failed):
                yield f"{', '.join(line)}: {event.message}"
                line.clear()
            if isinstance(event, Failed):
                yield f"  {event.code} | {event.remedy} | {event.detail}".replace("\n", " / ")
    except EngineDied as died:
        line.append(f"{died}")
    yield ", ".join(line)
    record = JobFolder(Path("job")).crash_record
    known = [f"{kind.rpartition('demo ')[2]} {seconds:.0f} s" for kind, seconds in timeouts._longest.items()]
    blocked = [f"{trial.case} by {trial.rung}: {words}" for trial, words in engine.blocklist.items()]
    yield f"  {engine.attempts} attempts in {clock.now - began:.0f} s. Known: {known}, blocked: {blocked}"
    if record.exists():
        yield f"  {record.read_text()}"
        record.unlink()


@pytest.mark.parametrize("cases", [DEATHS, TRIALS, SILENCES], ids=["deaths", "trials", "silences"])
def test_what_follows(
    cases: dict[str, str], clock: Clock, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    Path("job").mkdir()
    lines = list[str]()
    for name, text in cases.items():
        groups = itertools.groupby(told(text, clock, monkeypatch))
        groups_with_counts = [(line, len([*same])) for line, same in groups if line]
        lines += [
            f"> {name}",
            *(f"{line} ({count} times)" if count > 1 else line for line, count in groups_with_counts),
        ]
    assert "\n".join(lines) == snapshot


def test_what_a_card_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the name under which times are kept changes with card, torch and find mode."""
    machine, version = Machine("rocm", "gfx1100", "RX 7900 XTX", 24 * 1024**3), "2.13.0+rocm7.2"
    monkeypatch.setattr("app.machine.this_machine", lambda _: machine)
    monkeypatch.setattr("app.jobs.making.watchdog.version_of", lambda _: version)
    first = card_in_use({})
    assert first == "RX 7900 XTX (gfx1100), torch 2.13.0+rocm7.2, find mode FAST"
    names = {first, card_in_use({"MIOPEN_FIND_MODE": "NORMAL"})}
    version = "2.14.0+rocm7.2"
    names.add(card_in_use({}))
    machine = Machine("rocm", "gfx1201", "RX 9070 XT", 16 * 1024**3)
    names.add(card_in_use({}))
    assert len(names) == 4
    machine = Machine("cpu", "", "CPU", 1024**3)
    assert card_in_use({}) == "CPU"


def test_what_a_dead_engine_was_writing_is_removed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # The job's folder is a relative path.
    torn = Path("job", "segments", ".0001.mp4.tmp")
    whole = torn.with_name("0001.mp4")
    torn.parent.mkdir(parents=True)

    class Writing(Script):
        def run(self, job: Job, **settings: Any) -> Iterator[Event | None]:
            if self.attempts:
                assert not torn.exists()
            else:
                torn.touch()
                whole.touch()
            yield from super().run(job, **settings)

    assert make(Writing([[STARTED, -signal.SIGKILL], [END]], clock))[-1] == END
    assert whole.exists()


def test_a_first_job_with_a_silent_minute_in_each_stage_is_left_alone(clock: Clock) -> None:
    events = list[Any]()
    for event in slow_start(job_of()):
        events += [event, 120.0] if isinstance(event, StageStarted) else [event]
    engine, timeouts = Script([[*events, END]], clock), WatchdogTimeouts()
    made = make(engine, timeouts, compiles=True)
    assert made[-1] == END
    assert engine.attempts == 1
    for name in ("load", "text", "convolutions", "vae_encode", "sample", "decode"):
        assert timeouts.knows(f"CPU: demo {name} 96x64")
    assert timeouts.knows("CPU: demo attention")
    assert warnings(made) == [module._COMPILING]


def test_a_decode_in_a_type_of_its_own_has_a_limit_of_its_own(clock: Clock) -> None:
    """A processor that computes fp32 in seconds may need minutes for bf16."""
    timeouts = WatchdogTimeouts()
    make(Script([[STARTED, stage(1, "decode"), 2.0, done(1), END]], clock), timeouts)
    job = replace(job_of(), request=replace(job_of().request, vae_precision="bf16"))
    events = [STARTED, stage(1, "decode"), FIRST_SECONDS - 1.0, done(1), END]
    assert [*Supervisor(job, Script([events], clock), timeouts, lambda wait: False).make()][-1] == END
    kinds = {kind for kind in timeouts._longest if "decode" in kind}
    assert kinds == {"CPU: demo decode 64x64", "CPU: demo decode 64x64 bf16"}


def test_timeouts_are_kept_on_disk_and_survive_damage(tmp_path: Path) -> None:
    file = tmp_path / "patience.json"
    timeouts = WatchdogTimeouts(file)
    timeouts.learn("kind 0", 21.0)
    timeouts.learn("kind 0", 5.0)
    timeouts.save()
    again = WatchdogTimeouts(file)
    assert again.limit("kind 0") == 8 * 21.0
    assert again.limit("kind 50") == FIRST_SECONDS
    file.write_text("{")
    assert not WatchdogTimeouts(file).knows("kind 0")

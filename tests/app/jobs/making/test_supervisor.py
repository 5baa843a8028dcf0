"""Tests of the supervisor with engines that die or fall silent, over an engine that plays a script."""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from app.jobs.making import supervisor as module
from app.jobs.making.engine_client import EngineDied, Trial
from app.jobs.making.supervisor import Supervisor
from app.jobs.making.watchdog import FIRST_SECONDS, WatchdogTimeouts, card_in_use
from diffusers_helper.events import Event, JobStarted, SectionFinished, StageStarted, Warned
from diffusers_helper.families.packing import Mode
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
    failure,
    job_for,
    make,
    stage,
    step,
    warnings,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_a_reader_sees_one_job_over_two_engines(clock: Clock, mode: Mode) -> None:
    unknown = Warned(**ABOUT, message="unknown word")
    first = [STARTED, unknown, stage(1), done(1), stage(2), step(2, 1), -signal.SIGABRT]
    second = [STARTED, unknown, stage(1, "decode"), done(1), stage(2), step(2), done(2), done(3, 36), END]
    engine = Script([first, second], clock)
    made = make(engine, mode=mode)
    assert engine.attempts == 2
    finished = [event for event in made if isinstance(event, SectionFinished)]
    assert [event.section for event in finished] == [1, 2, 3]
    front = 36 if mode == "inverted" else 0
    assert finished[1].added_in_front == front
    assert [type(event) for event in made].count(JobStarted) == 1
    assert warnings(made)[0] == "unknown word"
    assert warnings(made)[1:] == [
        "The engine, the process that makes the video, crashed while denoising section 2. "
        "It was restarted from section 2; no finished work was lost."
    ]


def test_three_deaths_without_a_section_are_the_end(clock: Clock) -> None:
    runs = [[STARTED, stage(1, "decode"), code] for code in (-signal.SIGABRT, 3, -signal.SIGSEGV)]
    end = failure(Script([*runs, [END]], clock))
    assert "It was tried 3 times." in end.message
    assert end.detail.splitlines() == [
        "Attempt 1: it crashed while decoding section 1.",
        "Attempt 2: it ended by itself with code 3 while decoding section 1.",
        "Attempt 3: it crashed while decoding section 1.",
        f"engine exit code {-signal.SIGSEGV}",
    ]


def test_a_finished_section_gives_new_attempts(clock: Clock) -> None:
    died = -signal.SIGABRT
    runs = [
        [STARTED, died],
        [STARTED, died],
        [STARTED, done(1), died],
        [STARTED, died],
        [STARTED, done(2), END],
    ]
    assert make(Script(runs, clock))[-1] == END


def test_kills_from_outside_do_not_count_as_failed_attempts(clock: Clock) -> None:
    runs = [[STARTED, stage(1), step(1, 1 + n % 2), -signal.SIGKILL] for n in range(20)]
    assert make(Script([*runs, [STARTED, done(1), END]], clock))[-1] == END
    same = [[STARTED, stage(1), step(1), -signal.SIGKILL]] * 5
    assert "It was tried 5 times." in failure(Script([*same, [END]], clock)).message


def test_the_memory_killer_is_named_and_counts(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 1\noom_kill 4\n")
    monkeypatch.setattr(module, "_VMSTAT", vmstat)

    class Hungry(Script):
        def run(self, job: Job, **settings: Any) -> Iterator[Event | None]:
            for event in super().run(job, **settings):
                count = int(vmstat.read_text().split()[-1])
                vmstat.write_text(f"oom_kill {count + 1}\n")
                yield event

    engine = Hungry([[STARTED, stage(1), -signal.SIGKILL]] * 3 + [[END]], clock)
    assert failure(engine).detail.count("because the computer's memory was full") == 3


CAUSES: dict[str, tuple[Any, str]] = {
    "crash": (-signal.SIGABRT, "crashed"),
    "kill": (-signal.SIGKILL, "was ended from outside"),
    "silence": (1e6, "gave no sign of life"),
    "memory": (-signal.SIGKILL, "the computer's memory was full"),
}


@pytest.mark.parametrize("order", list(itertools.permutations(CAUSES, 3)), ids=" ".join)
def test_the_cause_of_one_death_is_not_that_of_the_next(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    kills = 4
    monkeypatch.setattr(module, "_memory_kills", lambda: kills)

    class Mixed(Script):
        def run(self, job: Job, **settings: Any) -> Iterator[Event | None]:
            nonlocal kills
            kills += [*order, ""][self.attempts] == "memory"
            yield from super().run(job, **settings)

    runs = [[STARTED, done(n), stage(n + 1), CAUSES[cause][0]] for n, cause in enumerate(order, 1)]
    said = warnings(make(Mixed([*runs, [END]], clock)))
    for text, cause in zip(said, order, strict=True):
        assert [name for name, (_, words) in CAUSES.items() if words in text] == [cause]


def test_a_death_inside_a_trial_is_charged_to_its_rung(clock: Clock) -> None:
    trial = Trial("a case", "miopen")
    engine = Script(
        [[STARTED, stage(1, "decode"), EngineDied(-signal.SIGABRT, trial)], [STARTED, done(1), END]], clock
    )
    made = make(engine)
    assert made[-1] == END
    assert engine.blocklist == {trial: "the engine crashed"}
    assert "computed another way" in warnings(made)[0]


def test_charged_deaths_leave_more_attempts_but_not_for_ever(clock: Clock) -> None:
    died = [[STARTED, stage(1), EngineDied(-signal.SIGABRT, Trial(f"case {n}", "miopen"))] for n in range(7)]
    assert make(Script([*died[:6], [END]], clock))[-1] == END
    assert "It was tried 7 times." in failure(Script([*died, [END]], clock)).message


def test_a_kill_from_outside_is_charged_only_if_it_comes_twice_at_the_same_trial(clock: Clock) -> None:
    killed, other = EngineDied(-signal.SIGKILL, Trial("a", "miopen")), EngineDied(-signal.SIGKILL)
    once = Script([[STARTED, killed], [STARTED, other], [STARTED, killed], [END]], clock)
    assert "another way" not in " ".join(warnings(make(once)))
    assert once.blocklist == {}
    twice = Script([[STARTED, killed], [STARTED, killed], [END]], clock)
    assert "another way" in warnings(make(twice))[-1]
    assert list(twice.blocklist) == [Trial("a", "miopen")]


def test_a_hang_inside_a_trial_is_charged(clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo decode 64x64", 10.0)

    class Hanging(Script):
        def run(self, job: Job, **settings: Any) -> Iterator[Event | None]:
            try:
                yield from super().run(job, **settings)
            except EngineDied as died:
                raise EngineDied(died.exit_code, Trial("a", "taps")) from died

    engine = Hanging([[STARTED, stage(1, "decode"), 200.0], [END]], clock)
    assert make(engine, timeouts)[-1] == END
    assert list(engine.blocklist) == [Trial("a", "taps")]


@pytest.mark.parametrize(
    ("deaths", "is_smaller"),
    [("sample", False), ("sample sample", True), ("sample decode", False), ("sample! sample", False)],
)
def test_the_second_death_of_a_stage_for_lack_of_memory_has_a_smaller_plan(
    deaths: str, is_smaller: bool, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job").mkdir()
    runs: list[list[Any]] = []
    for name in deaths.split():
        died = EngineDied(-signal.SIGABRT)
        died.errors = "" if name.endswith("!") else "torch.OutOfMemoryError: HIP out of memory. Tried 2 GiB."
        runs.append([STARTED, stage(1, name.rstrip("!")), died])
    assert make(Script([*runs, [END]], clock))[-1] == END
    assert JobFolder(Path("job")).crash_record.exists() == is_smaller


def test_an_engine_that_cannot_start_again_is_left_alone(clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo sample 64x64", 1.0)
    engine = Script([[STARTED, stage(1), 500.0, END]], clock, restarts=False)
    assert make(engine, timeouts)[-1] == END
    assert failure(Script([[STARTED, None]], clock, restarts=False)).detail.endswith("engine exit code None")


def test_a_cancelled_engine_that_does_not_end_is_ended(clock: Clock) -> None:
    engine = Script([[STARTED, stage(1), 300.0, END]], clock)
    with pytest.raises(EngineDied):
        list(Supervisor(job_for(), engine, WatchdogTimeouts(), lambda wait: True).make())
    assert clock.now < 1000 + 300
    assert engine.attempts == 1


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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "the beginning"),
        ([stage(0, "text")], "the beginning"),
        ([stage(1)], "section 1"),
        ([stage(1), done(1), stage(2, "sample")], "section 2"),
    ],
)
def test_where_it_goes_on_is_told(said: list[Event], words: str, clock: Clock) -> None:
    engine = Script([[STARTED, *said, -signal.SIGABRT], [END]], clock)
    assert f"restarted from {words};" in warnings(make(engine))[0]


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


def test_silence_beyond_the_limit_ends_the_engine(clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo sample 64x64", 10.0)
    engine = Script([[STARTED, stage(1), 79.0, step(1), 700.0], [STARTED, done(1), END]], clock)
    made = make(engine, timeouts)
    assert made[-1] == END
    assert step(1) in made
    assert "gave no sign of life for" in warnings(made)[0]
    # The longest silence that ended well is remembered; a silence that did not end is not.
    assert timeouts.limit("CPU: demo sample 64x64") == pytest.approx(8 * 79.0)


def test_the_first_time_is_given_long_and_explained_where_kernels_are_compiled(clock: Clock) -> None:
    events = [STARTED, stage(1), FIRST_SECONDS - 60, step(1), END]
    assert not warnings(make(Script([events], clock)))
    made = make(Script([events], clock), compiles=True)
    assert ["compiled, which happens once" in text for text in warnings(made)] == [True]


@pytest.mark.parametrize("name", ["attention", "convolutions"])
def test_a_trial_is_given_long_however_short_the_last_one_was(name: Any, clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    trial = StageStarted(**ABOUT, stage=name)
    assert make(Script([[STARTED, trial, 2.0, stage(1), 3.0, step(1), END]], clock), timeouts)[-1] == END
    assert timeouts.limit(f"CPU: demo {name} 64x64") == 60.0  # which holds for work that is repeated
    slow = Script([[STARTED, trial, FIRST_SECONDS - 60, stage(1), step(1), END]], clock)
    assert not warnings(make(slow, timeouts))
    endless = Script([[STARTED, trial, FIRST_SECONDS + 600, END], [END]], clock)
    words = "while trying attention kernels" if name == "attention" else "while choosing convolutions"
    assert words in warnings(make(endless, timeouts))[0]


def test_a_first_step_that_compiles_is_given_long_and_the_next_is_not(clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo sample 64x64", 1.0)
    compiles = replace(STARTED, kernels="compiled")
    slow = Script([[compiles, stage(1), 600.0, step(1), END]], clock)
    assert not warnings(make(slow, timeouts))
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo sample 64x64", 1.0)
    hangs = Script([[compiles, stage(1), step(1), 600.0, step(2), END], [END]], clock)
    assert "gave no sign of life" in warnings(make(hangs, timeouts))[0]


def test_what_follows_the_trials_of_attention_is_given_the_time_of_a_load(clock: Clock) -> None:
    trial = StageStarted(**ABOUT, stage="attention")
    engine = Script([[trial, 30.0, STARTED, FIRST_SECONDS + 600, stage(1), step(1), END]], clock)
    assert not warnings(make(engine))
    assert engine.attempts == 1


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


def test_a_kernel_search_after_a_clean_up_is_given_its_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignore times learned with compiled kernels in a run that has to compile them again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo decode 64x64", 1.0)
    quiet = [STARTED, stage(1, "decode"), 1800.0, done(1), END]
    reported = warnings(make(Script([quiet], clock), timeouts, compiles=True))
    assert ["kernels are being searched or compiled" in text for text in reported] == [True]
    (tmp_path / ".cache" / "miopen").mkdir(parents=True)
    timeouts = WatchdogTimeouts()
    timeouts.learn("CPU: demo decode 64x64", 1.0)
    reported = warnings(make(Script([quiet, [END]], clock), timeouts, compiles=True))
    assert "gave no sign of life" in reported[0]


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


def test_what_a_slow_card_took_says_nothing_about_another(clock: Clock) -> None:
    timeouts = WatchdogTimeouts()
    timeouts.learn("slow card: demo sample 64x64", 100.0)
    timeouts.learn("fast card: demo sample 64x64", 10.0)
    hung = [STARTED, stage(1), 700.0]
    assert warnings(make(Script([hung, [END]], clock, card=card_of("fast card")), timeouts))
    assert make(Script([[*hung, END]], clock, card=card_of("slow card")), timeouts)[-1] == END

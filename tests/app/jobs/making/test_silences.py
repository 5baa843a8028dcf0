"""Tests of how long an engine may be silent, and what is told meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from app.jobs.making import supervisor as module
from app.jobs.making.watchdog import FIRST_SECONDS, WatchdogTimeouts
from diffusers_helper.events import StageStarted
from tests.support.reported_jobs import job_of, slow_start
from tests.support.scripted_engine import (
    ABOUT,
    END,
    STARTED,
    Clock,
    Script,
    card_of,
    done,
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

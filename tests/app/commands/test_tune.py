"""Tests that `longtake tune` finds a decode's shapes and stores the fastest correct rung for each."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.cli import main
from app.commands import tune as tune_module
from app.commands.arguments import single_run
from app.miopen import conv_settings, routes_folder
from cache import trial
from cache.conv import case_of
from cache.conv_probe import convolution_work
from cache.conv_rungs import RUNGS, ConvCase, Convolution, Rung
from diffusers_helper.families.packing import DEFAULT_CHUNK, window_sizes
from diffusers_helper.machine.routes import Route, RouteStore
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.planning.vae import Tiles
from diffusers_helper.vae.families import vae_family
from diffusers_helper.vae.passes import Pieces, decode_pass
from tests.support.drivers import NO_ALGORITHM, some_call
from tests.support.jobs import ROOT, wait_until
from tests.support.making import load_tiny

BAD_DRIVER = ROOT / "tests" / "support" / "bad_driver"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache and short videos, and run each rung once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # The command sets this; restore it for later tests.
    monkeypatch.setattr(tune_module, "_SECONDS", 1.0)
    monkeypatch.setattr(trial, "RUNS", 1)


@pytest.fixture
def case() -> ConvCase:
    call = some_call()
    return case_of(call[0], Convolution(*call[1:]))


def run(tiny_model: Path, *more: str) -> int:
    return main(["tune", "--model", str(tiny_model), "--resolution", "64", *more])


def replace_rung(monkeypatch: pytest.MonkeyPatch, name: str, result: Callable[[Tensor], Tensor]) -> None:
    """Change the result of a rung."""
    rung = RUNGS[name]
    monkeypatch.setitem(RUNGS, name, Rung(name, lambda *call: result(rung.run(*call)), rung.supports))


def broken(text: str) -> Callable[[Tensor], Tensor]:
    def fail(result: Tensor) -> Tensor:
        raise RuntimeError(text)

    return fail


@pytest.mark.slow
def test_what_a_decode_asks_for_is_measured_and_used(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_model, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["height"], report["width"]) == (64, 64)
    measured = {result["case"]: result for result in report["results"]}
    for result in report["results"]:
        assert set(result["milliseconds"]) == {"miopen", "taps", "tiles"}
        assert result["rung"] in result["milliseconds"]
    stored = RouteStore(routes_folder()).routes("cpu")
    assert {text: route.rung for text, route in stored.items()} == {
        text: result["rung"] for text, result in measured.items()
    }

    vae = load_tiny(tiny_model).component("vae")
    asked: dict[str, str] = {}
    handler = initialize_miopen_fallback(
        **conv_settings(), on_first_call=lambda case, rung: asked.__setitem__(str(case), rung)
    )
    with torch.inference_mode(), handler.install(vae):
        vae.encode(torch.zeros(1, 3, 1, 64, 64))
        for size in window_sizes(10, DEFAULT_CHUNK).values():
            decode_pass(vae_family(vae), torch.zeros(1, 16, size, 8, 8), Tiles(), Pieces())
    assert asked == {}  # every case is known to work
    used = {rung for rung, count in handler.ladder.successes.items() if count}
    assert used <= {route.rung for route in stored.values()}


@pytest.fixture
def six_cases(monkeypatch: pytest.MonkeyPatch, case: ConvCase) -> list[ConvCase]:
    """Let the command believe that a model needs no more than six cases."""
    cases = [replace(case, shape=(1, 3, frames, 6, 8)) for frames in range(3, 9)]
    monkeypatch.setattr(tune_module, "_cases", lambda *_: cases)
    return cases


def test_the_aspect_is_width_to_height(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diffusers_helper.loading.loaders.load_models", interrupt)
    sizes = list[tuple[int, int]]()
    for aspect in ("16:9", "9:16"):
        assert main(["tune", "--model", "framepack-i2v", "--aspect", aspect]) == 130
        sizes.append(tuple(map(int, re.findall(r"videos of (\d+)x(\d+) pixels", capfd.readouterr().err)[0])))
    assert sizes == [(832, 480), (480, 832)]


def test_what_is_measured_is_of_the_type_that_the_profile_computes_in(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, dtypes = load_tiny(tiny_model), list[set[str]]()
    for name in ("stored", "fp16"):
        monkeypatch.setenv("LONGTAKE_VAE_DTYPE", name)
        dtypes.append({case.dtype for case in tune_module._cases(models, 64, 64)})
    assert dtypes == [{"float32"}, {"float16"}]
    assert models.component("vae").dtype == torch.float32
    asked = list[Any]()
    monkeypatch.setattr(
        "diffusers_helper.vae.convolutions.conv_cases", lambda *call: asked.append(call) or []
    )
    monkeypatch.setattr(tune_module, "_SECONDS", 8.0)  # with sections of every length, in both orders
    monkeypatch.setenv("LONGTAKE_VAE_TILE", "96")
    tune_module._cases(models, 64, 96)
    assert asked[0][1:] == (torch.float16, models.device, 64, 96, {3, 4, 5}, 96)


def test_a_shape_without_a_way_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, rungs = list[tuple[Any, bool]](), iter([["taps", ""], ["taps", "tiles"]])

    def measure(cases: Any, device: str, again: bool) -> list[dict[str, Any]]:
        heard.append((cases, again))
        return [{"rung": rung, "milliseconds": {"miopen": 2.0}} for rung in next(rungs)]

    monkeypatch.setattr("diffusers_helper.loading.loaders.load_models", lambda _: SimpleNamespace(device=""))
    monkeypatch.setattr(tune_module, "_cases", lambda models, height, width: [(height, width)])
    monkeypatch.setattr(tune_module, "_measure_all", measure)
    command = ["tune", "--model", "demo", "--aspect", "3:2", "--resolution", "64"]
    assert [main([*command, "--json", "--again"]), main(command)] == [1, 0]
    assert heard == [([(48, 64)], True), ([(48, 64)], False)]


@pytest.fixture
def bad_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let convolutions of the third case fail in other processes, and return the file of their calls."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(BAD_DRIVER), str(ROOT))))
    monkeypatch.setenv("BAD_DRIVER_SHAPE", "1x3x5x6x8")
    monkeypatch.setenv("BAD_DRIVER_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, as in a program; other tests leave other handlers."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_a_stop_keeps_what_is_measured_and_the_next_run_goes_on(
    tiny_model: Path,
    six_cases: list[ConvCase],
    bad_driver: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stored() -> dict[str, Route]:
        return RouteStore(routes_folder()).routes("cpu")

    def stop() -> None:
        wait_until(bad_driver.exists)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("BAD_DRIVER_FAULT", "shape sleep")
    stopping = threading.Thread(target=stop)
    stopping.start()
    assert run(tiny_model) == 130
    stopping.join()
    assert "continues from here" in capsys.readouterr().err
    assert set(stored()) == set(map(str, six_cases[:2]))
    monkeypatch.delenv("BAD_DRIVER_FAULT")
    assert run(tiny_model, "--json") == 0
    shown = capsys.readouterr()
    assert [result["case"] for result in json.loads(shown.out)["results"]] == list(map(str, six_cases))
    assert "2 of 6 shapes have been measured before" in shown.err
    assert "died" not in shown.err
    for case in six_cases:
        RouteStore(routes_folder()).block(case, "miopen", "SIGABRT")
        RouteStore(routes_folder()).choose(case, "taps", "measured")
    before = stored()
    assert run(tiny_model) == 0
    assert stored() == before
    bad_driver.unlink()
    monkeypatch.setenv("BAD_DRIVER_FAULT", "shape sleep")
    stopping = threading.Thread(target=stop)
    stopping.start()
    assert run(tiny_model, "--again") == 130
    stopping.join()
    assert ["miopen" in stored()[str(case)].deadly for case in six_cases] == [False, False] + [True] * 4
    assert {stored()[str(case)].deadly.get("miopen") for case in six_cases[2:]} == {"SIGABRT"}
    monkeypatch.delenv("BAD_DRIVER_FAULT")
    assert run(tiny_model, "--again") == 0
    assert all(route.when != before[case].when for case, route in stored().items())


def tried(case: ConvCase, *candidates: str) -> list[dict[str, Any]]:
    return list(trial.try_candidates([(partial(convolution_work, asdict(case), device=CPU), candidates)]))


def with_a_wrong_corner(result: Tensor) -> Tensor:
    result[..., -2:, -2:] += 1
    return result


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        (torch.zeros_like, "its results differ by 1 of their size"),
        (with_a_wrong_corner, "its results differ by 0."),
        (lambda result: result[..., 1:], "The size of tensor a"),
        (lambda result: result * float("nan"), "its results differ by nan"),
        (broken(NO_ALGORITHM), NO_ALGORITHM),
        (broken("a mistake"), "a mistake"),
    ],
)
def test_a_rung_that_fails_or_computes_something_else_is_not_measured(
    changed: Callable[[Tensor], Tensor], failure: str, case: ConvCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_rung(monkeypatch, "miopen", changed)
    plain, taps = tried(case, "miopen", "taps")
    assert plain["failed"].startswith(failure)
    assert taps["milliseconds"] > 0


def test_a_rung_may_fail_while_it_is_timed(case: ConvCase, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([lambda result: result, broken(NO_ALGORITHM)])
    replace_rung(monkeypatch, "miopen", lambda result: next(results)(result))
    (plain,) = tried(case, "miopen")
    assert plain == {"failed": NO_ALGORITHM}


@pytest.mark.slow
def test_ways_that_ended_processes_are_tried_in_a_process_of_their_own(
    tiny_model: Path,
    six_cases: list[ConvCase],
    bad_driver: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Let a way that is suspected everywhere still end the process at one shape, and work at the others."""
    for width in (20, 24, 28):
        RouteStore(routes_folder()).block(
            replace(six_cases[0], shape=(1, 3, 3, 8, width)), "miopen", "SIGABRT"
        )
    RouteStore(routes_folder()).block(six_cases[5], "miopen", "SIGABRT")
    monkeypatch.setenv("BAD_DRIVER_FAULT", "shape")
    assert run(tiny_model, "--json") == 0
    shown = capsys.readouterr()
    assert f"the plain way ended the process at {six_cases[2]}" in shown.err
    results = json.loads(shown.out)["results"]
    assert ["miopen" in result["milliseconds"] for result in results] == [
        True, True, False, True, True, False,
    ]  # fmt: skip
    assert ["miopen" in result["deadly"] for result in results] == [False, False, True, False, False, True]
    monkeypatch.delenv("BAD_DRIVER_FAULT")
    assert run(tiny_model, "--again", "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert all("miopen" in result["milliseconds"] for result in results)
    assert not any(result["deadly"] for result in results)


def test_one_at_a_time_and_a_folder_to_write_in(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with single_run("tune", routes_folder(), "Wait."):
        assert run(tiny_model) == 2
    assert "Another tune is running" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run(tiny_model) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_forced_rung_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGTAKE_CONV_RUNG", raising=False)
    assert conv_settings()["rung"] == "auto"
    monkeypatch.setenv("LONGTAKE_CONV_RUNG", "taps")
    assert conv_settings() == {"folder": routes_folder(), "rung": "taps"}

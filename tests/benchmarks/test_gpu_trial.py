"""Tests of the trial on a GPU: its parts with tiny networks, and what is left of a part that ends badly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb
from safetensors.torch import load_file
from torch.autograd import DeviceType
from torch.nn import functional

from benchmarks.gpu_trial import step, weights
from benchmarks.gpu_trial.kitchen import kitchen, rotation_of
from benchmarks.gpu_trial.loading import read_by_threads
from benchmarks.gpu_trial.parts import CALLS, LOG, PARTS, facts_of, file_of, run_child
from benchmarks.gpu_trial.report import said, table
from benchmarks.gpu_trial.trial import NEEDS_GPU, Trial, deviation
from diffusers_helper.loading.networks import load_network
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.estimates import latent_tokens
from tests.support.jobs import ROOT, wait_until

SCRIPT = ROOT / "scripts/gpu_trial"
KITCHEN = "comfy-kitchen is not installed"


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("--tiny", "A")])
def test_a_wrong_call_ends_in_one_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run((SCRIPT, *arguments), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Which parts?")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def content(part: str, out: Path) -> dict[str, Any]:
    return json.loads(file_of(part, out).read_text(encoding="utf-8"))


# A stand-in for a part: it measures one row, and then ends in its own way.
STAND_IN = """
import os, signal, sys
from pathlib import Path
from benchmarks.rows import Rows
with Rows("", Path(sys.argv[1]), lambda: {"part": "4"}) as rows:
    rows.add({"name": "first", "seconds": 1.5})
    exec(sys.argv[2])
"""


def stand_in(out: Path, ending: str) -> list[str]:
    return [sys.executable, "-c", STAND_IN, str(file_of("4", out)), ending]


ROWS = [{"name": "first", "seconds": 1.5}]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("raise ValueError('no such card')", "ValueError: no such card"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os._exit(3)", "ended with code 3"),
    ],
)
def test_a_part_that_ends_badly_leaves_its_rows_and_the_reason(
    ending: str, reason: str, tmp_path: Path
) -> None:
    assert run_child("4", stand_in(tmp_path, ending), tmp_path, 100, is_tiny=True) == reason
    expected = {"complete": False, **facts_of("4", is_tiny=True), "rows": ROWS, "failed": reason}
    assert content("4", tmp_path) == expected


def test_a_part_that_ends_well_has_no_reason(tmp_path: Path) -> None:
    assert run_child("4", stand_in(tmp_path, "print('done')"), tmp_path, 100) == ""
    assert content("4", tmp_path) == {"complete": True, "part": "4", "rows": ROWS}
    assert (tmp_path / LOG).read_text() == "done\n"


def test_a_part_that_hangs_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, wait = list[subprocess.Popen[bytes]](), subprocess.Popen.wait

    def wait_in_vain(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        started.append(process)
        wait_until(lambda: file_of("4", tmp_path).exists())
        raise subprocess.TimeoutExpired("part", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_in_vain)
    reason = run_child("4", stand_in(tmp_path, "signal.pause()"), tmp_path, 270)
    assert reason == content("4", tmp_path)["failed"] == "no end within 270 s"
    assert content("4", tmp_path)["rows"] == ROWS
    assert [process.returncode for process in started] == [-9]


def test_a_part_without_time_is_left_out_and_says_so(tmp_path: Path) -> None:
    file_of("5", tmp_path).write_text("of an earlier call")
    assert run_child("5", ["/nowhere"], tmp_path, -3) == "left out: 0 s were left"
    assert content("5", tmp_path)["rows"] == []


def test_a_case_that_fails_is_a_row_and_the_next_one_is_measured(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise torch.OutOfMemoryError("out of memory\nat some place")

    cases = [("a", fail), ("b", NEEDS_GPU), ("c", lambda: {"seconds": 2.0})]
    Trial(tmp_path, True).run(cases, tmp_path / "rows.json", {"part": "1"})
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == [
        {"name": "a", "failed": "OutOfMemoryError: out of memory"},
        {"name": "b", "skipped": NEEDS_GPU},
        {"name": "c", "seconds": 2.0},
    ]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Trial:
    folder = tmp_path_factory.mktemp("trial")
    (folder / "tiny").symlink_to(tiny_model)
    return Trial(folder, True)


def measured(part: str, trial: Trial, out: Path) -> dict[str, dict[str, Any]]:
    """Run a part, and return its rows by name. None of them has failed, and none is left out in silence."""
    trial.run(PARTS[part].load()(trial), file_of(part, out), facts_of(part, is_tiny=True))
    assert content(part, out)["complete"]
    rows = content(part, out)["rows"]
    found = {row.pop("name"): row for row in rows}
    assert len(found) == len(rows)
    assert [
        row
        for row in found.values()
        if "failed" in row or row.get("skipped", KITCHEN) not in (KITCHEN, NEEDS_GPU)
    ] == []
    return {name: row for name, row in found.items() if "skipped" not in row}


def test_the_calls_have_all_parts() -> None:
    assert [*CALLS["A"], *CALLS["B"]] == [*PARTS]


def test_part_0_tells_the_machine_and_writes_a_model(tmp_path: Path) -> None:
    rows = measured("0", Trial(tmp_path, True), tmp_path)
    assert rows["machine"]["torch"] == torch.__version__
    assert find_model(str(tmp_path / "tiny"), allow_folder=True).title == "Tiny test model"
    again = PARTS["0"].load()(Trial(tmp_path, True))
    assert dict(again)["weights"] == "they are there from an earlier call"


@pytest.mark.slow
def test_part_1_splits_a_step(trial: Trial, tmp_path: Path) -> None:
    rows = measured("1", trial, tmp_path)
    split = rows["the same by the profiler"]
    kinds = [split[f"{kind}_seconds"] for kind in ("products", "attention", "elementwise", "idle")]
    assert min(kinds) > 0
    assert sum(kinds) == pytest.approx(split["seconds"])
    operations = rows["its operations"]
    # Two blocks of two heads of 16 values, and the refiner of the text, which has one layer. The text and the
    # picture have 16 tokens each.
    tokens = latent_tokens(*trial.shape) + 2 * 16
    assert operations["attention_operations"] == 4 * 2 * 16 * (2 * tokens**2 + 16**2)


@pytest.mark.slow
def test_part_2_gives_the_same_step_in_each_way(trial: Trial, tmp_path: Path) -> None:
    rows = measured("2", trial, tmp_path)
    assert {name: row["streamed_blocks"] for name, row in rows.items() if not name.startswith("comfy")} == {
        f"{way}, {where}": count
        for where, count in (("resident", 0), ("half streamed", 1), ("all streamed", 2))
        for way in ("plain", "compiled blocks")
    }
    assert max(row["deviation"] for row in rows.values()) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_part_3_measures_each_ceiling(trial: Trial, tmp_path: Path) -> None:
    rows = measured("3", trial, tmp_path)
    assert sum(name.startswith("product") for name in rows) == 10
    assert all(row["deviation"] < 0.02 for name, row in rows.items() if "int8" in name)
    assert {"attention, flash", "modulation, compiled", "copy, mapped for reading"} <= rows.keys()


@pytest.mark.slow
def test_part_4_samples_the_same_latents_as_diffusers(trial: Trial, tmp_path: Path) -> None:
    rows = measured("4", trial, tmp_path)
    assert len({tuple(row) for row in rows.values()}) == 1, "all rows have the same figures"
    ours = {name: row for name, row in rows.items() if name.startswith("longtake")}
    caps = [row["cap_bytes"] for name, row in ours.items() if "cap of" in name]
    assert caps == sorted({*caps}, reverse=True)
    assert len(caps) == 4
    assert all(row["same_bits"] for row in ours.values())
    assert ours["longtake, all streamed"]["copied_bytes"] > 0 == ours["longtake, resident"]["copied_bytes"]
    assert len(rows) - len(ours) == 5
    assert max(row["deviation"] for row in rows.values()) < 1e-5
    assert all(len(row["step_seconds"]) == 2 for row in rows.values())


@pytest.mark.slow
def test_part_5_makes_the_same_section_as_diffusers(trial: Trial, tmp_path: Path) -> None:
    _, ours, theirs = measured("5", trial, tmp_path).values()
    assert ours["stage_seconds"].keys() == theirs["stage_seconds"].keys()
    assert ours["stage_seconds"].keys() == {"text", "vision", "vae_encode", "sample", "decode"}
    assert len(theirs["step_seconds"]) == 7
    assert theirs["deviation"] < 1e-3  # each prepares the picture for the vision encoder in its own way


@pytest.mark.slow
def test_part_6_decodes_the_same_in_both_layouts(trial: Trial, tmp_path: Path) -> None:
    rows = measured("6", trial, tmp_path)
    plain, other = (
        [row["deviation"] for name, row in rows.items() if layout in name] for layout in ("plain", "last")
    )
    assert plain[0] == 0
    assert len(plain) == 4
    assert other == pytest.approx(plain, abs=1e-5)


@pytest.mark.slow
def test_part_7_makes_all_weights_resident(trial: Trial, tmp_path: Path) -> None:
    (file,) = (trial.model / "transformer").glob("*.safetensors")
    rows = measured("7", trial, tmp_path)
    assert len(rows) == 5
    assert {row["moved_bytes"] for row in rows.values()} == {file.stat().st_size}


def test_a_file_read_by_threads_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu_trial.loading._PIECE_BYTES", 64)
    data = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    (tmp_path / "file").write_bytes(data.numpy().tobytes())
    assert torch.equal(read_by_threads(tmp_path / "file", torch.device("cpu")), data)


def event(name: str, *kernels: float, parent: Any = None, span: tuple[int, int] | None = None) -> Any:
    """Return an operator with the microseconds of its kernels, or a kernel with its beginning and end."""
    return SimpleNamespace(
        name=name, kernels=[SimpleNamespace(duration=one) for one in kernels], cpu_parent=parent,
        device_type=DeviceType.CUDA if span else DeviceType.CPU, is_user_annotation=name == "ProfilerStep",
        time_range=SimpleNamespace(start=span[0], end=span[1]) if span else None, self_cpu_time_total=1000.0,
    )  # fmt: skip


def test_the_time_of_kernels_belongs_to_the_outermost_known_operator() -> None:
    attention, linear = event("aten::scaled_dot_product_attention"), event("aten::linear")
    operators = [
        attention, linear, event("aten::bmm", 3, parent=attention), event("aten::copy_", 1, parent=attention),
        event("aten::addmm", 10, 2, parent=linear), event("aten::mul", 4),
    ]  # fmt: skip
    kernels = [event("k", span=one) for one in ((0, 12), (10, 13), (15, 17), (20, 24))]
    annotation = event("ProfilerStep", span=(0, 100))
    found = step.split([*operators, *kernels, annotation], has_gpu=True)
    assert {name: round(value * 1e6) if name != "kernels" else value for name, value in found.items()} == {
        "seconds": 24, "products_seconds": 12, "attention_seconds": 4, "elementwise_seconds": 3,
        "idle_seconds": 5, "kernels": 4,
    }  # fmt: skip


def test_random_weights_are_those_of_a_network_and_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the full model with the configurations of the bundled one, and make a section with it."""
    parts = find_model("demo").components
    configs = {part: json.loads((parts[part].folder / "config.json").read_text()) for part in weights.CONFIGS}
    monkeypatch.setattr(weights, "CONFIGS", configs)
    trial = Trial(tmp_path, False)
    rows = {name: work() for name, work in weights.weights(trial) if callable(work)}
    assert [*rows] == ["machine", *configs, "weights"]
    network = load_network("text_encoder", trial.model / "text_encoder").network
    assert network.get_parameter("norm.weight").unique().tolist() == [1]
    weight = network.get_parameter("layers.0.mlp.down_proj.weight")
    assert weight.dtype == torch.float16
    assert weight.float().std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.1)
    assert network.get_parameter("layers.0.mlp.up_proj.weight").unique().numel() > 100
    models = trial.models()
    assert {part: models.component(part) is not None for part in models.info.components} == dict.fromkeys(
        parts, True
    )
    file = next((trial.model / "transformer").glob("*.safetensors"))
    assert file.stat().st_size == rows["transformer"]["moved_bytes"]
    assert {value.dtype for value in load_file(file).values()} == {torch.bfloat16}


def test_the_rotation_is_that_of_diffusers_and_spares_the_text() -> None:
    x = torch.randn(1, 7, 2, 8)
    angles = torch.randn(5, 4).repeat_interleave(2, -1)
    matrices = rotation_of(angles.cos(), angles.sin(), 2)
    rotated = (matrices @ x.unflatten(-1, (-1, 2)).unsqueeze(-1)).squeeze(-1).flatten(3)
    apply: Any = apply_rotary_emb
    expected = apply(x[:, :5], (angles.cos(), angles.sin()), sequence_dim=1)
    torch.testing.assert_close(rotated, torch.cat([expected, x[:, 5:]], dim=1))


@pytest.fixture
def stand_in_kitchen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a reference in the place of comfy-kitchen, and return the functions that are called."""
    called = list[str]()

    def adaln(x: Any, scale: Any, shift: Any, eps: float) -> Any:
        called.append("adaln")
        return functional.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift

    def rms_rope(q: Any, k: Any, freqs_cis: Any, q_scale: Any, k_scale: Any, epsilon: float) -> Any:
        called.append("rms_rope")
        return tuple(
            (
                freqs_cis
                @ functional.rms_norm(x, x.shape[-1:], scale, epsilon).unflatten(-1, (-1, 2))[..., None]
            )
            .squeeze(-1)
            .flatten(3)
            for x, scale in ((q, q_scale), (k, k_scale))
        )

    registry = SimpleNamespace(get_capable_backend=lambda function, arguments: f"{function}'s")
    module = ModuleType("comfy_kitchen")
    module.__dict__.update({"adaln": adaln, "rms_rope": rms_rope, "registry": registry})
    monkeypatch.setitem(sys.modules, "comfy_kitchen", module)
    return called


def test_blocks_with_fused_kernels_give_the_same(trial: Trial, stand_in_kitchen: list[str]) -> None:
    one = step.Step(trial)
    with one.placed() as run:
        expected = run()
    with kitchen(one.network) as backends, one.placed(2) as run:
        found = run()
    assert deviation(found, expected) < 1e-6
    assert backends == {"adaln": "adaln's", "rms_rope": "rms_rope's"}
    # A dual block modulates picture and text; each block norms and rotates once.
    assert sorted(stand_in_kitchen) == ["adaln"] * 3 + ["rms_rope"] * 2
    with one.placed() as run:
        assert torch.equal(run(), expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seconds", 1.2345, "1.23 s"),
        ("seconds_per_step", 1.1, "1.1 s a step"),
        ("first_seconds", 12.0, "first 12 s"),
        ("products_operations", 251e12, "products 251 TFLOP"),
        ("operations_per_second", 7.9e14, "790 TFLOP/s"),
        ("bytes_per_second", 30.6e9, "30.6 GB/s"),
        ("device_bytes", 24 * 1024**3, "device 24 GB"),
        ("step_seconds", [1.0, 2.5], "step seconds 1, 2.5"),
        ("stage_seconds", {"text": 3.2, "decode": None}, "stage seconds (text 3.2)"),
        ("same_bits", True, "same bits True"),
        ("skipped", "needs a GPU", "skipped: needs a GPU"),
        ("pinned_bytes", None, ""),
        ("name", "some case", ""),
    ],
)
def test_a_figure_is_told_with_its_unit(name: str, value: Any, expected: str) -> None:
    assert said((name, value)) == expected


def test_the_report_is_a_table_of_all_parts(tmp_path: Path) -> None:
    for part, facts in (("4", {"rows": ROWS, "failed": "killed by SIGKILL"}), ("1", {"rows": ROWS})):
        file_of(part, tmp_path).write_text(json.dumps({**facts_of(part, is_tiny=False), **facts}))
    expected = [
        "| what | figure | command |",
        "| --- | --- | --- |",
        "| a step by the profiler: first | 1.5 s | `scripts/gpu_trial 1` |",
        "| side by side with diffusers: first | 1.5 s | `scripts/gpu_trial 4` |",
        "| side by side with diffusers | did not end: killed by SIGKILL | `scripts/gpu_trial 4` |",
    ]
    assert table(tmp_path).splitlines() == expected


@pytest.mark.slow
def test_the_script_runs_a_part_and_reports_it(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/tiny").symlink_to(tiny_model)
    call = [str(SCRIPT), "7", "--tiny", "--out", "out", "--work", "work", "--wheels", "none"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(content("7", tmp_path / "out")["rows"]) == 5
    told = subprocess.run(
        [str(SCRIPT), "report", "out"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout == table(tmp_path / "out")

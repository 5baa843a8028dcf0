"""Whole plans, for cards, models and settings, as everything that is computed and said of them."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.machine import machine_of_card
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.local import Facts, Local, Speeds, store_speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.models.sizes import Weights, networks
from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, Stage
from diffusers_helper.planning.cards.speeds import (
    Bus,
    bus_of,
    copies_of,
    decode_time,
    disk_of,
    keep_times,
    known_card,
    step_key,
    step_time,
    work_of,
)
from diffusers_helper.planning.notes import attention_note, choice_notes
from diffusers_helper.planning.profiles import FAMILIES, YOU, Machine, profile_for
from diffusers_helper.planning.set_ups import plans_by_card, plans_by_format, recommend
from diffusers_helper.planning.smaller_plans import Level, PlanLevels, level_key
from diffusers_helper.planning.times import expected_times, forecast
from diffusers_helper.planning.variables import Setting, engine_environment, environment_report
from diffusers_helper.planning.video import plan_video
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.answers import changed, lines_of, text_of

H200 = Machine("cuda", "", "NVIDIA H200", 140 * GB)
FAST, SLOW, SLOWEST = Link(4, 16), Link(3, 4), Link(2, 4)
I2V = {"model": "framepack-i2v", "mode": "inverted"}
TIMED = {"prompt": "a red ball", "negative": "blur", "cfg": 2.0, "seconds": 7.0}


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    monkeypatch.setattr("diffusers_helper.machine.packages.version_of", lambda name: "")
    monkeypatch.setattr("diffusers_helper.models.sizes.slow_types", lambda **_: ("float16",))  # any processor


def card(gfx: str, size_gb: float, link: Link | None = None) -> Machine:
    machine = H200 if gfx == "cuda" else machine_of_card(f"{gfx}:{size_gb:g}")
    return replace(machine, link=link) if link else machine


def asked(**settings: Any) -> GenerationRequest:
    info = find_model(settings["model"])
    return GenerationRequest(**{"image": "x", "mode": info.modes[0], "steps": info.steps, **settings})


def profile_lines(family: str) -> list[str]:
    whole = profile_for(card(family, 24), {})
    lines = lines_of(whole)
    for size in (0, 3, 5, 8, 12, 16, 20, 24, 25, 48, 192):
        profile = profile_for(replace(whole.machine, total_bytes=size * GB), {})
        lines += [f"{size} GB: {text_of(profile.budget())}"] if size else [str(profile.budget().cap_bytes)]
    return [*lines, f"backend: {text_of(whole.backend)}", f"vae_bytes: {whole.vae_bytes}"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_profile_of_a_family(family: str, snapshot: SnapshotAssertion) -> None:
    usual = [] if family == "gfx1100" else profile_lines("gfx1100")
    assert "\n".join(changed(profile_lines(family), usual)) == snapshot


ENVIRONMENTS = [
    {"LONGTAKE_VRAM_CAP_GB": "10.5", "LONGTAKE_PRESERVED_GB": "0", "LONGTAKE_VAE_TILE": "128"},
    {"LONGTAKE_VAE_DTYPE": "bf16", "LONGTAKE_ATTENTION": "math", "LONGTAKE_HELPER_CAP_GB": "8"},
    {"LONGTAKE_ATTENTION": "auto", "LONGTAKE_PROFILE": "cdna", "MIOPEN_FIND_MODE": "NORMAL"},
    {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512", "MIOPEN_FIND_MODE": " fast "},
    {"HIP_VISIBLE_DEVICES": "1", "MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD": "1"},
]  # fmt: skip


@pytest.mark.parametrize("environ", ENVIRONMENTS)
def test_a_users_variables(environ: dict[str, str], snapshot: SnapshotAssertion) -> None:
    machine = replace(card("gfx1100", 24), visible="1")
    profile, usually = profile_for(machine, environ), profile_for(machine, {})
    plain = lines_of(usually)
    lines = [line for line in lines_of(profile) if line not in plain]
    for limits in ((), (8,), (8, 2.5), (500, 30), (None, 1), (None, 16)):
        advised = [
            (item.budget(*limits), item.preserved_advice(item.budget(*limits))) for item in (profile, usually)
        ]
        if environ == ENVIRONMENTS[-1] or advised[0] != advised[1]:
            lines.append(" ".join(map(text_of, advised[0])).strip())
    report = environment_report(profile.environment, environ)
    lines += [text_of(setting) for setting in report.values() if setting.source == "you"]
    assert "\n".join([*lines, text_of(engine_environment(profile.environment, environ))]) == snapshot


def test_values_of_variables_that_cannot_be_used(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for name, value in (
        ("LONGTAKE_VRAM_CAP_GB", "much"), ("LONGTAKE_VRAM_CAP_GB", "0"), ("LONGTAKE_PRESERVED_GB", "nan"),
        ("LONGTAKE_PRESERVED_GB", "-1"), ("LONGTAKE_VAE_TILE", "100"), ("LONGTAKE_VAE_TILE", "wide"),
        ("LONGTAKE_VAE_DTYPE", "int8"), ("LONGTAKE_ATTENTION", "fused"), ("LONGTAKE_PROFILE", "gfx1"),
        ("LONGTAKE_CONV_RUNG", "x" * 80), ("LONGTAKE_FP32", "yes"), ("MIOPEN_FIND_MODE", "QUICK"),
        ("MIOPEN_FIND_ENFORCE", "9"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            profile_for(card("gfx1100", 24), {name: value})
        lines.append(f"{refused.value.message} {refused.value.remedy}")
    assert "\n".join(lines) == snapshot


PLANS: dict[str, tuple[Machine, dict[str, Any], dict[str, Any]]] = {
    "defaults": (card("gfx1100", 24), I2V, {}),
    "guided": (card("gfx1100", 20, SLOW), I2V | TIMED, {"free_ram_bytes": 30 * GB}),
    "short_memory": (
        card("gfx1100", 24), I2V | {"cfg": 2.0, "weight_dtype": "int8"}, {"free_ram_bytes": 4 * GB}
    ),
    "set_and_short": (
        card("gfx1100", 24), I2V | {"preserved_gb": 18, "vae_chunk": 2, "cfg": 2.0},
        {"free_ram_bytes": 16 * GB},
    ),
    "auto_short": (
        card("gfx1100", 24), I2V | {"weight_dtype": "auto"}, {"free_ram_bytes": 4 * GB}
    ),
    "auto_streams": (card("gfx1100", 24), I2V | {"weight_dtype": "auto", "preserved_gb": 18.0}, {}),
    "auto_keeps": (card("gfx1151", 96), I2V | {"weight_dtype": "auto"}, {}),
    "auto_half": (card("gfx1100", 24), I2V | {"weight_dtype": "auto"}, {"free_ram_bytes": 16 * GB}),
    "unknown_disk": (
        card("gfx1100", 24), I2V, {"free_ram_bytes": 4 * GB, "disk_speed": lambda file: None}
    ),
    "auto_narrow": (card("gfx1100", 8), I2V | {"weight_dtype": "auto", "vram_cap_gb": 4.8}, {}),
    "learned": (card("gfx1100", 24), I2V | {"preserved_gb": 0.0}, {"level": Level(1, 1)}),
    "small": (card("gfx1100", 8, SLOWEST), I2V, {}),
    "sliced": (card("gfx103x", 16), I2V | {"weight_dtype": "auto", "preserved_gb": 3}, {}),
    "preserves_more": (card("gfx1100", 20), {"model": "framepack-f1", "preserved_gb": 18.0}, {}),
    "nvidia": (H200, I2V | {"attention": "native", "vae_tile": 128, "vae_precision": "fp32"}, {}),
    "cpu": (Machine("cpu", "", "CPU", 32 * GB), {"model": "demo", "negative": "red " * 9, "cfg": 2.0}, {}),
    "helios": (card("gfx1200", 16), {"model": "helios-distilled", "seconds": 9.0}, {}),
    "wan": (card("gfx1200", 32), {"model": "wan-5b", "carried_frames": 9, "resolution": 512}, {}),
    "experts": (card("gfx1100", 24), {"model": "wan-a14b", "cfg": 3.5, "shift": 8.0, "seconds": 10.0}, {}),
}  # fmt: skip


def plan_lines(name: str, folder: Path) -> list[str]:
    machine, settings, circumstances = PLANS[name]
    request, profile = asked(**settings), profile_for(machine, {})
    info = find_model(request.model)
    local = Local()
    if level := circumstances.get("level"):
        profile = replace(profile, attention=Setting("flash", "the fastest on this card", "measured"))
        local = Local(folder=folder)
        local.smaller_plans.write(level_key(request, info, profile, 640, 608), asdict(level))
    others = {name: value for name, value in circumstances.items() if name != "level"}
    plan = plan_video(
        request, info, profile, shape=(640, 608) if level else None, local=local,
        **{"disk_speed": lambda file: 3e9, **others},
    )  # fmt: skip
    groups = (
        (plan, "height width sections frames steps latents weight_dtype attention"), (plan, "costs"),
        (plan, "waiting_bytes step_bytes disk_bytes saved_bytes seconds_per_step copy_seconds"),
        (plan, "bus copies disk"), (plan, "work computing decoding step"), (plan, "fewest_copies"),
        (plan.job, "budget vae_tile_px keep_all_resident peak_bytes smallest_cap_bytes helper"),
    )  # fmt: skip
    lines = [
        f"{names}: {', '.join(text_of(getattr(whole, member), member) for member in names.split())}"
        for whole, names in groups
    ]
    lines += [*lines_of(plan.job, "stages"), *lines_of(plan, "notes", "streaming", "preserved_text")]
    lines += [f"chosen: {note}" for note in choice_notes(plan.first)]
    for section in (1, plan.sections):
        times = expected_times(plan, profile, info, is_first=section == 1, section=section)
        line = f"times of section {section}: {text_of(times)}"
        lines += [line] * (section == 1 or line.partition(":")[2] != lines[-1].partition(":")[2])
    times_of_video = forecast(plan, profile, info)
    return [*lines, f"forecast: {times_of_video and (text_of(times_of_video), times_of_video.text)}"]


def test_slices_are_explained_unless_a_person_chose_them() -> None:
    sliced = Setting("sliced", "AOTriton has no kernels for this card", "measured")
    assert attention_note(sliced) == (
        "Attention is computed in slices, which takes longer, because AOTriton has no kernels for this card."
    )
    assert attention_note(replace(sliced, source=YOU)) == attention_note(replace(sliced, value="math")) == ""


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_of_a_video(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    usual = [] if name == "defaults" else plan_lines("defaults", tmp_path)
    assert "\n".join(changed(plan_lines(name, tmp_path), usual)) == snapshot


def test_videos_that_do_not_fit(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for machine, settings in (
        (card("gfx1100", 24), I2V | {"vram_cap_gb": 4.0}),
        (card("gfx1100", 24), I2V | {"vram_cap_gb": 0.01, "vae_tile": 256}),
        (card("gfx1100", 6), {"model": "helios-base", "weight_dtype": "auto"}),
        (card("gfx1151", 8), {"model": "helios-base"}), (card("gfx1100", 4), {"model": "wan-a14b"}),
        (card("gfx103x", 10), I2V | {"attention": "native"}), (Machine("cpu", "", "CPU", 5 * GB), I2V),
        (Machine("cuda", "", "NVIDIA GPU", 0), I2V),
    ):  # fmt: skip
        request = asked(**settings)
        with pytest.raises(LongtakeError) as refused:
            plan_video(request, find_model(request.model), profile_for(machine, {}))
        error = refused.value
        lines.append(f"{machine.card} {settings}: {error.message} {error.remedy}")
        if isinstance(error, DoesNotFit):
            facts = error.code, error.setting, error.stage, error.side, error.is_too_large
            lines.append(f"  {text_of(facts)}, {text_of(error.smallest_plan.budget)}")
    assert "\n".join(lines) == snapshot


def test_what_is_recommended(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for machine, settings, ram_gb in (
        (card("gfx1100", 24, FAST), I2V, 64), (card("gfx1100", 24, SLOW), I2V | TIMED, 64),
        (card("gfx1100", 24, SLOWEST), I2V, 64), (card("gfx1100", 8, SLOWEST), I2V, 64),
        (card("gfx1100", 24, FAST), I2V, 8), (card("gfx1100", 12, FAST), I2V, 16),
        (card("gfx103x", 6), I2V, 64), (Machine("cuda", "", "NVIDIA GPU", 24 * GB, link=FAST), I2V, 64),
        (Machine("cuda", "", "NVIDIA H200", 24 * GB, link=FAST), I2V, 64), (card("gfx1100", 2), I2V, 64),
        (card("gfx1200", 16), {"model": "helios-distilled"}, 32), (card("gfx1151", 64), I2V, 64),
    ):  # fmt: skip
        plan = partial(
            plan_video, profile=profile_for(machine, {}), free_ram_bytes=ram_gb * GB,
            disk_speed=lambda file: 3e9,
        )  # fmt: skip
        request = asked(**settings)
        lines.append(f"{text_of(machine)}, {ram_gb}:")
        try:
            best = recommend(request, find_model(request.model), plan)
        except DoesNotFit as error:
            lines.append(error.message)
        else:
            chosen = best.set_up.settings, best.copy and best.copy.settings
            lines.append(f"  {text_of(chosen)} {best.words}")
    assert "\n".join(lines) == snapshot


def test_the_tables_of_cards_and_formats(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for settings in (I2V, I2V | {"cfg": 2.0, "weight_dtype": "auto"}, {"model": "helios-base"}):
        request = asked(**settings)
        for plan in plans_by_card(request, find_model(request.model)):
            lines.append(text_of(plan))
            lines += [f"  {plan.short(fit)} | {' | '.join(fit.cells)}" for fit in plan.fits]
    for plans in plans_by_format(asked(**I2V), find_model("framepack-i2v")):
        shorts = [f"{plan.short(plan.default)} / {plan.short(plan.fewest_copies)}" for plan in plans.cards]
        lines.append(
            f"{', '.join(plans.formats)}: {text_of(plans.file_bytes, '_bytes')}; {'; '.join(shorts)}"
        )
    assert "\n".join(lines) == snapshot


def test_what_is_known_of_cards(snapshot: SnapshotAssertion) -> None:
    parts = networks(find_model("framepack-i2v"), on_cpu=False)
    wan = networks(find_model("wan-5b-fast"), on_cpu=False)["vae"]
    work = work_of(parts["transformer"], [18_485])
    lines = [text_of(work), text_of(work_of(parts["transformer"], [18_485, 9000], 2))]
    lines.append(str(step_time(card("gfx1100", 24), work_of(parts["transformer"], [10]), Facts(), "")))
    machines = [
        *(replace(card(gfx, gb), name=name) for gfx, gb, name in (
            ("gfx1100", 24, "Navi 31 [Radeon RX 7900 XT/7900 XTX]"), ("gfx1100", 24, ""), ("gfx1100", 20, ""),
            ("gfx1100", 10, ""), ("gfx1101", 16, ""), ("gfx1102", 8, ""), ("gfx1103", 16, ""),
            ("gfx1030", 16, "AMD Radeon RX 6800 XT"), ("gfx1030", 16, ""), ("gfx1034", 8, ""),
            ("gfx1150", 28, ""), ("gfx1151", 64, ""), ("gfx1201", 16, "AMD Radeon RX 9070 XT"),
            ("gfx1201", 16, ""), ("gfx1200", 32, "PRO R9700"), ("gfx942", 192, ""), ("gfx1031", 12, ""),
        )),
        replace(card("gfx1100", 24), link=SLOW), replace(card("gfx1151", 64), link=SLOW),
        H200, Machine("cuda", "", "NVIDIA GeForce RTX 4090", 24 * GB), Machine("cuda", "", "NVIDIA GPU", 0),
        Machine("cpu", "", "CPU", 16 * GB),
    ]  # fmt: skip
    for machine in machines:
        known = known_card(machine)
        decodes = [decode_time(machine, vae, 640 * 608, Facts(), "") for vae in (parts["vae"], wan)]
        step = known and known.step(work)
        facts = machine.is_apu, known and known.name, step and step.words, decodes, bus_of(machine)
        lines.append(
            f"{machine.card} {text_of(machine.total_bytes, '_bytes')} {machine.name}: {text_of(facts)}"
        )
    speeds = Speeds(20e9, 8e9), Speeds(host_to_device_bytes_per_second=8e9), Speeds()
    speeds = *speeds, Speeds(host_copy_bytes_per_second=9e9), Speeds(40e9, host_copy_bytes_per_second=40e9)
    for machine in (card("gfx1100", 24, FAST), card("gfx1151", 96), Machine("cpu", "", "CPU", 8 * GB)):
        for measured in speeds:
            ways = [copies_of(machine, measured, disk_of(speed)) for speed in (None, 3e9, 90e9)]
            lines.append(text_of((bus_of(machine, measured), *ways)))
    reading = [
        disk_of(2e9).reading(500, 1000),
        disk_of(2e9).reading(0, 1),
        Bus(1e9, "", "assumed").seconds(5),
    ]
    assert "\n".join([*lines, text_of(reading)]) == snapshot


def test_measurements_take_the_place_of_estimates(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    local, info = Local(folder=tmp_path), find_model("framepack-i2v")
    profile, request = profile_for(card("gfx1100", 24), {}), asked(**I2V)
    plan = partial(plan_video, info=info, profile=profile, shape=(640, 608), local=local)
    lines = [plan(request).streaming]
    store_speeds(
        local.speeds,
        "gfx1100",
        Speeds(17.1e9, host_copy_bytes_per_second=19e9, disk_read_bytes_per_second=1e9),
    )
    keep_times(local.step_times, step_key(profile.machine, info), plan(request).work, 6.0, 640 * 608 * 2.0)
    for wanted in (request, replace(request, cfg=2.0, seconds=9.0), replace(request, decoder="light")):
        measured = plan(wanted)
        lines += lines_of(measured, "step", "decoding", "copies", "disk", "streaming")
        times = forecast(measured, profile, info)
        lines.append(text_of(times and times.text))
    lines.append(local.step_times.file.read_text())
    damaged = {"flop_per_second": "fast", "decode_per_second": 0}
    local.step_times.write(step_key(profile.machine, info), damaged)
    lines += lines_of(plan(request), "step", "decoding")
    assert "\n".join(lines) == snapshot


def levels_of(cap: int, tiles: tuple[int, ...], facts: Facts, helper: bool = False) -> PlanLevels:
    transformer, vae = Weights("transformer", 61 * GB, (2 * GB,) * 30), Weights("vae", 5 * GB)
    demands = [
        Demand(tile, (Stage("sample", transformer, 10 * GB), Stage("decode", vae, tile * GB * 40 // 256)))
        for tile in tiles
    ]
    second = Budget(90 * GB, 90 * GB, 0, 0) if helper else None
    budget = Budget(200 * GB, cap * GB, 0, 0, helper=second)
    return PlanLevels(budget, demands, facts, "x")


def test_plans_after_shortages_and_crashes(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    scripts = ("sample " * 4, "decode " * 5, "decode sample crash:decode crash:decode", "crash:sample decode")
    for cap, tiles, helper in ((100, (256, 128, 64), False), (70, (256, 192, 160, 128, 96, 64), True)):
        for number, script in enumerate(scripts):
            facts = Facts(tmp_path / f"{cap} {number}.json")
            facts.file.write_text('{"x": 3}')  # which is as good as none
            levels = levels_of(cap, tiles, facts, helper)
            lines.append(f"{cap}, {tiles}: {text_of(levels.plan.stages[0])}")
            for step in script.split():
                kind, _, stage = step.rpartition(":")
                change = levels.step_to_end(stage) if kind else levels.step_down(stage)
                state = levels.level, levels.retries, levels.plan.vae_tile_px, levels.plan.held_bytes / GB
                lines.append(f"  {step}: {change} {text_of(state)}")
            again = levels_of(cap, tiles, facts, helper)
            lines.append(f"  again: {again.reason} {text_of((again.level, again.plan == levels.plan))}")
            lines.append(f"  forgotten: {facts.forget()}, {Level.read(facts, 'x') == Level()}")
    assert "\n".join(lines) == snapshot


def test_a_level_belongs_to_its_circumstances(snapshot: SnapshotAssertion) -> None:
    info, profile = find_model("framepack-i2v"), profile_for(card("gfx1100", 24), {})
    changes: list[dict[str, Any]] = [
        {}, {"vram_cap_gb": 9.0}, {"vae_tile": 128}, {"vae_chunk": 5}, {"step_cache": "teacache"},
        {"vae_threshold": 0.5}, {"weight_dtype": "int8"}, {"lora": (("a", 0.5),)}, {"preserved_gb": 3.0},
    ]  # fmt: skip
    keys = [level_key(asked(**I2V | change), info, profile, 640, 608) for change in changes[:7]]
    profiles = [
        profile_for(card("gfx1100", 23.98), {}), profile_for(card("gfx1100", 20), {}),
        profile_for(card("gfx1151", 64), {}), replace(profile, helper_bytes=8 * GB),
        profile_for(card("gfx1100", 24), {"LONGTAKE_VRAM_CAP_GB": "9"}),
        profile_for(Machine("cpu", "", "CPU", 8 * GB), {"LONGTAKE_VAE_DTYPE": "fp32"}),
    ]  # fmt: skip
    keys += [level_key(asked(**I2V), info, other, 608, 640) for other in profiles]
    assert keys == snapshot


def test_the_networks_of_models(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for model in model_names():
        for on_cpu, dtype in ((False, "default"), (True, "default"), (False, "int8")):
            for name, network in networks(find_model(model), on_cpu=on_cpu, weight_dtype=dtype).items():
                weights = network.weights
                facts = len(weights.block_bytes), max(weights.block_bytes, default=0), weights.total_bytes
                sizes = network.dtype_bytes, network.cast_bytes, network.file_bytes
                line = f"{name}: {text_of(facts + sizes)}"
                if not any(line in before for before in lines):
                    lines.append(f"{model} {'cpu ' * on_cpu}{dtype} {line}")
    assert "\n".join(lines) == snapshot

"""The command `doctor`, which prints facts about this machine, the settings in force, and remedies."""

import argparse
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from app.bench.facts import hint
from app.commands.arguments import (
    EXIT_FAILED,
    Commands,
    add_command,
    add_find_mode,
    add_outputs,
    add_setting,
    command_words,
    find_mode_variables,
    switch,
)
from app.commands.plan import planner_of
from app.jobs.making.awake import can_stay_awake
from app.jobs.stdio import say
from app.machine import this_local, this_machine
from app.miopen import clear_miopen_cache, find_mode_findings
from app.trials import ask_probe
from diffusers_helper.attention.backends import BACKENDS, kernel_kind
from diffusers_helper.errors import LongtakeError
from diffusers_helper.files import expanded_path
from diffusers_helper.machine.local import DEVIATION_VARIABLE, Local, max_error, store_kernel
from diffusers_helper.machine.packages import (
    KITCHEN,
    kitchen_problem,
    rocm_of_torch,
    version_of,
)
from diffusers_helper.machine.routes import ATTENTION, BLAS, BLOCK_WORK, fastest
from diffusers_helper.machine.sysfs import (
    ROOT,
    VISIBLE_VARIABLES,
    amd_gpus,
    has_nvidia,
    host_memory,
    rocm_version,
    usable_gpus,
)
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.backend import missing_kernels
from diffusers_helper.planning.profiles import YOU, Machine, Profile, profile_for
from diffusers_helper.planning.set_ups import recommend
from diffusers_helper.planning.variables import (
    ALLOCATOR_VARIABLES,
    engine_environment,
    environment_report,
)
from diffusers_helper.planning.video import known_networks
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB, count_text, gb_text

Level = Literal["ok", "note", "problem"]
_PROBE_SECONDS = 240
_DISK_BYTES = 2 * GB
_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One examined fact: a "problem" would fail a job. The remedy is a sentence, or ""."""

    topic: str
    text: str
    level: Level = "ok"
    remedy: str = ""


def _note(topic: str, text: str, remedy: str) -> Finding:
    return Finding(topic, text, "note", remedy)


Probe = Callable[[Mapping[str, str]], dict[str, Any]]


def add_doctor(commands: Commands) -> None:
    add_command(
        commands, "doctor", run_doctor,
        lambda parser: add_setting(parser, "model"),
        add_outputs,
        switch("--json", "print the report as one JSON object"),
        switch(
            "--clear-miopen-cache",
            "only remove MIOpen's tuning results and compiled kernels, and report their size",
        ),
        add_find_mode,
        switch(
            "--forget-smaller-plans",
            "only forget earlier shortages of memory, so plans use all that the cap allows",
        ),
        description="Examine card, torch, memory, disk and environment, and test the attention kernel.",
        epilog="exit codes: 0 a job would work, 1 a job would fail, 2 the command is invalid.",
    )  # fmt: skip


def run_doctor(arguments: argparse.Namespace) -> int:
    if arguments.clear_miopen_cache:
        return clear_miopen_cache(Path(os.path.expanduser("~")), os.environ)
    environ = {**os.environ, **find_mode_variables(arguments)}
    local = this_local(environ)
    if arguments.forget_smaller_plans:
        count = local.smaller_plans.forget()
        say(f"Forgot {count_text(count, 'smaller plan')}: the next job uses all that the cap allows.")
        return 0
    report = examine(arguments.model, expanded_path(arguments.outputs, "outputs"), environ, local=local)
    is_ok = all(finding.level != "problem" for finding in report)
    if arguments.json:
        say(json.dumps({"ok": is_ok, "findings": [*map(asdict, report)]}))
    else:
        for finding in report:
            say(f"{_MARKS[finding.level]:<8}{finding.topic:<12}{finding.text}")
            if finding.remedy:
                say(f"{'':<20}-> {finding.remedy}")
        say("A job would work." if is_ok else "A job would fail.")
    return 0 if is_ok else EXIT_FAILED


def examine(
    model: str,
    outputs: Path,
    environ: Mapping[str, str],
    root: Path = ROOT,
    probe: Probe | None = None,
    local: Local = Local(),  # noqa: B008 - frozen
) -> list[Finding]:
    """Examine everything that a job needs, and store the attention kernel that ran."""
    machine = this_machine(environ, root)
    profile = profile_for(machine, environ)
    facts = (probe or ask_torch)({**environ, **engine_environment(profile.environment, environ)})
    if machine.kind == "cuda" and not machine.total_bytes:
        total, name = int(facts.get("total_bytes", 0)), str(facts.get("name", machine.name))
        machine = replace(machine, name=name, total_bytes=total)
        profile = profile_for(machine, environ)
    # A kernel that ran on the CPU, because torch does not see the card, says nothing about the card.
    sees_card = machine.kind == "cpu" or bool(facts.get("devices"))
    kernel = str(facts.get("kernel", "")) if sees_card else ""
    profile = profile.with_kernel(kernel)
    if kernel:
        store_kernel(local.kernels, machine.card, str(facts["torch"]), kernel)
    return [
        _machine(machine, profile, facts), *_cards(machine, profile, environ, root),
        *_torch(machine, facts, environ, root),
        *(_attention(machine, kernel) if kernel else ()), *_kernels(facts), *_choices(profile, local),
        *_memory(root), _sleep(), _disk(outputs), *_environment(profile, environ),
        *_job(model, profile, root, local),
    ]  # fmt: skip


def ask_torch(environ: Mapping[str, str]) -> dict[str, Any]:
    """What `app.probe` tells of torch; empty if it crashes or hangs."""
    facts = dict[str, Any]()
    ask_probe(["facts"], facts.update, environ, _PROBE_SECONDS)
    return facts


def _machine(machine: Machine, profile: Profile, facts: Mapping[str, Any]) -> Finding:
    build = f"torch {facts['torch']} for {_runtime(facts)}" if facts else "no torch that starts"
    arch = f" ({machine.arch})" if machine.arch and machine.arch != machine.name else ""
    memory = f"{gb_text(machine.total_bytes)} GB of {machine.memory}"
    cap = profile.cap_bytes
    limit = f"{memory}; cap {gb_text(cap.value)} GB: {cap.reason}" if cap.value else cap.reason
    return Finding("machine", f"{build}; {machine.name}{arch}; {limit}")


def _runtime(facts: Mapping[str, Any]) -> str:
    if facts["hip"]:
        return f"ROCm {facts['hip']}"
    return f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU"


def _cards(machine: Machine, profile: Profile, environ: Mapping[str, str], root: Path) -> Iterator[Finding]:
    gpus = amd_gpus(root)
    usable = usable_gpus(gpus, has_nvidia=has_nvidia(root))
    for gpu in gpus:
        memory_name = "GTT" if gpu.uses_gtt else "VRAM"
        text = f"{gpu.name or 'AMD card'}, {gpu.arch}; {memory_name} {gb_text(gpu.used_bytes)} of "
        text += f"{gb_text(gpu.total_bytes)} GB used"
        if gpu not in usable:
            is_beside = any(gpu in usable for gpu in gpus) or machine.kind == "cuda"
            text += f"; left out, {'beside a card of its own' if is_beside else 'slower than the processor'}"
        yield Finding("card", text)
    if machine.kind != "rocm":
        yield Finding("card", machine.name if machine.kind == "cuda" else "no GPU is used; the CPU is")
    if usable and machine.kind != "rocm":
        names = " and ".join(name for name in VISIBLE_VARIABLES if name in environ)
        yield _note("card", "the environment hides all AMD cards", f"Unset {names} to use one.")
    if machine.kind == "cpu" and not usable and (root / "dev/dxg").exists():
        text = "Windows lends a card through /dev/dxg, but no driver of its maker answers here"
        remedy = "For a Radeon, install AMD's ROCm for WSL, so that `rocminfo` lists it; see docs/install.md."
        yield _note("card", text, remedy)
    used = next((gpu.vram_used for gpu in gpus if not gpu.is_apu), 0)
    if machine.kind == "rocm" and used > machine.total_bytes - profile.cap_bytes.value:
        text = f"other programs hold {gb_text(used)} GB of VRAM, more than the cap leaves free"
        yield _note("card", text, "Close them, or lower --vram-cap-gb by the same amount.")
    if bench_hint := hint(machine):
        yield Finding("card", bench_hint)
    settings = (
        (f"cap {gb_text(profile.cap_bytes.value)} GB", profile.cap_bytes),
        (f"preserved {gb_text(profile.budget().preserved_bytes)} GB", profile.preserved_bytes),
        (f"VAE precision {profile.vae_dtype.value}", profile.vae_dtype),
        (f"VAE tile {profile.vae_tile.value}", profile.vae_tile),
        (f"attention kernel {profile.kernel.value}", profile.kernel),
        (f"attention {profile.attention.value}", profile.attention),
    )
    for text, setting in settings:
        yield Finding("profile", f"{profile.family}: {text} ({setting.reason}; {setting.source})")


def _torch(
    machine: Machine, facts: Mapping[str, Any], environ: Mapping[str, str], root: Path
) -> Iterator[Finding]:
    if not facts:
        remedy = "Run `python -m app.probe` to see why, or set the environment up again with webui.sh."
        yield Finding("torch", "does not start, or takes too long", "problem", remedy)
        return
    yield Finding("torch", f"{facts['torch']} for {_runtime(facts)}")
    if rocm_version(root):
        yield Finding("ROCm", f"{rocm_version(root)} in /opt/rocm; torch brings its own libraries")
    if facts.get("dnn"):
        yield Finding("MIOpen" if facts["hip"] else "cuDNN", str(facts["dnn"]))
    if machine.kind != "cpu" and not facts["devices"]:
        remedy = "Install torch's build for this card with webui.sh."
        if machine.kind == "rocm" and facts["hip"]:
            remedy = "Add your user to the groups render and video, log in again, and check /dev/kfd."
        yield Finding("torch", f"does not see the {machine.name}", "problem", remedy)
    if missing := missing_kernels(str(facts.get("arch", "")), facts.get("arch_list", ())):
        yield Finding("torch", missing[0], "problem", missing[1])
    arch = facts.get("arch")
    if machine.kind == "rocm" and arch and arch != machine.arch:
        override = environ.get("HSA_OVERRIDE_GFX_VERSION", "not set")
        text = f"calls the card {arch}, but the kernel driver calls it {machine.arch}"
        yield _note("torch", text, f"Check HSA_OVERRIDE_GFX_VERSION ({override}).")


def _attention(machine: Machine, kernel: str) -> Iterator[Finding]:
    if "math" not in kernel:
        yield Finding("attention", f"SDPA runs {kernel} ({kernel_kind(kernel)}); plans assume it")
        return
    is_rocm = machine.kind == "rocm"
    step = "Set TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1" if is_rocm else "Update the driver and torch,"
    text = f"SDPA runs {kernel}, which stores the scores of all tokens; slices are used instead"
    yield _note("attention", text, f"{step} and run doctor again.")


def _kernels(facts: Mapping[str, Any]) -> Iterator[Finding]:
    version = version_of(KITCHEN)
    if version and facts:
        text = kitchen_problem() or "its import fails, or ends the process; PyTorch's own kernels are used"
        if backends := facts.get("kitchen"):
            yield Finding("kernels", f"{KITCHEN} {version} has kernels for {', '.join(backends)}")
        else:
            yield Finding("kernels", f"{KITCHEN} {version}: {text}", "note")


def _choices(profile: Profile, local: Local) -> Iterator[Finding]:
    """Tell what trials have found on this card, and what its deviation leaves out."""
    card = profile.machine.card
    deviations = dict[str, float]()
    for operation in (ATTENTION, BLOCK_WORK, BLAS):
        for shape, route in local.routes.trials(operation, card).items():
            bound = max_error(shape, profile.deviation)
            errors, failed = route.errors, {**route.failed, **route.deadly}
            figures = [
                *(f"{name} {ms:.3g} ms, off by {errors[name]:.1%}" for name, ms in route.measured.items()),
                *(f"{name} failed ({text})" for name, text in failed.items()),
            ]  # fmt: skip
            choice = fastest(operation, route, bound)
            yield Finding("kernels", f"{operation}, {shape}: {choice} is taken; {'; '.join(figures)}")
            for candidate, error in route.errors.items():
                if error > bound and operation == ATTENTION:
                    deviations[candidate] = max(error, deviations.get(candidate, 0.0))
    rungs = Counter(route.rung or "none" for route in local.routes.routes(card).values() if route.is_measured)
    if rungs:
        counts = ", ".join(f"{count_text(count, 'shape')} by {rung}" for rung, count in rungs.items())
        yield Finding("kernels", f"convolutions: {counts}")
    for candidate, error in deviations.items():
        yield Finding(
            "attention",
            f"{BACKENDS[candidate].label} is left out, as its results differ by {error:.1%} from fp32 math; "
            f"at most {profile.deviation:.1%} is accepted",
            remedy=f"Set {DEVIATION_VARIABLE}={math.ceil(100 * error)} to accept it.",
        )


def _memory(root: Path) -> Iterator[Finding]:
    memory = host_memory(root)
    yield Finding("RAM", f"{gb_text(memory.available)} of {gb_text(memory.total)} GB available")
    used = memory.swap_total - memory.swap_free
    text = f"{gb_text(used)} of {gb_text(memory.swap_total)} GB used"
    if used > GB and memory.available < memory.total // 10:
        remedy = "Close other programs: weights are read from the disk again when memory is short."
        yield _note("swap", text, remedy)
    else:
        yield Finding("swap", text)


def _sleep() -> Finding:
    if can_stay_awake():
        return Finding("sleep", "systemd-logind keeps the computer awake while a video is made")
    text = "nothing keeps the computer awake while a video is made, as systemd-logind does not answer here"
    return Finding("sleep", text)


def _disk(outputs: Path) -> Finding:
    folder = outputs.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".longtake-", dir=folder):
            free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"{outputs} cannot be written ({error.strerror})"
        return Finding("disk", text, "problem", "Choose another folder with --outputs.")
    text = f"{gb_text(free_bytes)} GB free in {folder}"
    if free_bytes < _DISK_BYTES:
        return _note("disk", text, f"Free {gb_text(_DISK_BYTES)} GB for videos and latents.")
    return Finding("disk", text)


def _environment(profile: Profile, environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, setting in environment_report(profile.environment, environ).items():
        owner = f"yours; {setting.reason}" if setting.source == YOU else f"Longtake's; {setting.reason}"
        yield Finding("environment", f"{name}={setting.value} ({owner})")
    if profile.machine.kind == "rocm":
        of_engine = {**environ, **engine_environment(profile.environment, environ)}
        for text, remedy in find_mode_findings(of_engine):
            yield Finding("MIOpen", text, "note" if remedy else "ok", remedy)
    elif "MIOPEN_FIND_MODE" in environ:
        yield Finding("environment", "the find mode has no effect here: MIOpen runs on AMD cards only")
    if "MIOPEN_FIND_TIME_LIMIT" in environ:
        text = "MIOPEN_FIND_TIME_LIMIT is set, but MIOpen has no such variable"
        yield _note("environment", text, "Unset it; MIOPEN_FIND_MODE=FAST avoids long searches.")
    for name in ALLOCATOR_VARIABLES:
        has_segments = "expandable_segments:true" in environ.get(name, "").lower()
        if profile.machine.kind == "rocm" and has_segments and rocm_of_torch() < (10,):
            text = f"{name} turns expandable segments on, which need ROCm 10"
            remedy = "Leave it out, since the limit of memory may fail with them on this build of torch."
            yield _note("environment", text, remedy)


def _job(model: str, profile: Profile, root: Path, local: Local) -> Iterator[Finding]:
    try:
        info = find_model(model, allow_folder=True)
        absence = absence_of(info)
        if absence is not None:
            missing = NotHere(absence)
            yield Finding("weights", missing.message, "problem", missing.remedy)
        request = GenerationRequest(image="none", model=model, mode=info.modes[0])
        make_plan = planner_of(profile, local, host_memory(root).available or None)
        plan = make_plan(request, info)
        recommendation = recommend(request, info, make_plan)
        size = sum(network.file_bytes for network in known_networks(info, profile).values())
    except LongtakeError as error:
        yield Finding("job", command_words(error.message), "problem", command_words(error.remedy))
        return
    peak, cap = gb_text(plan.job.peak_bytes), gb_text(plan.job.budget.cap_bytes)
    yield Finding("job", f"{info.title} ({gb_text(size)} GB of weights) peaks at {peak} of {cap} GB")
    if plan.streaming:
        yield Finding("job", plan.streaming)
    for note in plan.notes:
        yield Finding("job", note, "note" if plan.waiting_bytes else "ok")
    if profile.machine.kind != "cpu":
        yield Finding("set-up", recommendation.words)

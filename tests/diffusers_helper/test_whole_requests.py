"""All settings, refusals, events, failures, models and section plans, as all that is said of each."""

import errno
import json
import math
import os
import signal
import sqlite3
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from diffusers_helper import events
from diffusers_helper.errors import INPUT_CODES, InputError, LongtakeError, PictureError
from diffusers_helper.events import Event, event_name, from_dict, to_dict
from diffusers_helper.failures import engine_died, failed_event
from diffusers_helper.families.family import buckets
from diffusers_helper.families.framepack import COMPONENTS, FRAMEPACK
from diffusers_helper.families.packing import MODES, frame_indices, paddings
from diffusers_helper.families.registry import FAMILIES
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.models.sizes import published_bytes
from diffusers_helper.request import SETTINGS, GenerationRequest
from tests.support.answers import text_of, without


def test_every_setting(snapshot: SnapshotAssertion) -> None:
    usual = asdict(GenerationRequest(image="a.png"))
    assert [field.name for field in fields(GenerationRequest)] == [*SETTINGS] == [*usual]
    lines = list[str]()
    for name, setting in SETTINGS.items():
        facts = setting.label, setting.expected, setting.unit, setting.section, setting.scope
        view = setting.is_optional, setting.on_page
        if setting.default is not None:
            view = *view, setting.default_text, setting.display(usual[name])
        lines.append(f"{name}: {text_of(usual[name])} {text_of(facts + view)}")
    assert "\n".join(lines) == snapshot


def refused(**settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        pytest.fail(f"{settings} is used: {GenerationRequest.from_dict({'image': 'a.png', **settings})}")
    error = caught.value
    text = f"{type(error).__name__} {error.setting}: {error.message} {error.remedy}"
    text.encode("utf-8")
    return text


def test_settings_that_cannot_be_used(snapshot: SnapshotAssertion) -> None:
    lines, numbers = list[str](), {name: setting for name, setting in SETTINGS.items() if setting.is_number}
    for name, setting in numbers.items():
        for value in (setting.low, setting.high):
            assert getattr(GenerationRequest(image="a.png", **{name: value}), name) == value
        others = [setting.high + 1, math.nan, math.inf, -math.inf, 10**400, "5", True, [5], {}]
        others += [] if setting.is_optional else [None]
        expected = refused(**{name: setting.low - 1})
        lines.append(expected)
        ends = {refused(**{name: value}).partition("; expected")[2] for value in others}
        assert ends == {expected.partition("; expected")[2]}
    for name in ("seed", "steps", "crf", "resolution", "vae_tile"):
        lines.append(refused(**{name: 64.5}))
    for name, setting in SETTINGS.items():
        if setting.choices:
            lines.append(refused(**{name: "INVERTED"}))
            for value in ("", 3, None, ["unipc"]):
                assert refused(**{name: value}).partition("; ")[2] == lines[-1].partition("; ")[2]
    for name in ("image", "prompt", "negative", "model"):
        lines += [refused(**{name: value}) for value in (None, b"bytes", "a\0b", "a\ud800b")]
        lines.append(refused(**{name: "x" * 4001}).replace("x" * 60, "x"))
    lines += [refused(**{name: "x" * 100_000})[:300] for name in ("mode", "seconds", "seed")]
    for settings in (
        {"image": ""}, {"image": "  ", "prompt": "\n"}, {"step": 3}, {"vae_tile": 100}, {"extend": "before"},
        {"image": "", "prompt": "a", "extend": "before"}, {"loop": "on", "mode": "forward"},
        {"loop": "on", "video": "v.mp4"},
        {"extend": "before", "video": "v.mp4", "end_image": "b.png"}, {"one_frame": 9, "mode": "forward"},
        {"one_frame": 9, "loop": "on"},
        {"one_frame": 9, "end_image": "b.png"}, {"one_frame": 9, "video": "a.mp4"}, {"join": "b.mp4"},
        {"one_frame": 9, "image": "", "prompt": "a"}, {"sound": "b.wav"}, {"finish": "speed:2"},
        {"finish": "dance", "video": "a.mp4"}, {"lora": "a:11"}, {"lora": "a:1e999"}, {"lora": "a\na:0.5"},
        {"lora": "\n".join(map(str, range(99)))}, {"pictures": "s: p.png"}, {"then": "dance"},
    ):  # fmt: skip
        lines.append(f"{settings}: {refused(**settings)}")
    assert "\n".join(lines) == snapshot


COMMON: dict[str, Any] = {"job": "20261121-081530-3f9a", "time": 1.25}
STREAM: dict[type[Event], dict[str, Any]] = {
    events.JobStarted: {"sections": 4, "frames": 145, "width": 640, "height": 608, "attention": "sliced"},
    events.StageStarted: {"stage": "text"}, events.Reading: {"done_bytes": 5, "total_bytes": 7},
    events.StepDone: {"section": 2, "step": 11, "steps": 25},
    events.PieceDone: {"stage": "decode", "section": 2, "piece": 3, "pieces": 6},
    events.SectionFinished: {"section": 2, "sections": 4, "video": "/o/a.mp4", "frames": 69},
    events.Warned: {"message": "Wörter"},
    events.Finished: {"video": "/o/video.mp4", "frames": 145, "seconds": 61.5},
    events.Cancelled: {"video": None, "frames": 0},
    events.Failed: {"message": "It is broken.", "remedy": "Mend it."},
}  # fmt: skip


def test_the_stream_of_events(snapshot: SnapshotAssertion) -> None:
    defined = [value for value in vars(events).values() if isinstance(value, type)]
    assert {kind for kind in defined if issubclass(kind, Event)} - {Event} == {*STREAM}
    lines = list[str]()
    for kind, values in STREAM.items():
        event = kind(**COMMON, **values)
        data = json.dumps(to_dict(event), ensure_ascii=False)
        assert from_dict(json.loads(data)) == from_dict({**json.loads(data), "a later field": 7}) == event
        lines.append(f"{event_name(kind)}{' (final)' * kind.is_final}: {data}")
    lines += [f"{stage}: {text_of(facts)}" for stage, facts in events.STAGES.items()]
    for data in ([], {}, {"event": "exploded"}, {"event": ["job_started"]}, {"event": "warned", "job": "a"},
                 {"event": "stage_started", **COMMON, "stage": "sing"}):  # fmt: skip
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the snapshot has the text
            from_dict(data)
        lines.append(f"{data}: {caught.value}")
    assert "\n".join(lines) == snapshot


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's own."""


class HfHubHTTPError(OSError):
    """An error with the name of the hub client's own."""


class EntryNotFound(HfHubHTTPError):
    """A subclass of the hub's error."""


def number(code: int, file: str = "/jobs/a/file") -> OSError:
    return OSError(code, os.strerror(code), file)


DRIVER = (
    "miopenStatusUnknownError", "MIOpen Error: batchnorm.cpp:204: Code object build failed",
    "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul(...)`",
    "rocblas_status_internal_error", "HIP error: unspecified launch failure\nCompile with TORCH_USE_HIP_DSA",
    "HIP error: no kernel image is available for execution on the device",
)  # fmt: skip
ERRORS = (
    LongtakeError("The model lacks a part.", "Get it."), InputError("steps is 0; expected 1.", "Set it."),
    InputError(setting="steps", value=0, expected="1", remedy="Set it."), MemoryError(), RuntimeError(),
    PictureError("The picture is empty.", "Choose another."), ZeroDivisionError("division by zero\nmore"),
    sqlite3.OperationalError("database or disk is full"), OutOfMemoryError("HIP out of memory. Tried"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    RuntimeError("CUDA Out Of Memory"), EntryNotFound("404 Client Error"), ValueError("x" * 300),
    ModuleNotFoundError("No module named 'av'"), ValueError("miopenStatusUnknownError"),
    ImportError("Using SOCKS proxy, but the 'socksio' package is not installed."),
    OSError(-2, "Name or service not known"),
    *(number(code) for code in (
        errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE,
        errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR,
    )),
    number(errno.ENOENT, "/other"), number(errno.EACCES, "/other"), *map(RuntimeError, DRIVER),
)  # fmt: skip


def test_every_failure_of_a_job(snapshot: SnapshotAssertion) -> None:

    lines = list[str]()
    for error in ERRORS:
        event = failed_event(error, "a-job", 1.5, "/video.mp4", 37, folder=Path("/jobs/a"))
        assert (event.job, event.time, event.video, event.frames) == ("a-job", 1.5, "/video.mp4", 37)
        assert (event.code in INPUT_CODES) == isinstance(error, InputError)
        assert type(error).__name__ in event.detail
        assert from_dict(json.loads(json.dumps(to_dict(event)))) == event
        lines.append(f"{type(error).__name__}: {event.code} {event.setting} {event.message} {event.remedy}")
    for exit_code, attempts, output in (
        (-signal.SIGKILL, 1, ""), (-signal.SIGTERM, 1, ""), (-signal.SIGABRT, 1, ""), (-40, 3, ""),
        (3, 1, ""),
        (0, 2, ""), (None, 1, ""), (-signal.SIGABRT, 3, f"{DRIVER[0]}\nMIOpen(HIP): Warning [Find] slow\n"
         "WARNING diffusers_helper.x: miopenStatusInternalError"), (-signal.SIGKILL, 1, DRIVER[4]),
    ):  # fmt: skip
        died = engine_died(exit_code, attempts, output)
        lines.append(f"{exit_code}, {attempts}: {died.code} {died.message} {died.remedy}")
    refusal = PictureError("The picture cannot be read.", "Choose another one.")
    for code, folder in ((errno.EMFILE, "a"), (errno.EACCES, "a"), (errno.ENOENT, "a"), (errno.EACCES, "b")):
        refusal.__cause__ = number(code)
        event = failed_event(refusal, "job", folder=Path("/jobs") / folder)
        lines.append(f"a picture, {errno.errorcode[code]} in {folder}: {event.code} {event.message}")
    assert "\n".join(lines) == snapshot


REFUSED_BY_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("wan-5b", {"end_image": "x.png"}), ("wan-5b", {"pictures": "1s: x.png"}), ("wan-a14b", {"image": ""}),
    ("wan-5b-fast", {"steps": 3, "sampler": "euler"}), ("wan-5b-fast", {"steps": 25}),
    ("framepack-f1", {"mode": "inverted"}), ("demo", {"decoder": "light"}),
    ("helios-distilled", {"sampler": "euler"}), ("helios-distilled", {"step_cache": "first-block"}),
    *(("helios-base", {"step_cache": cache}) for cache in ("teacache", "magcache")),
    ("helios-base", {"one_frame": 9, "mode": "inverted"}), ("wan-5b", {"step_cache": "teacache"}),
)  # fmt: skip
FACTS: dict[str, Any] = {
    "title": "Toy", "side": 64, "multiple": 16, "modes": ["forward"], "examples": ["a cat"], "shift": 9.5,
    "magnitudes": {"forward": [1, 0.9]}, "vocabulary": {"subjects": ["cat", "dog"]},
}  # fmt: skip


def test_what_models_refuse_and_which_folders_are_none(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines, toy = list[str](), tmp_path / "toy"
    for name, settings in REFUSED_BY_MODELS:
        request = GenerationRequest.from_dict(
            {"image": "a.png", "prompt": "a boat", "mode": "forward"} | settings
        )
        with pytest.raises(InputError) as caught:
            find_model(name).check(request)
        lines.append(f"{name} {settings}: {caught.value.message} {caught.value.remedy}")
    for info in map(find_model, model_names()):
        is_of_words = not info.name.startswith("wan-a14b")
        words = GenerationRequest(image="" if is_of_words else "a.png", prompt="a", steps=info.steps)
        info.check(replace(words, mode=info.modes[0]))
    find_model("wan-a14b").check(GenerationRequest(image="a.png", mode="forward", end_image="x.png"))
    for part in COMPONENTS:
        (toy / part).mkdir(parents=True)
    for facts in (
        None,
        FACTS,
        "{",
        [],
        {"side": "64"},
        {"modes": ["sideways"]},
        {"modes": []},
        {"shift": "a"},
    ):
        if facts is not None:
            text = facts if isinstance(facts, str) else json.dumps(facts)
            (toy / "longtake.json").write_text(text, encoding="utf-8")
        lines.append(f"{facts}: {model_or_reason(str(toy), tmp_path)}")
    (toy / "longtake.json").unlink()
    (toy / "vae").rmdir()
    for name in (str(toy), str(toy / "none"), "~nobody-of-that-name/model", "x" * 4000):
        lines.append(model_or_reason(name, tmp_path).replace("x" * 100, ""))
    lines += [model_or_reason(name, tmp_path, False) for name in (str(toy), "../../etc", "FRAMEPACK-I2V", "")]
    assert "\n".join(lines) == snapshot


def model_or_reason(name: str, folder: Path, allow_folder: bool = True) -> str:
    try:
        info = find_model(name, allow_folder=allow_folder)
    except InputError as error:
        return without(f"{error.message} {error.remedy}", folder=folder)
    own = ("title", "side", "multiple", "modes", "examples", "shift", "vocabulary", "folder", "components")
    facts = *(getattr(info, fact) for fact in own), *map(info.mag_ratios, MODES)
    same = info.mag_ratios("inverted") == FRAMEPACK.mag_ratios["inverted"]
    return f"{same} {without(text_of(facts), folder=folder)}"


@pytest.mark.parametrize("name", model_names())
def test_what_is_known_of_a_model(name: str, snapshot: SnapshotAssertion) -> None:
    info = find_model(name)
    family = info.family
    left_out = "family", "vocabulary", "components", "folder"
    view = [field.name for field in fields(info) if field.name not in left_out]
    lines = [text_of({field: getattr(info, field) for field in view}), text_of(info.default_settings)]
    lines += [
        f"{part}: {source.location}/{source.subfolder}@{source.revision}"
        for part, source in info.components.items()
    ]
    parts = [] if info.folder else ["transformer", "vae", "text_encoder"]
    lines.append(
        text_of([family.name, *(published_bytes(part, family.name, info.file_dtype) for part in parts)])
    )
    for video in (
        {}, {"has_picture": True}, {"sections": 2}, {"height": 832, "width": 480},
        {"height": 704, "width": 1280},
    ):  # fmt: skip
        facts = {
            "height": 480,
            "width": 832,
            "has_picture": False,
            "sections": 1,
            "times": info.times,
            **video,
        }
        if remark := family.remark(**facts):
            lines.append(f"{video}: {remark}")
    words = [GenerationRequest(prompt="a", shape=shape) for shape in ("1:1", "16:9", "9:16")]
    shapes = [info.shape_of(request, None) for request in words]
    with_picture = GenerationRequest(prompt="a", image="a.png", shape="16:9")
    shapes += [info.shape_of(with_picture, size) for size in ((300, 200), (100, 1000), (10, 10))]
    text = "\n".join([*lines, text_of(shapes)])
    assert without(text, folder=info.folder or Path("/nowhere")) == snapshot


def test_the_sections_of_videos(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for name, family in FAMILIES.items():
        for mode in MODES if name == "framepack" else ("forward",):
            plans = {
                seconds: family.plan(seconds, mode) for seconds in (1, 1.2, 1.8, 3, 4, 5, 5.4, 10, 30, 120)
            }
            facts = {
                seconds: (len(plan), plan.total_frames, plan.seconds, plan.section_seconds)
                for seconds, plan in plans.items()
            }
            lines.append(f"{name} {mode}: {text_of(facts)}")
    picture = GenerationRequest(image="a.png", seconds=4.8)
    words = replace(picture, image="", prompt="a")
    for title, request in {
        "picture": picture, "words": words, "loop": replace(picture, seconds=2.4, loop="on"),
        "forward": replace(picture, mode="forward"), "forward words": replace(words, mode="forward"),
        "one frame": replace(picture, one_frame=3),
    }.items():  # fmt: skip
        for section in FRAMEPACK.sections(request):
            parts = section.indices
            indices = [parts.start, parts.noisy, parts.history_1x, parts.history_2x, parts.history_4x]
            own = section.decoded_frames, section.overlap_frames, section.pending_frames, section.final_frames
            lines.append(f"{title}: {text_of(replace(section, indices=()))} {text_of(indices)} {own}")
    lines += [text_of([frame_indices("inverted", padding=padding).noisy for padding in range(4)])]
    lines += [text_of([paddings(count) for count in (1, 2, 3, 4, 5, 8)]), text_of(buckets(64, 16))]
    nearest = ((1080, 1920), (1920, 1080), (3000, 4000), (1000, 1000), (1, 1), (1, 100), (100, 1))
    lines.append(text_of([FRAMEPACK.nearest_bucket(*size, 640, 32) for size in nearest]))
    for seconds in (0, 0.99, -5, math.nan, math.inf):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the snapshot has the text
            FRAMEPACK.plan(seconds, "inverted")
        lines.append(str(caught.value))
    assert "\n".join(lines) == snapshot

"""All that the form's calls answer, without a browser and without an engine."""

import json
import re
import shutil
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.service import JobService
from app.jobs.storage.commands import commands_of
from app.machine import machine_of_card
from app.ui.catalogue import Catalogue
from app.ui.form import settings as form
from app.ui.form.actions import Actions
from app.ui.form.controls import form_markup
from app.ui.form.describe import Describer
from app.ui.form.endpoints import FormCalls
from app.ui.form.memory_view import report
from app.ui.pictures import Upload
from app.ui.planner import Planner
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine import sysfs
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.pages import write_photo
from tests.support.staged_engine import StagedEngine
from tests.support.whole_answers import changes, whole

MACHINES = {name: machine_of_card(name) for name in ("gfx1100:24", "gfx1100:8", "gfx1100:4", "gfx103x:16")}
MACHINES |= {
    "a processor": Machine("cpu", "", "CPU", 32 * GB),
    "a card of unknown size": Machine("cuda", "", "NVIDIA GPU", 0),
}
SPAN = Span(1, {"prompt": "before", "seed": 3})
TAGS = re.compile(r"(?<=>)(?=<(?!/))|\n")


@pytest.fixture(autouse=True)
def same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ui.planner.host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=0, free=2**40))
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)
    for name, variable in (("config", "XDG_CONFIG_HOME"), ("uploads", "GRADIO_TEMP_DIR"), ("hub", "HF_HOME")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("LONGTAKE_LORAS", str(tmp_path / "loras"))
    (tmp_path / "uploads").mkdir()


def vars_of(request: GenerationRequest) -> dict[str, Any]:
    return json.loads(request.to_json())


def planner_of(machine: str, folder: Path) -> Planner:
    return Planner(profile_for(MACHINES[machine], {}), local=Local(folder=folder / "local"))


def in_lines(answer: Any) -> dict[str, Any]:
    """Divide the markup of an answer at its tags, and its program into lines."""
    parts = dict(answer)
    parts["markup"] = {name: TAGS.split(text) for name, text in parts.get("markup", {}).items()}
    if facts := parts.get("facts"):
        program, known = facts["program"].split("\n"), " ".join(facts["words"])
        parts["facts"] = facts | {"program": program, "words": known}
    return parts


class Transcript:
    def __init__(self, folder: Path) -> None:
        self._folder, self._last, self._lines = folder, dict[str, Any](), list[str]()

    def tell(self, name: str, answer: Any, key: str = "") -> None:
        before = self._last.get(key)
        lines = whole(answer) if before is None else changes(before, answer)
        self._lines.append(f"--- {name}\n{lines}")
        self._last[key] = answer

    def start(self, answer: Any) -> None:
        self._last[""] = answer

    @property
    def text(self) -> str:
        text = "\n".join(self._lines).replace(str(self._folder), "<tmp>")
        return re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "<id>", re.sub(r"[0-9a-f]{64}", "<sum>", text))


LINE = "a red ball [1.2s-2.4s: <b> & more, seed 7] [9s: late]"
EXTRAS = form.Extras({"video": "uploads/x.mp4", "sampler": "euler"}).to_text()
PICTURES: dict[str, dict[str, Any]] = {
    "nothing changed": {}, "words alone": {"image": None}, "nothing at all": {"image": None, "prompt": ""},
    "one frame of words": {"image": None, "one_frame": 9}, "three pictures": {"one_frame": 9, "variants": 3},
    "continued": {"image": None, "extras": EXTRAS},
    "what comes before": {"image": None, "extras": form.Extras({"video": "x", "extend": "before"}).to_text()},
    "damaged extras": {"extras": "{"}, "of a branch": {"extras": form.Extras({}, (SPAN,)).to_text()},
    "timed pictures": {"pictures": "2.4s: uploads/photo.png\n9s: uploads/photo.png"},
    "forward to an end": {"mode": "forward", "end_image": "photo", "pictures": "9s: uploads/photo.png"},
    "no picture": {"image": {"path": "uploads/holiday.jpg"}}, "no upload": {"image": {"path": "/etc/passwd"}},
    "cropped": {"crop": 0.25, "zoom": 2, "crop_y": 1.0, "resolution": 192, "seed": 2**53},
}  # fmt: skip
WORDS: dict[str, dict[str, Any]] = {
    "timed": {"prompt": LINE, "prompt_blend": 2, "seconds": 3.6}, "backwards": {"prompt": "<a> [4s-2s: b]"},
    "strip": {"section_words": '["a", "b", "a", "a"]'}, "another strip": {"section_words": '["b"]'},
    "no time": {"prompt": "a [2s x] [1s: seed 8]", "seconds": None},
    "same words": {"prompt": "a [1s: a] [2s: seed 8]"},
    "cues": {"prompt": "a [1.2s-2.4s: seed 7] [0s-2.4s: lora film:0.5]", "seconds": 2.4},
    "an order of others": {"model": "helios-distilled", "mode": "inverted"},
    "LoRA": {"lora": "gone.safetensors:0.5", "then": "enlarge:2", "after_section": "wait"},
    "a chosen seed": {"random_seed": False, "seed": 7, "cfg": 2.0, "crf": 20},
    "broken": {"seconds": "<b>", "steps": None, "cfg": "x", "seed": "<i>", "resolution": [], "variants": "x"},
    "a small cap": {"vram_cap_gb": 0.01}, "no cap": {"vram_cap_gb": 0},
    "Helios": {"model": "helios-distilled", "mode": "forward", "steps": 3}, "F1": {"model": "framepack-f1"},
}  # fmt: skip


@pytest.mark.parametrize("cases", [PICTURES, WORDS], ids=["pictures", "words"])
def test_what_the_form_says(cases: dict[str, dict[str, Any]], tmp_path: Path, snapshot: Any) -> None:
    planner = planner_of("gfx1100:24", tmp_path)
    describer = Describer(JobService(tmp_path / "outputs"), Catalogue(planner=planner))
    write_photo(tmp_path / "uploads" / "photo.png")
    (tmp_path / "uploads" / "holiday.jpg").write_text("not a picture")
    photo = {"path": "uploads/photo.png", "orig_name": "it's.png"}
    usual = form.defaults(find_model("demo"), planner) | {"model": "demo", "prompt": "a ball", "image": photo}
    first = in_lines(describer.describe(usual))
    transcript = Transcript(tmp_path)
    if cases is PICTURES:
        transcript.tell("usual", first)
    for name, changed in cases.items():
        transcript.start(first)
        changed = {key: photo if value == "photo" else value for key, value in changed.items()}
        transcript.tell(name, in_lines(describer.describe(usual | changed)))
    assert transcript.text == snapshot


def test_the_markup_of_the_form(tmp_path: Path, snapshot: Any) -> None:
    markup = form_markup(Catalogue(planner=planner_of("gfx1100:24", tmp_path)))
    markup = re.sub(r' (class|id|for|aria-labelledby)="[^"]*"', "", markup.replace('class="lt-field', "§"))
    fields = re.sub("</?(div|span|label)>", "|", markup).split("§")
    assert "\n".join(fill(field, 172, break_long_words=False) for field in fields) == snapshot


PLANS: list[tuple[str, dict[str, Any]]] = [
    ("gfx1100:24", {}), ("gfx1100:24", {"preserved_gb": 19.9, "cfg": 2.0}),
    ("gfx1100:24", {"weight_dtype": "int8", "preserved_gb": 4.0}),
    ("gfx1100:8", {}), ("gfx1100:4", {}), ("gfx103x:16", {"attention": "native"}),
    ("a card of unknown size", {}), ("a processor", {"model": "demo", "preserved_gb": 1}),
]  # fmt: skip


def test_memory_plans_on_many_machines(tmp_path: Path, snapshot: Any) -> None:
    transcript = Transcript(tmp_path)
    for machine, settings in PLANS:
        planner = planner_of(machine, tmp_path)
        info = find_model(settings.get("model", "framepack-i2v"))
        request = GenerationRequest(**{"image": "x", "model": info.name, "mode": "inverted", **settings})
        state, markup = report(planner, request, info, (640, 640) if info.name != "demo" else (128, 128))
        answer = {
            "": state,
            "defaults": planner.defaults,
            "max": planner.max_gb,
            "markup": TAGS.split(markup),
        }
        transcript.tell(f"{machine} {settings}", answer)
    assert transcript.text == snapshot


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Desk":
    monkeypatch.setattr("app.ui.form.endpoints.random_seed", lambda: 1234)
    monkeypatch.setattr("app.ui.form.actions.missing_packages", list)
    return Desk(tmp_path)


class Desk(Transcript):
    """The form's calls, of which each is told with what is new in its answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.planner = planner_of("gfx1100:24", folder)
        engine: Any = StagedEngine()
        self.service = JobService(folder / "outputs", engine)
        catalogue = Catalogue(planner=self.planner)
        self.actions, self.calls = Actions(self.service, catalogue), FormCalls(self.service, catalogue)
        write_photo(folder / "uploads" / "photo.png")
        self.usual = form.defaults(find_model("demo"), self.planner) | {
            "model": "demo", "prompt": "a ball", "image": {"path": "uploads/photo.png"},
        }  # fmt: skip
        self.tells_markup, self._told_markup = True, set[str]()

    def press(self, call: Any, *arguments: Any) -> Any:
        output = ", ".join(str(argument) for argument in arguments)[:90]
        try:
            answer = call(*arguments)
        except LongtakeError as error:
            answer = {"refused": error.message, "remedy": error.remedy, "setting": error.setting}
        if isinstance(answer, dict) and "text" in answer:
            answer = answer | {"text": json.loads(answer["text"])}
        elif isinstance(answer, str) and answer.startswith("{"):
            answer = {k: v for k, v in json.loads(answer).items() if v is None or v != self.usual[k]}
        is_form = isinstance(answer, dict) and ("markup" in answer or "values" in answer)
        self._lines.append(
            f"--- {call.__name__} {output}\n{whole(self._form(answer) if is_form else answer)}"
        )
        return answer

    def _form(self, answer: Any) -> dict[str, Any]:
        """Give the values that differ from the usual ones, and markup at its first time."""
        values, markup = answer.get("values", {}), in_lines(answer)["markup"]
        view = {name: value for name, value in values.items() if value != self.usual.get(name, ...)}
        new = {name: text for name, text in markup.items() if str(text) not in self._told_markup}
        self._told_markup |= {str(text) for text in new.values()}
        view |= {"values": len(values), "markup": list(markup), "notice": answer.get("notice")}
        return view | (new if self.tells_markup else {})


def test_an_hour_at_the_form(desk: Desk, snapshot: Any) -> None:
    press, actions, usual = desk.press, desk.actions, desk.usual
    copy = {"model": "gone", "steps": 6, "seed": 0.5, "prompt": "\0", "extras": 5, "mode": "sideways"}
    press(actions.form_restore, "")
    press(actions.form_restore, json.dumps(copy))
    press(actions.form_restore, json.dumps(usual | {"seed": 7, "seconds": 9.5, "random_seed": False}))
    press(actions.form_model, "framepack-f1", "inverted")
    press(actions.form_models, "demo", "inverted")
    press(actions.form_models, "gone", "inverted")
    press(actions.form_reset, "demo")
    press(actions.form_example, "demo", 1, False)
    for wrong in ({"variants": 1000}, {"extras": "{"}, {"seed": 2**53}, {"image": {"path": "/etc/passwd"}}):
        press(actions.form_start, "0" * 16, usual | wrong, False)
    press(actions.form_end)
    press(actions.form_start, "short", usual, False)
    press(actions.form_start, "1" * 16, usual, False)
    press(actions.form_start, "2" * 16, usual | {"variants": 3, "seed": 8, "after_section": "wait"}, False)
    press(actions.form_start, "2" * 16, usual, False)
    branched = {"extras": form.Extras({}, (SPAN,)).to_text()}
    press(actions.form_start, "5" * 16, usual | branched, False)
    press(actions.form_start, "3" * 16, usual | {"vram_cap_gb": 19, "crop": 0.25, "negative": None}, False)
    press(actions.form_start, "4" * 16, usual | {"model": "framepack-f1", "mode": "forward"}, False)
    press(actions.form_example, "demo", 0, True)
    first = desk.service.jobs()[-1]
    press(actions.form_save, first.id, usual | {"seed": 9, "prompt": "edited"})
    press(actions.form_end)
    for number, job in enumerate(desk.service.jobs()[::-1]):
        folder = JobFolder(job.folder)
        facts = {"image": "…", "state": job.state, "wishes": commands_of(folder)}
        facts |= {"spans": Lineage.read(folder.lineage).spans}
        desk.tell(f"job {number}", vars_of(job.request) | facts)
    assert desk.text == snapshot


FILES = {
    "a.json": b'{"steps": 1000, "prompt": "<a>", "model": "gone", "mode": "forward", "sparkle <b>": 1}',
    "b.json": b'{"steps": 21, "prompt": "p", "sampler": "euler"}', "c.json": b"none", "d.csv": b"a,b",
    "lines.jsonl": b'{"prompt": "a", "image": "own.png"}\n{"prompt": "b", "seed": 5, "seconds": 1}\n',
    "bad.jsonl": b'{"prompt": "a"}\n{"image": "other.png"}\n', "x.xlsx": b"PK\x03\x04",
    "broken.mp4": b"\0\0\0\x10ftypisom",
}  # fmt: skip


def test_files_and_presets(desk: Desk, tmp_path: Path, snapshot: Any) -> None:
    press, actions, calls, usual = desk.press, desk.actions, desk.calls, desk.usual
    desk.tells_markup = False
    for name, content in FILES.items():
        (tmp_path / "uploads" / name).write_bytes(content)
    file = {name: Upload(path=f"uploads/{name}") for name in (*FILES, "photo.png", "../x")}
    look = json.dumps(usual | {"steps": 17, "seed": 4})
    press(calls.preset_save, "Soft look", look)
    press(calls.preset_save, "../up", look)
    press(calls.preset_save, "Set", json.dumps(usual | {"random_seed": False, "resolution": 192}))
    press(calls.preset_export, "Soft look")
    press(calls.preset_export, "Set")
    press(calls.preset_import, "Given", file["b.json"])
    press(calls.preset_load, "Given")
    for name in ("Given", "Set"):
        press(actions.form_fill, calls.preset_load(name)["text"], json.dumps(usual | {"seed": 8}))
    press(calls.preset_default, "Given")
    press(actions.form_restore, "")
    press(actions.form_reset, "framepack-f1")
    press(calls.preset_remove, "start")
    press(actions.form_reset, "demo")
    for name in ("a.json", "b.json", "c.json", "d.csv", "broken.mp4", "photo.png", "../x"):
        press(calls.file_read, file[name], name)
    press(actions.form_fill, calls.recipe_read(file["a.json"], "a.json")["text"], look)
    other = {"name": "x", "settings": {"model": "framepack-f1", "mode": "inverted", "steps": None}}
    press(actions.form_fill, json.dumps(other), "")
    press(actions.form_fill, "[]", "")
    press(calls.picture_check, file["photo.png"])
    press(calls.picture_check, file["d.csv"])
    press(calls.lora_list)
    press(calls.lora_choose, "a.safetensors:0.5", "b.safetensors", 99.0)
    press(calls.lora_choose, "a.safetensors:0.5", "a.safetensors", None)
    press(calls.batch_add, file["lines.jsonl"], {"own.png": file["photo.png"], "": file["photo.png"]}, look)
    for name in ("bad.jsonl", "x.xlsx"):
        press(calls.batch_add, file[name], {"": file["photo.png"]}, look)
    for job in desk.service.jobs()[::-1]:
        desk.tell("job", vars_of(job.request) | {"image": "…"})
    assert desk.text == snapshot

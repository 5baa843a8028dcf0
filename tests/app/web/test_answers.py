"""Tests that no answer of the page's own calls names a folder of this machine: each of them is asked."""

import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from app.redact import known_folders
from benchmarks.continuing import CLIPS
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import SETTINGS, GenerationRequest
from tests.support import staged_engine
from tests.support.asking import Answer, ask, form
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import Stand, staged_page, write_photo
from tests.support.staged_engine import FAILING_PROMPT, StagedEngine

PLACE = "Annas Vidéos & more"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a telling name, which holds all files of a user."""
    place = tmp_path / PLACE
    (place / "loras").mkdir(parents=True)
    (place / "loras" / "broken.safetensors").write_bytes(b"none")
    (place / "weights" / "vae").mkdir(parents=True)
    demo = find_model("demo")
    (place / "weights" / "vae" / "small").symlink_to(demo.components["vae"].location)
    transformer = Path(demo.components["transformer"].location) / "diffusion_pytorch_model.safetensors"
    (place / "weights" / "own.safetensors").symlink_to(transformer)
    for variable, folder in {
        "GRADIO_TEMP_DIR": "cache", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "HOME": "home",
        "LONGTAKE_LORAS": "loras", "LONGTAKE_WEIGHTS": "weights", "HF_HOME": "hub",
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, str(place / folder))
    monkeypatch.setattr(ADDED_MODELS, "file", place / "data" / "models.json")
    monkeypatch.setattr(staged_engine, "MESSAGE", f"`lora` {place}/loras/x.safetensors cannot be read.")
    return place


@pytest.fixture
def stand(place: Path, tiny_model: Path) -> Iterator[Stand]:
    with staged_page(place, StagedEngine(), StagedEngine(), model=str(tiny_model)) as stand:
        yield stand


def uploaded(stand: Stand, name: str, content: bytes) -> dict[str, str]:
    headers, body = form(name.encode(), content)
    answer = ask(stand.url, "/gradio_api/upload", method="POST", headers=headers, body=body)
    return {"path": json.loads(answer.body)[0]}


def over(stand: Stand, prompt: str, **settings: Any) -> str:
    job = stand.service.queue.add(
        GenerationRequest(prompt=prompt, seconds=2.4, **settings), allow_folder=True
    )
    wait_until(lambda: stand.service.job(job.id).is_over)
    return job.id


def reading_calls(job: str) -> Iterator[tuple[str, dict[str, Any]]]:
    of_job, model = {"job": job}, {"model": "demo"}
    mode = model | {"mode": "forward"}
    yield from {
        "jobs_queue": {}, "jobs_list": {}, "jobs_usage": {}, "cards_list": {}, "history_search": {"text": ""},
        "jobs_show": of_job, "history_open": of_job, "history_settings": of_job, "history_continue": of_job,
        "jobs_scene": of_job, "exports_list": of_job, "form_reset": model, "form_model": mode,
        "form_models": mode | {"model": "gone"}, "preset_list": {}, "preset_load": {"name": "own"},
        "preset_export": {"name": "own"}, "lora_list": {}, "models_list": {}, "models_formats": model,
        "models_plan": model, "models_copy": model | {"weight_dtype": "int8"}, "models_files": {},
        "models_inspect": {"file": "own.safetensors"},
    }.items()  # fmt: skip


def other_calls(
    stand: Stand, job: str, video: dict[str, str], photo: dict[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    settings = {name: setting.default for name, setting in SETTINGS.items()}
    settings |= {"image": photo, "seconds": 1, "mode": "forward", "model": "demo"}
    continued = json.dumps({"settings": {"video": video["path"]}, "earlier": []})
    press = {"press": os.urandom(16).hex(), "may_download": False}
    recipe = uploaded(stand, "recipe.json", b'{"steps": 5, "video": "/nowhere/x.mp4"}')
    batch = uploaded(stand, "lines.jsonl", b'{"prompt": "a", "image": "none.png"}\n')
    yield "form_describe", {"settings": settings}
    yield "form_describe", {"settings": settings | {"extras": continued, "image": None, "lora": "gone"}}
    yield "form_start", press | {"settings": settings | {"image": {"path": "/etc/passwd"}}}
    yield "form_start", press | {"settings": settings | {"extras": continued, "image": None}}
    yield "form_start", {**press, "press": os.urandom(16).hex(), "settings": settings | {"lora": "gone:1"}}
    yield "form_save", {"job": job, "settings": settings}
    yield "form_end", {}
    yield "form_restore", {"kept": json.dumps(settings | {"extras": continued})}
    yield "form_fill", {"restored": "{}", "kept": ""}
    yield "form_example", {"model": "demo", "index": 0, "starts": False}
    yield "preset_save", {"name": "own", "form": json.dumps(settings)}
    yield "preset_import", {"name": "other", "file": recipe}
    yield "preset_default", {"name": "own"}
    yield "preset_remove", {"name": "other"}
    yield "recipe_read", {"file": video, "name": "clip.mp4"}
    yield "file_read", {"file": video, "name": "clip.mp4"}
    yield "file_read", {"file": batch, "name": "lines.json"}
    yield "file_continue", {"file": video, "name": "clip.mp4"}
    yield "file_continue", {"file": batch, "name": "lines.json"}
    yield "lora_add", {"file": video, "name": "../clip.safetensors"}
    yield "models_file_add", {"file": video, "name": "../clip.gguf"}
    yield "picture_check", {"file": batch}
    yield "batch_add", {"file": batch, "pictures": {}, "form": json.dumps(settings)}
    yield "lora_choose", {"lora": "", "name": "broken.safetensors", "weight": 1}
    jobs, card = {"jobs": [job]}, {"card": stand.service.crew.workers[0].card.key}
    for name in ("hold", "go_on"):
        yield f"jobs_{name}", {}
    for name in ("resume", "retry", "pause", "cancel", "wait", "favourite", "remove", "restore"):
        yield f"jobs_{name}", jobs
    for name in ("reorder", "duplicate", "takes"):
        yield f"jobs_{name}", {"job": job}
    yield "jobs_empty_trash", {}
    yield "jobs_delete", {"jobs": [f"/{PLACE}/x"]}
    yield "jobs_branch", {"job": job, "keep": 1}
    yield "jobs_edit", {"job": job, "changes": {"image": f"/{PLACE}/x.png"}}
    yield "jobs_change", {"job": job, "changes": {"lora": f"/{PLACE}/x.safetensors"}}
    for name in ("leave", "pause", "return"):
        yield f"cards_{name}", card
    for name in ("get", "pause", "verify", "cancel", "remove"):
        yield f"models_{name}", {"model": "demo"}
    finishing = {"video": {"job": job}, "join": [video], "steps": "speed:2"}
    yield "finish_start", finishing
    yield "finish_plan", finishing | {"video": video, "sound": {"path": "/etc/passwd"}}
    yield "models_convert", {"model": "demo", "weight_dtype": "int8"}
    yield "models_add", {"model": "mine", "parts": {"transformer": "own.safetensors"}}


def check(answer: Answer, address: str, folders: set[str]) -> None:
    assert answer.status in (200, 400, 404), (address, answer.text)
    text = answer.text
    for form_of_text in (text, text.replace("\\\\", "\\"), json.dumps(json.loads(text), ensure_ascii=False)):
        for folder in folders:
            assert folder not in form_of_text, (address, folder, text)


@pytest.mark.slow
def test_no_answer_names_a_folder(stand: Stand, place: Path, tiny_model: Path) -> None:
    for engine in stand.engines:
        engine.go(10_000)
    clip = replace(CLIPS["60"], seconds=1).write(place / "clip.mp4")
    video = uploaded(stand, "clip.mp4", clip.read_bytes())
    photo_file = write_photo(place / "photo.png")
    photo = uploaded(stand, "photo.png", photo_file.read_bytes())
    (place / "loras" / "x.safetensors").symlink_to(place / "loras" / "broken.safetensors")
    made = over(stand, "a ball", image=str(photo_file), model=str(tiny_model))
    continued = over(stand, "a ball", video=str(clip), mode="forward")
    failed = over(stand, FAILING_PROMPT, image=str(photo_file))
    folders = {PLACE, "Annas", str(tiny_model), quote(PLACE), json.dumps(PLACE)[1:-1]}
    folders |= {str(path) for path, _ in known_folders()}
    asked = set[str]()

    def look(job: str, *, at_all: bool = False) -> None:
        for name, message in reading_calls(job):
            asked.add(name)
            if at_all or "job" in message:
                check(ask(stand.url, f"/api/{name}", method="POST", data=message), name, folders)

    look(failed, at_all=True)
    live = urllib.request.urlopen(f"{stand.url}api/live?job={failed}", timeout=TIMEOUT)
    first = next(line for line in live if line.startswith(b"data: {"))
    check(Answer(200, live.headers, first.removeprefix(b"data: ")), "live", folders)
    live.close()
    for job in (made, continued, failed):
        for address, message in other_calls(stand, job, video, photo):
            asked.add(address)
            named = message.get("video", message)
            if job in (made, *named.values(), *message.get("jobs", ())):
                check(ask(stand.url, f"/api/{address}", method="POST", data=message), address, folders)
        look(job, at_all=job == made)
    described = json.loads(ask(stand.url, "/api/openapi.json").body)["paths"]
    calls = {path.removeprefix("/api/") for path in described}
    # The others do not answer in JSON.
    assert calls - {"live", "history/zip", "exports_make", "exports/frames"} == asked

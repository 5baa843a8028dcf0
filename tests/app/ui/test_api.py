"""Tests of the endpoint for programs over the whole product: page process, engine process, a tiny model."""

import asyncio
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from app.jobs.service import JobService
from app.redact import plain_paths
from app.ui.catalogue import Catalogue
from app.ui.generate import generate_endpoints
from benchmarks.continuing import CLIPS
from diffusers_helper.conditions.picture_file import load_picture
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import FILES, FINISHING, GenerationRequest
from tests.support.jobs import ROOT
from tests.support.pages import PageProgram, write_photo
from tests.support.staged_engine import FAILING_PROMPT, MESSAGE, REMEDY, StagedEngine

pytestmark = pytest.mark.slow
FAST: dict[str, Any] = {"seconds": 1, "steps": 2}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[PageProgram]:
    program = PageProgram(tmp_path_factory.mktemp("page"), "--model", str(tiny_model))
    program.wait_until_up()
    yield program
    program.end()


@pytest.fixture(scope="module")
def client(program: PageProgram) -> Client:
    return Client(program.url, verbose=False, download_files=str(program.folder / "downloads"))


@pytest.fixture(scope="module")
def photo(program: PageProgram) -> Path:
    return write_photo(program.folder / "photo.jpg")


def frames(video: str | Path) -> int:
    return len(imageio.imread(video, plugin="pyav"))


def refusal(**settings: object) -> str:
    """Return the refusal that the command line prints."""
    with pytest.raises(InputError) as caught:
        GenerationRequest.from_dict({"image": "photo.jpg", **settings})
    return str(caught.value)


def test_it_returns_the_finished_video(client: Client, photo: Path, program: PageProgram) -> None:
    before = set(program.outputs.iterdir())
    video = client.predict(handle_file(photo), "the red ball moves right", **FAST, api_name="/generate")
    assert frames(video) == 37
    (job,) = set(program.outputs.iterdir()) - before
    assert Path(video).read_bytes() == (job / "video.mp4").read_bytes()
    request = json.loads((job / "request.json").read_text(encoding="utf-8"))
    assert (request["prompt"], request["steps"], request["mode"]) == (
        "the red ball moves right",
        2,
        "inverted",
    )


def test_it_continues_an_uploaded_video(client: Client, tmp_path: Path) -> None:
    clip = replace(CLIPS["60"], seconds=1).write(tmp_path / "clip.mov")
    video = client.predict(
        prompt="the red ball moves right", video=handle_file(clip), **FAST, api_name="/generate"
    )
    assert frames(video) == 30 + 36


def test_every_setting_arrives(client: Client, photo: Path, program: PageProgram) -> None:
    settings: dict[str, Any] = {
        "negative": "blue", "seconds": 1.2, "seed": 2**53 + 1, "steps": 1, "mode": "forward",
        "resolution": 80, "guidance": 7.5, "cfg": 1.5, "cfg_rescale": 0.25, "crf": 30,
        "sampler": "euler", "preserved_gb": 2.5, "vram_cap_gb": 5.5, "vae_tile": 128, "crop": 0.25,
        "weight_dtype": "fp8_e4m3fn", "vae_precision": "fp32", "vae_chunk": 8, "vae_threshold": 0.5,
        "vae_cleanup": 1, "attention": "sliced", "end_crop": 0.75, "end_strength": 0.5,
        "picture_shape": "9:16", "zoom": 1.5, "crop_y": 0.125,
    }  # fmt: skip
    before = set(program.outputs.iterdir())
    pictures = {"image": handle_file(photo), "end_image": handle_file(photo)}
    client.predict(prompt="a red ball", **pictures, **settings, api_name="/generate")
    (job,) = set(program.outputs.iterdir()) - before
    request = json.loads((job / "request.json").read_text(encoding="utf-8"))
    assert {name: request[name] for name in settings} == settings
    assert (job / "end_image.png").read_bytes() == (job / "input.png").read_bytes()


def test_generate_has_the_names_and_defaults_of_the_request(client: Client) -> None:
    api: dict[str, Any] = client.view_api(return_format="dict", print_info=False)  # pyright: ignore
    assert api["named_endpoints"].keys() >= {"/generate", "/jobs_add"}
    assert api["unnamed_endpoints"] == {}
    parameters = api["named_endpoints"]["/generate"]["parameters"]
    assert [parameter["parameter_name"] for parameter in parameters][:2] == ["image", "prompt"]
    found = {parameter["parameter_name"]: parameter["parameter_default"] for parameter in parameters}
    expected = {f.name: f.default for f in fields(GenerationRequest) if f.name not in FINISHING}
    assert all(parameter["parameter_has_default"] for parameter in parameters)
    # The model's own, and files for each call
    own = dict.fromkeys((*FILES, "pictures", "mode", "steps", "guidance", "cfg"))
    assert found == {**expected, **own, "model": "tiny", "wait": False}


@pytest.mark.parametrize(
    "settings",
    [
        {"seconds": 0.5}, {"seconds": "nan"}, {"steps": 2.5}, {"steps": 101}, {"crf": 52}, {"seed": -1},
        {"mode": "sideways"}, {"resolution": 8}, {"prompt": "x" * 4001}, {"cfg": "high"}, {"sampler": "ddim"},
        {"preserved_gb": 500},
    ],
    ids=str,
)  # fmt: skip
def test_bad_values_are_refused_like_on_the_command_line(
    client: Client, photo: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(AppError) as caught:
        client.predict(image=handle_file(photo), **settings, api_name="/generate")
    assert str(caught.value) == refusal(**settings)


def test_pictures_that_are_none_are_refused_like_on_the_command_line(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError) as caught:
        client.predict(api_name="/generate")
    assert str(caught.value).startswith("There is no picture")
    for name, content in {"text.jpg": b"hello", "empty.png": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as refused:
            load_picture(tmp_path / name)
        with pytest.raises(AppError) as caught:
            client.predict(handle_file(tmp_path / name), api_name="/generate")
        # The folder of an upload is nobody's business.
        assert str(caught.value) == str(refused.value).replace(f"{tmp_path}/", "")


def test_a_path_is_no_model_and_no_picture(client: Client, photo: Path, tiny_model: Path) -> None:
    for model in (str(tiny_model), "../..", "nonsense"):
        with pytest.raises(InputError) as refused:
            find_model(model)
        with pytest.raises(AppError) as caught:
            client.predict(image=handle_file(photo), model=model, api_name="/generate")
        assert str(caught.value) == plain_paths(str(refused.value))
    with pytest.raises(AppError, match="not an upload"):
        client.predict(image=str(photo), api_name="/generate")


def test_an_address_is_no_picture_and_nobody_asks_for_it(client: Client) -> None:
    asked = list[str]()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for address in (f"http://127.0.0.1:{server.server_port}/x.png", "https://192.0.2.1/x.png"):
            with pytest.raises(AppError, match="image is not an upload; expected an uploaded picture"):
                client.predict(image=handle_file(address), api_name="/generate")
        server.shutdown()
    assert asked == []


def code_blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.mark.parametrize("document", ["docs/api.md", "README.md"])
def test_the_examples_in_the_documents_run(document: str, program: PageProgram, photo: Path) -> None:
    examples = [code for code in code_blocks(document, "python") if "client" in code]
    code = "\n".join(examples).replace("http://127.0.0.1:7860", program.url)
    assert program.url in code
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('VIDEO', video)"],
        cwd=photo.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert frames(done.stdout.split("VIDEO ")[-1].strip()) == 73


def test_the_example_without_a_server_runs(client: Client, photo: Path, tmp_path: Path) -> None:
    (example,) = (code for code in code_blocks("docs/api.md", "python") if "read_recipe" in code)
    settings: dict[str, Any] = {"prompt": "the red ball moves right", "model": "demo", "wait": False, **FAST}
    shutil.copy(
        client.predict(image=handle_file(photo), **settings, api_name="/generate"), tmp_path / "video.mp4"
    )
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert frames(done.stdout.splitlines()[-1]) == 37


def test_a_job_that_ends_otherwise_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    service.start()
    photo = {"path": str(write_photo(tmp_path / "photo.png"))}
    generate: Any = generate_endpoints(service, Catalogue())[0].function
    assert inspect.iscoroutinefunction(generate)
    engine.go(100)
    with pytest.raises(Exception, match=re.escape(f"{MESSAGE} {REMEDY}")):
        asyncio.run(generate(photo, FAILING_PROMPT, seconds=1))

    async def cancelled() -> None:
        call = asyncio.create_task(generate(photo, "a red ball", seconds=100))
        while not (jobs := service.jobs()) or jobs[0].is_over:
            await asyncio.sleep(0.01)
        service.queue.cancel(jobs[0].id)
        await call

    with pytest.raises(Exception, match="ended before its video was finished"):
        asyncio.run(cancelled())
    service.stop()

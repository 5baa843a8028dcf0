"""Tests that an interrupted job continues where it was, and ends in the same bytes."""

import errno
import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event, Warned
from diffusers_helper.families.packing import Mode
from diffusers_helper.files import open_at_once, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.loading.loaders import Models
from diffusers_helper.pipeline import Result, generate
from diffusers_helper.request import GenerationRequest
from tests.support.making import Stop, load_tiny, make, outline, seconds_for, tiny_request, write_scene

pytestmark = pytest.mark.slow
SECTIONS = 3
# What does not depend on the order is tested with one.
ONE_ORDER = pytest.mark.parametrize("mode", ["inverted"], indirect=True)


@pytest.fixture(scope="module", params=["inverted", "forward"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def order(mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> GenerationRequest:
    scene = write_scene(tmp_path_factory.mktemp("scene") / "scene.png")
    return tiny_request(scene, mode=mode, seconds=seconds_for(SECTIONS), steps=1)


@pytest.fixture
def broken(whole: Result, tmp_path: Path) -> Path:
    return shutil.copytree(whole.video.parent, tmp_path / "broken")


@pytest.mark.parametrize(
    ("where", "made"),
    [("sample 2", 1), ("decode 2", 2), ("write 2", 2), ("finished 2/3", 2), ("decode 3", 3)],
)
def test_a_resumed_job_gives_the_same_bytes(
    where: str, made: int, order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == [where]:
            raise Stop

    broken = tmp_path / "broken"
    with pytest.raises(Stop):
        generate(order, models, folder=broken, on_event=stop)
    assert len(list((broken / "sections").iterdir())) == made
    result, events = make(order, models, broken, resume_from=broken)
    assert result.video.read_bytes() == whole.video.read_bytes()
    assert torch.equal(result.latents, whole.latents)
    lines = outline(events)
    sampled = [line for line in lines if line.startswith("sample")]
    assert sampled == [f"sample {n}" for n in range(made + 1, SECTIONS + 1)]
    assert not {"text", "vae_encode", "vision"} & set(lines)


def test_a_file_in_place_of_a_folder_of_the_job_passes(tmp_path: Path) -> None:
    (tmp_path / "segments").write_text("x")
    with pytest.raises(NotADirectoryError) as error:
        write_atomic(tmp_path / "segments" / "0001.mp4", b"")
    assert is_storage_trouble(error.value, tmp_path)  # so the job waits, and then sets the file aside
    assert not is_storage_trouble(error.value, tmp_path / "another")


@ONE_ORDER
@pytest.mark.parametrize("where", ["sample 1", "write 2"])
def test_a_folder_that_is_renamed_gets_no_other_in_its_place(
    where: str, order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    outputs, away = tmp_path / "outputs", tmp_path / "away"
    job = outputs / "job"

    def rename(event: Event) -> None:
        if outline([event]) == [where]:
            outputs.rename(away)

    job.mkdir(parents=True)
    with pytest.raises(OSError, match="No such file") as error:
        generate(order, models, folder=job, on_event=rename)
    assert is_storage_trouble(error.value, job)  # so the job waits
    with pytest.raises(OSError, match="No such file"):
        generate(order, models, folder=job, resume_from=job)
    assert not outputs.exists()
    away.rename(outputs)
    assert make(order, models, job, resume_from=job)[0].video.read_bytes() == whole.video.read_bytes()


@ONE_ORDER
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sections/0002.safetensors", errno.EMFILE), ("encodings.safetensors", errno.EACCES),
        ("segments/sums.json", errno.EIO), ("shortage.json", errno.ENOMEM),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_now_is_not_taken_for_damaged(
    name: str, number: int, order: GenerationRequest, whole: Result, models: Models, broken: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(path: str | Path, flags: int, mode: int = 0o666) -> int:
        if Path(path) == broken / name:
            raise OSError(number, os.strerror(number), str(path))
        return open_at_once(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr("diffusers_helper.files.open_at_once", refuse)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as error:
            generate(order, models, folder=broken, resume_from=broken)
    assert is_storage_trouble(error.value, broken)  # so the job waits
    result, events = make(order, models, broken, resume_from=broken)
    assert result.video.read_bytes() == whole.video.read_bytes()
    assert not any(line.startswith(("sample", "text")) for line in outline(events)), outline(events)
    assert not [event.message for event in events if isinstance(event, Warned)]


@ONE_ORDER
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resolution": 96}, "size '64x64'"),
        ({"crop": 0.25}, "crop"),
        ({"zoom": 2}, "zoom"),
        ({"picture_shape": "9:16"}, "size"),
        ({"image": "other.png"}, "picture"),
    ],
)
def test_latents_of_another_request_are_refused(
    change: dict[str, Any],
    words: str,
    order: GenerationRequest,
    whole: Result,
    models: Models,
    tmp_path: Path,
) -> None:
    if "image" in change:
        change = {"image": str(write_scene(tmp_path / "other.png", 80, 80))}
    with pytest.raises(LongtakeError, match="was made with") as refusal:
        make(replace(order, **change), models, tmp_path / "other", resume_from=whole.video.parent)
    assert words in refusal.value.message


@ONE_ORDER
def test_weights_that_have_changed_are_noticed(
    order: GenerationRequest, whole: Result, tiny_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    weights = next((copy / "transformer").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1  # in a sample
    weights.write_bytes(data)
    with pytest.raises(LongtakeError, match="The files of its model changed"):
        make(order, load_tiny(copy), tmp_path / "job", resume_from=whole.video.parent)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


@ONE_ORDER
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(
    order: GenerationRequest, whole: Result, models: Models, broken: Path
) -> None:
    _flip(broken / "sections" / "0002.safetensors")
    result, events = make(order, models, broken, resume_from=broken)
    assert [line for line in outline(events) if line.startswith("sample")] == ["sample 2", "sample 3"]
    assert "section 2 are damaged" in " ".join(e.message for e in events if isinstance(e, Warned))
    assert torch.equal(result.latents, whole.latents)
    assert result.video.read_bytes() == whole.video.read_bytes()
    second = Path("sections", "0002.safetensors")
    again, before = load_file(broken / second), load_file(whole.video.parent / second)
    assert torch.equal(again["latents"], before["latents"])


@ONE_ORDER
def test_checkpoints_of_version_0_1_are_taken_over(
    order: GenerationRequest, whole: Result, models: Models, tmp_path: Path
) -> None:
    """Resume from files whose checksums bind neither the section's number nor the VAE's settings."""
    sections = tmp_path / "old" / "sections"
    sections.mkdir(parents=True)
    for kept in sorted((whole.video.parent / "sections").iterdir()):
        with safe_open(kept, "pt") as opened:
            facts = {name: opened.metadata()[name] for name in ("origin", "versions")}
            tensor = opened.get_tensor("latents")
        origin = {name: value for name, value in json.loads(facts["origin"]).items() if name[:4] != "vae_"}
        facts["origin"] = json.dumps(origin)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        save_file({"latents": tensor}, sections / kept.name, {**facts, "checksum": digest.hexdigest()})
    result, events = make(order, models, tmp_path / "new", resume_from=tmp_path / "old")
    assert not any(line.startswith("sample") for line in outline(events))
    assert result.video.read_bytes() == whole.video.read_bytes()

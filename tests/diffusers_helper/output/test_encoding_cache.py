"""Tests that a second job with the same words and picture runs no encoder, and gives the same bytes."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from diffusers_helper.events import StageStarted
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.output.checkpoints import EncodingCache
from tests.support.making import load_tiny, make, tiny_request, write_scene

CASE = (
    f"cpu rocm=none torch={torch.__version__} float32 x=1x16x5x64x64 w=16x16x3x3x3 "
    "stride=1x1x1 pad=0x0x0 dilation=1x1x1 groups=1"
)
ENCODERS = {"text", "vision", "vae_encode"}


def encoders(
    models: Models, folder: Path, image: Path, local: Local, **settings: object
) -> tuple[set[str], torch.Tensor]:
    result, events = make(tiny_request(image, steps=1, **settings), models, folder, local=local)
    begun = {event.stage for event in events if isinstance(event, StageStarted)}
    assert {"sample", "decode"} <= begun
    return begun & ENCODERS, result.latents


def test_only_what_is_new_is_encoded(models: Models, small_scene: Path, tmp_path: Path) -> None:
    local = Local(folder=tmp_path / "cache")
    bare, expected = encoders(models, tmp_path / "bare", small_scene, Local())
    first, _ = encoders(models, tmp_path / "first", small_scene, local)
    again, latents = encoders(models, tmp_path / "again", small_scene, local)
    assert (bare, first, again) == (ENCODERS, ENCODERS, set())
    assert torch.equal(latents, expected)
    other = write_scene(tmp_path / "other.png", 64, 48)
    assert encoders(models, tmp_path / "picture", other, local)[0] == {"vision", "vae_encode"}
    assert encoders(models, tmp_path / "words", small_scene, local, prompt="a blue ball")[0] == {"text"}
    begun, latents = encoders(models, tmp_path / "seed", small_scene, local, seed=8)
    assert begun == set()
    assert torch.equal(latents, encoders(models, tmp_path / "bare seed", small_scene, Local(), seed=8)[1])


def test_a_picture_is_encoded_again_where_the_vae_computes_in_another_way(
    tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    models, local = load_tiny(tiny_model), Local(folder=tmp_path / "cache")
    ladder = models.convolutions.ladder

    def job(name: str, **settings: object) -> set[str]:
        return encoders(models, tmp_path / name, small_scene, local, **settings)[0]

    job("first")
    assert job("precision", vae_precision="bf16") == {"vae_encode"}
    assert job("precision again", vae_precision="bf16") == set()
    ladder.block(CASE, "miopen", "It has ended a process.")
    assert job("convolutions") == {"vae_encode"}
    assert job("convolutions again") == set()


def test_one_colour_in_another_shape_is_encoded_anew(models: Models, tmp_path: Path) -> None:
    local = Local(folder=tmp_path / "cache")
    for name, size in {"wide": (64, 48), "high": (48, 64)}.items():
        picture = tmp_path / f"{name}.png"
        Image.new("RGB", size, "red").save(picture)
        assert encoders(models, tmp_path / name, picture, local)[0] >= {"vision", "vae_encode"}


def test_what_became_another_way_while_it_was_encoded_is_kept_as_that(tmp_path: Path) -> None:
    cache, way = EncodingCache(tmp_path / "cache"), ["fast"]

    def fails() -> dict[str, torch.Tensor]:
        way[0] = "safe"
        return {"moments": torch.ones(2)}

    cache.get(lambda: {"way": way[0]}, fails)
    assert torch.equal(cache.get(lambda: {"way": "safe"}, dict)["moments"], torch.ones(2))
    assert cache.get(lambda: {"way": "fast"}, dict) == {}


def test_another_model_encodes_anew(
    models: Models, small_scene: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Local(folder=tmp_path / "cache")
    encoders(models, tmp_path / "first", small_scene, local)
    other = load_tiny(tiny_model)
    monkeypatch.setattr("diffusers_helper.loading.loaders._samples", lambda file: [str(file).encode()])
    assert encoders(other, tmp_path / "other", small_scene, local)[0] == ENCODERS


def test_a_damaged_file_and_a_folder_that_cannot_be_written_end_no_job(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    local = Local(folder=tmp_path / "cache")
    _, expected = encoders(models, tmp_path / "first", small_scene, local)
    files = sorted((tmp_path / "cache" / "encodings").iterdir())
    assert len(files) == 4
    for file in files:
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    begun, latents = encoders(models, tmp_path / "damaged", small_scene, local)
    assert begun == ENCODERS
    assert torch.equal(latents, expected)
    assert encoders(models, tmp_path / "mended", small_scene, local)[0] == set()
    blocked = Local(folder=tmp_path / "blocked")
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "encodings").touch()
    assert encoders(models, tmp_path / "no folder", small_scene, blocked)[0] == ENCODERS


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    made: list[str] = []
    cache = EncodingCache(tmp_path / "cache", 2500)

    def get(name: str) -> None:
        cache.get(lambda: {"texts": name}, lambda: made.append(name) or {"states": torch.ones(200)})

    for name in ("one", "two", "one", "three", "one", "two"):
        get(name)
    assert made == ["one", "two", "three", "two"]
    assert sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) <= 2500

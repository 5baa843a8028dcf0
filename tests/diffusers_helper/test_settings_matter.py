"""Tests that each setting changes what it is about: the pixels of the video, or the plan of its memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.loading.loaders import Models
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import plan_video
from diffusers_helper.request import FINISHING, SETTINGS, GenerationRequest
from diffusers_helper.units import GB
from tests.support.clips import read
from tests.support.films import write_film
from tests.support.loras import write_lora
from tests.support.making import make, tiny_request, write_scene

# What a setting needs beside it, and the change. A name in capitals is a file that the test writes.
Case = tuple[dict[str, Any], dict[str, Any]]
TWO, WORDS = {"seconds": 2.4}, {"image": "", "seconds": 1.0}
ENDS = {**TWO, "end_image": "WIDE"}
PIXELS: dict[str, Case] = {
    "image": ({}, {"image": "WIDE"}), "prompt": ({}, {"prompt": "it stops"}), "seconds": ({}, TWO),
    "negative": ({"cfg": 2.0}, {"negative": "blue"}), "seed": ({}, {"seed": 8}), "steps": ({}, {"steps": 3}),
    "mode": (TWO, {"mode": "forward"}), "resolution": ({}, {"resolution": 96}),
    "guidance": ({}, {"guidance": 1.0}),
    "cfg": ({}, {"cfg": 2.0}), "cfg_rescale": ({"cfg": 4.0}, {"cfg_rescale": 1.0}), "crf": ({}, {"crf": 45}),
    "sampler": ({"steps": 3}, {"sampler": "euler"}), "weight_dtype": ({}, {"weight_dtype": "fp8_e5m2"}),
    "vae_tile": ({"resolution": 128}, {"vae_tile": 64}), "vae_precision": ({}, {"vae_precision": "bf16"}),
    "vae_chunk": ({}, {"vae_chunk": 1}), "crop": ({"image": "WIDE"}, {"crop": 0.0}),
    "lora": ({}, {"lora": "LORA"}), "shift": ({}, {"shift": 9.0}),
    "prompt_blend": ({**TWO, "prompt": "a ball [1.2s: it stops]"}, {"prompt_blend": 1}),
    "step_cache": ({"steps": 8}, {"step_cache": "taylorseer"}), "end_image": (TWO, {"end_image": "WIDE"}),
    "end_crop": (ENDS, {"end_crop": 0.0}), "end_strength": (ENDS, {"end_strength": 0.2}),
    "loop": (TWO, {"loop": "on"}), "video": ({"mode": "forward"}, {"video": "FILM"}),
    "pictures": (TWO, {"pictures": "1.2s: WIDE"}), "shape": (WORDS, {"shape": "16:9"}),
    "one_frame": ({}, {"one_frame": 9}),
    "vision_change": ({**ENDS, "seconds": 3.6}, {"vision_change": "constant"}),
    "extend": ({"video": "FILM"}, {"extend": "before"}),
    "picture_shape": ({}, {"picture_shape": "16:9"}), "zoom": ({}, {"zoom": 2.0}),
    "crop_y": ({"zoom": 2.0}, {"crop_y": 0.0}),
}  # fmt: skip
# How attention is computed may change no bit on a processor.
PLANS: dict[str, Case] = {
    "preserved_gb": ({}, {"preserved_gb": 2.0}), "vram_cap_gb": ({}, {"vram_cap_gb": 12.0}),
    "vae_threshold": ({}, {"vae_threshold": 0.1}),
    "attention": ({}, {"attention": "sliced"}),
}  # fmt: skip
# Each has tests of its own.
ELSEWHERE = {
    "model", "vae_cleanup", "clip_frames", "carried_frames", "hold_colours", "decoder", "kernels", "then",
    *FINISHING,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, deep_models: Models) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    lora = folder / "style.safetensors"
    write_lora(lora, deep_models.component("transformer"))
    return {
        "SCENE": str(write_scene(folder / "scene.png")),
        "WIDE": str(write_scene(folder / "wide.png", 128, 48)),
        "FILM": str(write_film(folder / "film.mp4")), "LORA": f"{lora}:1",
    }  # fmt: skip


def test_every_setting_is_in_a_table() -> None:
    assert PIXELS.keys() | PLANS.keys() | ELSEWHERE == SETTINGS.keys()
    assert not PIXELS.keys() & PLANS.keys()


def filled(settings: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    def with_paths(value: Any) -> Any:
        for name, path in files.items():
            value = value.replace(name, path) if isinstance(value, str) else value
        return value

    return {name: with_paths(value) for name, value in {"image": "SCENE", **settings}.items()}


def _pixels(video: Path) -> bytes:
    return read(video).tobytes()


@pytest.mark.slow
def test_each_setting_changes_the_pixels_of_the_video(
    deep_models: Models, files: dict[str, str], tmp_path: Path
) -> None:
    videos = dict[str, bytes]()

    def video(settings: dict[str, Any]) -> bytes:
        key = str(sorted(settings.items()))
        if key not in videos:
            values = filled(settings, files)
            request = tiny_request(Path(values.pop("image")), **values)
            request = replace(request, image="") if settings.get("image") == "" else request
            videos[key] = _pixels(make(request, deep_models, tmp_path / str(len(videos)))[0].video)
        return videos[key]

    without = {name for name, (base, change) in PIXELS.items() if video(base) == video(base | change)}
    assert without == set()


PROFILE = profile_for(Machine("rocm", "gfx1100", "card", 24 * GB), {})


def published(**settings: Any) -> GenerationRequest:
    return GenerationRequest(**{"image": "none", "model": "framepack-i2v", "prompt": "a ball", **settings})


def plan(request: GenerationRequest) -> tuple[object, ...]:
    video_plan = plan_video(request, find_model(request.model), PROFILE)
    return video_plan.job, video_plan.attention


@pytest.mark.parametrize("name", PLANS)
def test_each_setting_of_the_memory_changes_the_plan(name: str) -> None:
    base, change = PLANS[name]
    assert plan(published(**base)) != plan(published(**base, **change))

"""Tests of LoRAs on the command line: where they are found, what is refused, and that a plan counts them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.jobs import write_picture

PAIR = {
    "transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight": torch.zeros(64, 176),
    "transformer.single_transformer_blocks.0.attn.to_q.lora_B.weight": torch.zeros(176, 64),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "picture.png")
    for file in (tmp_path / "loras" / "styles" / "soft.safetensors", tmp_path / "here.safetensors"):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(PAIR, file)
    return tmp_path


def planned(longtake: Longtake, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in longtake("generate", "--dry-run", "--json", *arguments).splitlines()]


def test_a_lora_is_a_path_or_a_name_in_the_folder(
    place: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ("--image", "picture.png", "--prompt", "a red ball")
    (request,) = planned(longtake, *order, "--lora", "soft:0.5", "--lora", "here.safetensors")
    assert request["lora"] == f"{place}/loras/styles/soft.safetensors:0.5\n{place}/here.safetensors:1"
    (place / "loras").rename(place / "others")
    monkeypatch.setenv("LONGTAKE_LORAS", "others")
    (request,) = planned(longtake, *order, "--lora", "styles/soft")
    assert request["lora"] == f"{place}/others/styles/soft.safetensors:1"
    assert planned(longtake, *order)[0]["lora"] == ""
    assert "a LoRA" in longtake("inspect", "here.safetensors")
    longtake("inspect", "here.safetensors", "--as", "vae", code=2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("none", "--lora names 'none.safetensors', which is not in the folder for LoRAs"),
        ("soft:11", "--lora gives 'soft' the weight 11"),
        ("page.safetensors", "LoRA page.safetensors is a web page"),
        ("tiny.safetensors", "LoRA tiny.safetensors fits this model with 0 of its 2 keys"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(
    given: str, words: str, place: Path, longtake: Longtake
) -> None:
    (place / "page.safetensors").write_text("<html></html>")
    save_file(
        {name: matrix[:64, :64].contiguous() for name, matrix in PAIR.items()}, place / "tiny.safetensors"
    )
    reported = longtake("generate", "--image", "picture.png", "--prompt", "a", "--lora", given, code=2)
    assert reported.startswith(words)
    assert reported.count("\n") == 1
    assert not (place / "outputs").exists()


def test_a_recipe_finds_its_lora_by_name(place: Path, longtake: Longtake) -> None:
    request = GenerationRequest(image="x", prompt="a red ball", lora=f"{place}/soft.safetensors:0.5")
    pinned = f"soft.safetensors:0.5 sha256:{'ab' * 32}"
    recipe = Recipe.of(
        request, (), (), model="demo", side=64, made_with={}, pictures={}, lora=pinned
    )  # fmt: skip
    assert str(place) not in recipe.to_json()
    (place / "recipe.json").write_text(recipe.to_json())
    again = ("--recipe", "recipe.json", "--image", "picture.png")
    assert planned(longtake, *again)[0]["lora"] == f"{place}/loras/styles/{pinned}"
    assert planned(longtake, *again, "--lora", "here.safetensors")[0]["lora"] == f"{place}/here.safetensors:1"


def test_a_batch_names_loras_beside_it(place: Path, longtake: Longtake) -> None:
    folder = place / "batch"
    folder.mkdir()
    (place / "picture.png").rename(folder / "picture.png")
    (place / "here.safetensors").rename(folder / "here.safetensors")
    line = {"image": "picture.png", "prompt": "a red ball"}
    lines = [json.dumps({**line, "lora": text}) for text in ("here.safetensors\nsoft:2", "")]
    (folder / "all.jsonl").write_text("\n".join(lines))
    first, second = planned(longtake, "--batch", "batch/all.jsonl")
    assert first["lora"] == f"{folder}/here.safetensors:1\n{place}/loras/styles/soft.safetensors:2"
    assert second["lora"] == ""
    (folder / "all.jsonl").write_text(json.dumps({**line, "lora": "none"}))
    assert "line 1: --lora names 'none.safetensors'" in longtake(
        "generate", "--dry-run", "--batch", "batch/all.jsonl", code=2
    )


def test_the_plan_counts_a_lora(place: Path, longtake: Longtake) -> None:
    def resident(*arguments: str) -> int:
        stages = json.loads(longtake("plan", "--prompt", "a", "--card", "gfx1100:24", "--json", *arguments))[
            "stages"
        ]
        return next(stage["resident_bytes"] for stage in stages if stage["stage"] == "sample")

    branch = 2 * sum(tensor.numel() for tensor in PAIR.values())
    assert resident("--lora", "soft") == resident() + branch

"""Tests of the examples and the model card: the page and the documents show what the programs make."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from training.card import FIGURES, LASTING, write_card
from training.examples import EXAMPLES, ON_PAGE, draw, save_animation
from training.render import Renderer, make_canvases
from training.scenes import MOTIONS, STILL
from training.train_transformer import CHECKPOINT, DECODER, write_parts

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_offers_the_examples_and_has_their_pictures(tmp_path: Path) -> None:
    facts = json.loads((ROOT / "assets/demo_model/longtake.json").read_text(encoding="utf-8"))
    assert facts["examples"] == list(ON_PAGE)
    draw(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    files = {path.name for path in (ROOT / "assets/examples").iterdir()}
    photograph, *none = {name for name in files if not name.endswith(".webp")} - set(names)
    assert (photograph, none) == ("the-camera-zooms-in-slowly.jpg", [])
    for name in (*names, photograph):
        with Image.open((ROOT / "assets/examples" / name).with_suffix(".webp")) as moving:
            assert (moving.n_frames, moving.size) == (37, (128, 128))
    for name in names:
        made, kept = (
            np.asarray(Image.open(folder / name).convert("RGB"), dtype=int)
            for folder in (tmp_path, ROOT / "assets/examples")
        )
        # Grounds are drawn with trigonometry, which processors round differently.
        assert abs(made - kept).max() <= 2


@pytest.mark.slow
def test_examples_ask_for_what_is_in_the_picture() -> None:
    renderer = Renderer(make_canvases(1, 1))
    for example in EXAMPLES:
        words = set(example.prompt.split())
        assert "camera" in words or {example.things[0].colour, example.things[0].shape} <= words
        picture = example.picture(renderer, 64)
        assert picture.shape == (3, 64, 64)
        assert float(picture.std()) > 0.05


def test_an_animation_shows_every_third_frame(tmp_path: Path) -> None:
    video = torch.full((3, 37, 16, 16), -1.0)
    for frame in range(37):
        video[0, frame] = -1 + frame / 18
    save_animation(tmp_path / "made.gif", video, 32)
    with Image.open(tmp_path / "made.gif") as made:
        assert (made.size, made.n_frames) == ((32, 32), 13)
        assert made.info["duration"] == 100
        made.seek(12)
        assert abs(made.convert("RGB").getpixel((16, 16))[0] - 255) < 12
        made.seek(0)
        assert made.convert("RGB").getpixel((16, 16))[0] < 12


@pytest.fixture
def table() -> dict:
    figures = ("shape_overlap", "rest_psnr", "first_frame_psnr", "photo_psnr")
    table = dict.fromkeys(figures, 0.5) | {f"{name}_lowest": 0.25 for name in figures}
    table |= {"flicker": 0.4, "flicker_highest": 1.2, "join_ratio": 0.9, "join_ratio_highest": 1.1}
    table |= {"vae_psnr": 29.5, "motion_right": 75.0, "motion_right_worst_kind": 25.0}
    table |= {"seconds_for_2s_video": 8.0, "seed": 5, "prompts": 56, "unreadable_cases_left_out": 3}
    table |= {"long_photo_psnr_inverted": 17.25, "long_photo_psnr_forward": 16.75}
    table["motion_right_by_kind"] = dict.fromkeys(MOTIONS, 75.0)
    table["motion_strength_by_kind"] = {name: 0.85 for name in MOTIONS if name != STILL}
    table["motion_right_by_group"] = {"two_sections": 50.0}
    return table


def test_the_card_says_what_was_measured(tmp_path: Path, table: dict) -> None:
    facts = {"steps": 8, "shift": 12.5, "side": 192}
    (tmp_path / "longtake.json").write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / FIGURES).write_text(json.dumps(table), encoding="utf-8")
    lasting = {"changes": "9 of 10", "lasting": [{"prompt": "the ball moves"}]}
    (tmp_path / LASTING).write_text(json.dumps(lasting), encoding="utf-8")
    write_parts(tmp_path / CHECKPOINT, {"step": 123, "spent": 600.0})
    torch.save({"spent": 90.0}, tmp_path / DECODER)
    write_card(tmp_path, tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "192x192 pixels" in card
    assert "| changes | 9 of 10 |" in card
    assert "the ball moves |" not in card
    assert "| moves by, in sides of the picture | 0.19 | 0.1 | 0.31 |" in card
    assert "| grows and shrinks by a factor of | 1.52 | 1.28 | 1.88 |" in card
    assert "for 1.5 minutes of a GPU" in " ".join(card.split())
    assert "56 prompts" in card
    assert "4 of each motion" in " ".join(card.split())
    assert "75.0 %" in card
    assert "| spins | 75 % | 0.85 |" in card
    assert "| stays still | 75 % |  |" in card
    assert "17.2 and 16.8" in card
    assert "| two sections | 50 % |" in card
    assert "0.50 (0.25)" in card
    assert "29.5 dB" in card
    assert "for 123 steps in 10.0 minutes of a GPU" in " ".join(card.split())
    assert "shift of 12.5" in card
    # 1.96 times the standard error of 75 % of 56.
    assert "within 11 points" in " ".join(card.split())
    assert "{" not in card

"""The contact sheets, which show prompts and frames of the resulting videos."""

from pathlib import Path

import torch
from PIL import Image, ImageDraw

from training.figures import Outcome

THUMB = 128
LABEL = 14
COLUMNS = 3
RIGHT, WRONG = (30, 30, 30), (190, 20, 20)


def to_image(picture: torch.Tensor) -> Image.Image:
    """Return a picture (3, H, W) in -1..1 as an image."""
    pixels = (picture.clamp(-1, 1) + 1).mul(127.5).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def tile(outcome: Outcome) -> Image.Image:
    """Return a picture of one video's first, middle and last frame and the true last one, with its prompt."""
    image = Image.new("RGB", (4 * THUMB + 8, THUMB + LABEL), "white")
    overlap = "" if outcome.overlap is None else f", overlap {outcome.overlap:.2f}"
    seen = "" if outcome.right else f" -> {outcome.seen.motion} x{outcome.seen.amount:g}"
    text = f"{outcome.case.prompt or '(empty)'}, {outcome.mode} {outcome.sections}{overlap}{seen}"
    ImageDraw.Draw(image).text((2, 1), text, fill=RIGHT if outcome.right else WRONG)
    for column, picture in enumerate(outcome.thumbs):
        thumb = to_image(picture)
        thumb.thumbnail((THUMB, THUMB))
        image.paste(thumb, (column * THUMB + (8 if column == 3 else 0), LABEL))
    return image


def save_contact_sheet(path: Path, outcomes: list[Outcome]) -> None:
    """Write the tiles of all videos as one picture. The prompts of wrong motions are red."""
    tiles = [tile(outcome) for outcome in outcomes]
    width, height = (tiles[0].width + 8, tiles[0].height + 4) if tiles else (1, 1)
    rows = -(-len(tiles) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width, max(rows, 1) * height), "white")
    for index, image in enumerate(tiles):
        sheet.paste(image, (index % COLUMNS * width, index // COLUMNS * height))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)

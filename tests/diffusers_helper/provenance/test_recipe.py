"""Tests of the recipe in a file: it survives as it is, and a hostile or foreign file is answered in words."""

import contextlib
import io
import itertools
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from diffusers_helper import __version__
from diffusers_helper.conditions.picture_file import load_picture, plain_png
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import MODES
from diffusers_helper.provenance.lineage import Span
from diffusers_helper.provenance.metadata import (
    MAX_PICTURE,
    MAX_TEXT,
    append_pictures,
    png_chunks,
    read_embedded,
)
from diffusers_helper.provenance.recipe import Recipe, VaeUse, read_uses, record_use
from diffusers_helper.provenance.recipe import read_recipe as read_recipe_file
from diffusers_helper.request import SETTINGS, GenerationRequest
from tests.support.clips import parts_of, read, scene, writer

PICTURE = plain_png(Image.effect_noise((96, 64), 90).convert("RGB"))
USES = (VaeUse(0, 128, "fp32", 3),)
SCRIPTS = 'Ein rotes Boot, 红色的船, סירה אדומה, زورق أحمر, लाल नाव, 🛶 "quoted" \\ \u2028 \t end'
NOT_IN_A_RECIPE = {
    "image", "crop", "end_image", "end_crop", "preserved_gb", "vram_cap_gb", "vae_threshold", "vae_cleanup",
    "lora", "video", "extend", "picture_shape", "zoom", "crop_y", "then", "finish", "join", "sound",
}  # fmt: skip
# These are recorded if they are not the defaults.
LATER = {
    "prompt_blend", "shift", "step_cache", "attention", "end_strength", "vision_change", "loop", "pictures",
    "shape", "one_frame", "clip_frames", "carried_frames", "hold_colours", "decoder", "kernels",
}  # fmt: skip


def read_recipe(source: Path | bytes) -> Recipe:
    if isinstance(source, Path):
        return read_recipe_file(source)
    with NamedTemporaryFile() as file:
        file.write(source)
        file.flush()
        return read_recipe_file(Path(file.name))


def recipe_of(**changes: Any) -> Recipe:
    request = GenerationRequest(image="/srv/ada/boat.png", prompt=SCRIPTS, **changes)
    return Recipe.of(
        request, (), USES, model="demo", side=192, made_with={"longtake": "1"}, pictures={"image": PICTURE}
    )  # fmt: skip


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = writer(tmp_path_factory.mktemp("video"), "forward")
    made.recipe = lambda: recipe_of(seed=5, steps=7, mode="forward", weight_dtype="bf16")
    for final, pending in parts_of(scene(37), "forward"):
        made.add_section(final, pending)
    return made.finish()


def test_a_video_carries_its_recipe_and_every_player_can_show_it(video: Path, tmp_path: Path) -> None:
    plain = writer(tmp_path, "forward")
    for final, pending in parts_of(scene(37), "forward"):
        plain.add_section(final, pending)
    bare = plain.finish()
    assert np.array_equal(read(video), read(bare))
    with av.open(str(video)) as opened:
        shown = json.loads(opened.metadata["comment"])
    assert shown["settings"]["prompt"] == SCRIPTS
    # The picture comes after all that a player needs, which is in front of the frames.
    content = video.read_bytes()
    assert content.endswith(PICTURE)
    assert content.index(b"moov") < content.index(b"mdat") < content.index(PICTURE)
    with pytest.raises(InputError, match="holds no settings of Longtake"):
        read_recipe(bare)


def test_a_picture_is_where_every_version_looks_for_it(tmp_path: Path) -> None:
    file = tmp_path / "video.mp4"
    file.write_bytes(b"frames")
    append_pictures(file, {"image": b"abc", "end_image": b"de"})
    boxes = b"\0\0\0\x1buuidlongtake\x80pictureabc" + b"\0\0\0\x24uuidlongtake\x80namepicend_image\0de"
    assert file.read_bytes() == b"frames" + boxes
    # A length of 0 means that a box reaches to the end, and of 1 that the length follows.
    for length in (b"\0\0\0\x1b", b"\0\0\0\0"):
        last = io.BytesIO(b"\0\0\0\x10ftypisom\0\0\0\0" + length + boxes[4:27])
        assert read_embedded(last) == (None, {"image": b"abc"})
    long = b"\0\0\0\x01uuid\0\0\0\0\0\0\0\x23" + boxes[8:27]
    assert read_embedded(io.BytesIO(b"\0\0\0\x10ftypisom\0\0\0\0" + long)) == (None, {"image": b"abc"})
    png = plain_png(Image.new("RGB", (4, 4)), png_chunks("{}", {"image": b"abc", "end_image": b"de"}))
    assert [png.count(chunk) for chunk in (b"\0\0\0\x03ltPcabc", b"\0\0\0\x0cltNpend_image\0de")] == [1, 1]


def test_a_video_from_words_alone_needs_no_picture_and_any_other_does() -> None:
    words = GenerationRequest(image="", prompt="a boat", model="wan-t2v")
    for request, pictures in ((words, {}), (replace(words, image="boat.png"), {"image": "boat.png"})):
        made = Recipe.of(request, (), (), model=request.model, side=480, made_with={}, pictures={})
        back = read_recipe(made.to_json().encode())
        assert back.request(pictures).image == request.image
        assert back.notices == ()
        assert (back.settings.get("image") == "") == (not pictures)


@pytest.mark.parametrize("kind", ["mp4", "png", "json"])
def test_every_setting_comes_back(video: Path, kind: str) -> None:
    made = recipe_of(seed=5, steps=7, mode="forward", weight_dtype="bf16")
    exported = Image.new("RGB", (40, 30), "red")
    source: Path | bytes = {
        "mp4": video,
        "png": plain_png(exported, png_chunks(made.to_json(), made.pictures)),
        "json": made.to_json().encode(),
    }[kind]
    found = read_recipe(source)
    assert found.notices == ()
    assert found.settings == {**made.settings, "vae_tile": 128, "vae_precision": "fp32", "vae_chunk": 3}
    assert set(found.settings) == set(SETTINGS) - NOT_IN_A_RECIPE - LATER
    again = found.request({"image": "boat.png"})
    assert (again.prompt, again.seed, again.steps, again.mode, again.resolution) == (
        SCRIPTS, 5, 7, "forward", 192,
    )  # fmt: skip
    assert found.pictures == ({} if kind == "json" else {"image": PICTURE})
    if found.pictures:
        assert np.array_equal(load_picture(found.pictures["image"]), load_picture(PICTURE))
    if isinstance(source, bytes) and kind == "png":
        assert np.array_equal(load_picture(source), exported)


def test_a_recipe_says_nothing_about_the_machine_or_the_user() -> None:
    request = GenerationRequest(image="/srv/ada/boat.png", model="/srv/ada/models/mine", vram_cap_gb=7.5)
    others = replace(request, image="/tmp/x.png", preserved_gb=3.0, vram_cap_gb=None)
    texts = {
        Recipe.of(one, (), USES, model=None, side=64, made_with={}, pictures={"image": PICTURE}).to_json()
        for one in (request, others)
    }
    (text,) = texts
    assert "ada" not in text
    assert "7.5" not in text
    with pytest.raises(InputError, match="a model in a folder"):
        read_recipe(text.encode()).request({"image": "boat.png"})
    assert read_recipe(text.encode()).request({"image": "boat.png"}, model="demo", seed=3).seed == 3


def test_a_device_of_another_class_and_another_version_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"device": "gfx1100 AMD Radeon RX 7900 XTX", "longtake": __version__}
    request = GenerationRequest(image="boat.png", prompt="x")
    found = Recipe.of(request, (), (), model="demo", side=64, made_with=made, pictures={})
    kept = read_recipe(found.to_json().encode())
    assert kept.notices_on("gfx1100") == kept.notices == ()
    (notice,) = kept.notices_on("cpu")
    assert notice == (
        "The video was made on gfx1100 AMD Radeon RX 7900 XTX; made again on cpu, its bytes will differ."
    )
    (notice,) = replace(kept, made_with=made | {"longtake": "0.0.9"}).notices_on("gfx1100")
    assert notice == f"The video was made with Longtake 0.0.9; made again with {__version__}, it may differ."
    module = "diffusers_helper.provenance.recipe"
    monkeypatch.setattr(f"{module}.kernels_version", lambda name: f"{name} kernels 0.2")
    here, gone = (replace(kept, made_with=made | {"kernels": f"fused kernels 0.{n}"}) for n in (2, 1))
    assert here.notices_on("gfx1100") == ()
    assert "made with fused kernels 0.1, which is not here" in gone.notices_on("gfx1100")[0]


text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=30)
@given(
    prompt=text, negative=text, seed=st.integers(0, 2**63 - 1), mode=st.sampled_from(MODES), data=st.data()
)
def test_any_text_and_any_span_come_back(prompt: str, negative: str, seed: int, mode: Any, data: Any) -> None:
    request = GenerationRequest(
        image="x", prompt=prompt, negative=negative, seed=seed, mode=mode, seconds=12.0
    )
    lasts = data.draw(st.lists(st.integers(1, 9), unique=True, max_size=3).map(sorted))
    spans = [Span.of(last, replace(request, prompt=data.draw(text), seconds=11.0)) for last in lasts]
    made = Recipe.of(request, spans, USES, model="demo", side=64, made_with={}, pictures={"image": PICTURE})
    found = read_recipe(plain_png(load_picture(PICTURE), png_chunks(made.to_json(), {"image": PICTURE})))
    assert (found.spans, found.settings["prompt"], found.notices) == (made.spans, prompt, ())
    assert read_recipe(made.to_json().encode()).request({"image": "x"}).negative == negative
    # A span goes on until the settings change; where they do not, there is one span less.
    all_settings = [span.settings for span in made.spans] + [Span.of(0, request).settings]
    assert all(one != other for one, other in itertools.pairwise(all_settings))


def test_a_request_of_a_job_is_a_recipe_without_a_picture() -> None:
    request = GenerationRequest(image="/srv/ada/boat.png", prompt="a", vram_cap_gb=7.5, vae_tile=96)
    found = read_recipe(request.to_json().encode())
    assert (found.notices, found.pictures) == ((), {})
    assert found.request({"image": "/srv/ada/boat.png"}) == request


def test_what_is_unknown_or_unusable_is_told_and_left_out() -> None:
    data = json.loads(recipe_of(seed=5).to_json())
    data["recipe"] = 9
    data["sound"] = {"of": "waves"}
    data["settings"] |= {"steps": 1000, "style": "boats", "crf": 20, "image": "/etc/passwd"}
    data["vae"] = [{**data["vae"][0]}, {**data["vae"][0], "section": 2, "tile": 64}]
    found = read_recipe(json.dumps(data).encode())
    assert (found.settings["seed"], found.settings["crf"], found.settings["vae_tile"]) == (5, 20, 64)
    assert found.settings.keys() & {"steps", "style", "image"} == set()
    reported = "\n".join(found.notices)
    for words in ("version 9", "not know: 'sound, style'.", "`steps` is 1000", "changed within this video"):
        assert words in reported
    assert len(found.notices) == 4
    for span, fault in (
        ({"sections": 1, "settings": {"model": "other"}}, "'model'"), ({"sections": 0, "settings": {}}, "0"),
        ({"sections": -4, "settings": {}}, "-4"),
    ):  # fmt: skip
        data["earlier"] = [span]
        found = read_recipe(json.dumps(data).encode())
        assert (found.spans, found.vae) == ((), ())
        assert f"another form than this version knows ({fault})" in found.notices[-1]


def _boxes(*boxes: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack(">I4s", 8 + len(content), kind) + content for kind, content in boxes)


def _mp4(comment: bytes, *more: tuple[bytes, bytes]) -> bytes:
    ilst = _boxes((b"\xa9cmt", _boxes((b"data", bytes(8) + comment))))
    meta = bytes(4) + _boxes((b"ilst", ilst))
    return _boxes((b"ftyp", bytes(16)), (b"moov", _boxes((b"udta", _boxes((b"meta", meta))))), *more)


HEAD = _boxes((b"ftyp", bytes(16)))
SMALL = Image.new("RGB", (16, 16))
PNG = plain_png(SMALL)


def with_recipe(text: str) -> bytes:
    return plain_png(SMALL, png_chunks(text, {"image": PICTURE}))


GOOD = recipe_of().to_json()
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "another kind": (b"\xff\xd8\xff\xe0" + bytes(999), "is not JSON"),
    "nested": (b'{"recipe":1,"settings":' + b"[" * 200_000, "is not JSON"),
    "not a number": (b'{"recipe": NaN}', "is not JSON"),
    "a list": (b"[1]", "none of the settings"),
    "other JSON": (b'{"nodes": []}', "none of the settings"),
    "no settings": (b'{"recipe": 1}', "none of the settings"),
    "long text": (b'"' + b"x" * (MAX_TEXT + 1), "4 MiB of text"),
    "box over the end": (HEAD + struct.pack(">I4s", 2**31, b"moov"), "extends past the end"),
    "huge box": (HEAD + struct.pack(">I4sQ", 1, b"mdat", 2**63) + bytes(99), "extends past the end"),
    "tiny box": (HEAD + struct.pack(">I4s", 3, b"moov") + bytes(99), "extends past the end"),
    "torn header": (HEAD + b"\0\0", "ends early"),
    "no comment": (HEAD + _boxes((b"moov", _boxes((b"mvhd", bytes(9))))), "not made by Longtake"),
    "comment of others": (_mp4(b"made on holiday"), "is not JSON"),
    "long comment": (_mp4(b" " * (MAX_TEXT + 1)), "4 MiB of text"),
    "not UTF-8": (_mp4(b'{"recipe": 1, "settings": {"prompt": "\xff"}}'), "is not JSON"),
    "no chunk": (PNG, "not made by Longtake"),
    "cut PNG": (with_recipe(GOOD)[:-900], "Truncated File Read"),
    "changed picture": (with_recipe(GOOD).replace(PICTURE, PICTURE[:-1] + b"x"), "broken PNG file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_answered_in_a_sentence(name: str, tmp_path: Path) -> None:
    content, words = HOSTILE[name]
    (tmp_path / "film.mp4").write_bytes(content)
    for source in (content, tmp_path / "film.mp4"):
        with pytest.raises(InputError) as refusal:
            read_recipe(source)
        assert words in refusal.value.message
        assert refusal.value.remedy


def test_a_picture_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "film.mp4"
    file.write_bytes(_mp4(GOOD.encode()))
    append_pictures(file, {"image": PICTURE})
    assert read_recipe(file).pictures == {"image": PICTURE}
    with file.open("r+b") as opened:  # a sparse file, which takes no room
        opened.seek(len(_mp4(GOOD.encode())))
        opened.write(struct.pack(">I", 24 + MAX_PICTURE + 1))
        opened.truncate(len(_mp4(GOOD.encode())) + 24 + MAX_PICTURE + 1)
    with pytest.raises(InputError, match="larger than any recipe"):
        read_recipe(file)


def test_a_compressed_text_is_read_within_bounds() -> None:
    def packed(text: bytes) -> bytes:
        content = b"Longtake recipe\0\1\0\0\0" + zlib.compress(text)
        chunk = struct.pack(">I4s", len(content), b"iTXt") + content
        return PNG[:33] + chunk + struct.pack(">I", zlib.crc32(chunk[4:])) + PNG[33:]

    assert read_recipe(packed(GOOD.encode())).settings["prompt"] == SCRIPTS
    with pytest.raises(InputError, match="Decompressed data too large"):
        read_recipe(packed(b" " * 3 * MAX_TEXT))


@given(st.data())
def test_no_damage_ends_in_anything_but_a_sentence(data: Any) -> None:
    sound = data.draw(st.sampled_from([_mp4(GOOD.encode()), with_recipe(GOOD), GOOD.encode()]))
    content = bytearray(sound[: data.draw(st.integers(0, len(sound)))])
    for place in data.draw(st.lists(st.integers(0, 400), max_size=5)):
        if place < len(content):
            content[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InputError):
        read_recipe(bytes(content))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.mp4 cannot be read"):
        read_recipe(tmp_path / "none.mp4")


def test_the_record_of_the_vae_keeps_the_sections_where_its_way_changed(tmp_path: Path) -> None:
    file = tmp_path / "vae.json"
    assert read_uses(file) == ()
    for section, tile in enumerate((256, 256, 128, 128)):
        record_use(file, VaeUse(section, tile, "fp16", 3))
    assert read_uses(file) == (VaeUse(0, 256, "fp16", 3), VaeUse(2, 128, "fp16", 3))
    record_use(file, VaeUse(2, 256, "fp16", 3))  # this section was made again
    assert read_uses(file) == (VaeUse(0, 256, "fp16", 3),)
    file.write_text("[{}]")
    assert read_uses(file) == ()

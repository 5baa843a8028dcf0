"""Prompts with times as everything that is understood, done and said of them; and every refused picture."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.conditions.picture_file import MAX_BYTES, load_picture
from diffusers_helper.conditions.pictures import pictures_of, start_picture_of
from diffusers_helper.conditions.timeline import (
    Timeline,
    all_prompts,
    blend_prompts,
    cuts_of,
    drafted_prompts,
    lora_weights_of,
    prompts_of,
    seed_of,
    steps_of,
    with_prompts,
)
from diffusers_helper.conditions.times import time_notes
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import MODES
from diffusers_helper.models.registry import find_model
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import GenerationRequest
from diffusers_helper.timed_pictures import pictures_summary, timed_pictures_of
from tests.support.answers import text_of, without

SECTION, COUNT = 1.2, 4
PROMPTS = """a|a [2.4s: b]
a [1.2s-2.4s: b]|a [0s: b][2.4s: c]|[2.4s: c] [0s: b]|[1.2s: b]|[0s-1.2s: b] [2.4s: c]
a [0s: b] [1.2s-2.4s: c]|a [1.7s: b]|a [1.8s: b]|a [1.9s: b]|a [1.2s-1.3s: b]|a [9s: b]
a [0s-4.8s: b] [2.4s: c]|a [ 2.4 s -  4.8s : b ]|a [3.6s:b] [2.4s:c]|a [0s:] [2.4s: b]
rest [0s: a] [1.8s: b]|[a] ball (red) [2.4: x]|  spaces  stay |[s: x] [-1s: y]|[1s x]|a [1,5s: b]
a [0:02: b]|a [1:02,5: b]|a [0:01:00 : b]|a [2 sec: b]|a [2 Seconds: b]|a [2S:b]|a [2s：b]|a [2–4s: b]
a [2s-4: b]|a [0:02-0:04: b]|a [2,4s — 4,8s: b]|a [2s x]|a [2.4s: b|a [-1s: y]|a [2-4: x]|a [0:02 x]
a [2s]|2s: it jumps|a (2.4s: b)|a [2.4s: b [c] d]|a [red] ball (1:2)|[3 balls], 16:9 film
at 0:30 or 12:30|[3]|a [2.4s: b] [2.5s: c]|a [2.4s-9s: b] [9s: c] [9s: seed 7] [1s: seed 3]
a [2.4s: b] [1.2s-2.4s: seed 0] [3.6s: seed 8]
a [1.2s: lora film:0.5] [1.2s-2.4s: lora dog-2:-1] [3.6s: lora film:2]|a [3s-2s: b]|a [2s-2s: b]
[1.2s: seed 9999999999999999999]|[1.2s: lora film:11]|a [1s-2.4s: b] [2.5s-99s: c]"""


def request(prompt: str, **settings: object) -> GenerationRequest:
    return GenerationRequest.from_dict({"image": "a.png", "prompt": prompt, "seconds": 4.8, **settings})


def test_what_prompts_say(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for prompt in PROMPTS.replace("\n", "|").split("|"):
        try:
            timeline = Timeline.of(prompt)
        except InputError as error:
            lines.append(f"{prompt!r}: {error.message} {error.remedy}")
            continue
        texts = timeline.prompts_by_section(COUNT, SECTION)
        others = timeline.seeds_by_section(COUNT, SECTION), timeline.weights_by_section(COUNT, SECTION)
        settings = f" {text_of(others)}" if timeline.overrides else ""
        moved = [cue.rounded_times(COUNT, SECTION) for cue in timeline.cues]
        lines.append(
            f"{prompt!r}: {text_of(texts)}{settings} | {timeline}{f' {text_of(moved)}' if any(moved) else ''}"
        )
        lines += [f"  {note}" for note in time_notes(request(prompt), FRAMEPACK)]
    assert "\n".join(lines) == snapshot


def test_words_of_sections_become_a_prompt(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for prompt, words in (
        ("", "aaaa"), ("", "aabb"), ("a", "abaa"), ("a", "bbbb"), ("a [2.4s: b]", "ccbb"),
        ("a [2.4s: b]", "aacc"), ("a [0s: b] [2.4s: c]", "bbdd"), ("[0s: b] [2.4s: c]", "bbdd"),
        ("a [9s: b]", "aacc"), ("a [1.2s: b]", "a..b"), (" a  [1.3s:  b ]", "abbb"), ("a [4.8s: b]", "aabb"),
        ("a [2.4s: b] [1.2s-2.4s: seed 0] [3.6s: seed 8]", "acbb"),
    ):  # fmt: skip
        texts = [text.replace(".", "") for text in words]
        lines.append(f"{prompt!r} with {words}: {with_prompts(prompt, texts, SECTION)!r}")
    assert "\n".join(lines) == snapshot


def test_what_each_section_of_a_video_gets(snapshot: SnapshotAssertion) -> None:
    info, lines = find_model("framepack-i2v"), list[str]()
    loras = "x/film.safetensors:1\ny/dog-2.safetensors:0.3"
    changing = "a [1.2s: lora film:0.5] [1.2s-2.4s: lora dog-2:-1] [3.6s: lora film:2]"
    pictures = "1.2s: p.png\n2.4s@1: q.png"
    for prompt, settings in (
        ("a [2.4s: b]", {}), ("a [1.2s: b] [2.4s: a]", {"negative": "n", "cfg": 2}),
        ("a [2.4s: b] [1.2s-2.4s: seed 0] [3.6s: seed 8]", {"seed": 5}), (changing, {"lora": loras}),
        ("a [1.2s: b] [3.6s: c]", {"prompt_blend": 2}), ("a", {"end_image": "y", "end_strength": 0.5}),
        ("a", {"end_image": "y", "vision_change": "constant"}), ("a [2.4s: b]", {"pictures": pictures}),
        ("a [2.4s: b]", {"pictures": pictures, "end_image": "y", "end_strength": 0.5}),
        ("a [1.2s: b] [3.6s: c]", {}),
        ("a [1.2s: b] [3.6s: c]", {"pictures": "2.4s: x.png\n4.8s: y.png"}),
        ("a", {"end_image": "y", "seconds": 1.0}),
    ):  # fmt: skip
        for mode in MODES:
            whole = request(prompt, mode=mode, **settings)
            lines.append(f"{prompt!r} {settings} {mode}: {all_prompts(whole, Lineage(), FRAMEPACK)}")
            lines[-1] += f" cuts {cuts_of(whole, FRAMEPACK)} steps {steps_of(whole, info)}"
            plan, sections = Lineage().sections(whole, FRAMEPACK, cuts_of(whole, FRAMEPACK)), list[str]()
            lines[-1] += f" before {[section.padding for section in plan]}"
            for number in range(1, len(plan) + 1):
                facts = (
                    prompts_of(number, whole, FRAMEPACK), pictures_of(number, whole, FRAMEPACK),
                    start_picture_of(number, whole, FRAMEPACK), seed_of(number, whole, FRAMEPACK),
                    lora_weights_of(number, whole, FRAMEPACK), drafted_prompts(number, whole, FRAMEPACK),
                )  # fmt: skip
                sections.append(text_of([fact for fact in facts if fact]))
            lines.append(f"  {' | '.join(sections)}")
    looped = request("a [2.4s-3.6s: b]", seconds=3.6, loop="on", mode="inverted")
    single = request("a", mode="inverted", one_frame=9, pictures="0s: z\n1s: u")
    closing = [
        prompts_of(4, looped, FRAMEPACK),
        pictures_of(4, looped, FRAMEPACK),
        cuts_of(looped, FRAMEPACK),
    ]
    closing += [drafted_prompts(number, looped, FRAMEPACK) for number in (1, 2, 3, 4)]
    lines += [text_of(closing), text_of(pictures_of(1, single, FRAMEPACK))]
    texts = ("a", "a", "b", "b", "b", "c")
    lines += [text_of([blend_prompts(texts, place, blend) for place in range(6)]) for blend in (0, 1, 2)]
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize("mode", MODES)
def test_kept_sections_of_a_branch_keep_their_words_and_seeds(mode: str) -> None:
    before = request("a [1.2s: b] [1.2s-2.4s: seed 0]", seconds=3.6, seed=5, mode=mode)
    after = request("c [2.4s: d]", seed=9, mode=mode)
    branch = Lineage((Span.of(1, before),))
    copy = branch.request_for(1, after)
    for of in (prompts_of, seed_of):
        assert of(1, copy, FRAMEPACK) == of(1, before, FRAMEPACK)
    assert branch.request_for(2, after) == after


def test_pictures_at_times(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for text in (
        "1,5s: p.png", "0:02: p.png", "2 sec@0.25: p.png", "2S: p.png", "2s@1: q.png\n\n 1s@.5 :a b.png ",
        "2s p.png", "2s@2: p.png", "s: p.png", "\n".join(f"{n}s: p.png" for n in range(17)),
    ):  # fmt: skip
        try:
            pictures = timed_pictures_of(text)
            lines.append(f"{text!r}: {'; '.join(map(str, pictures))} | {pictures_summary(text)}")
        except InputError as error:
            lines.append(f"{text!r}: {error.message} {error.remedy}")
    timed = "1s: p.png\n2.4s: q.png\n2,5s: r.png\n4.8s: s.png"
    lines += time_notes(request("a", pictures=timed), FRAMEPACK)
    assert time_notes(request("a", pictures=timed, one_frame=9, mode="inverted"), FRAMEPACK) == []
    assert "\n".join(lines) == snapshot


def png(width: int, height: int) -> bytes:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", b""),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def dng() -> bytes:
    tags = ImageFileDirectory_v2()
    tags[50706] = b"\1\4\0\0"  # the version of DNG
    tags.tagtype[50706] = 1
    return encoded(Image.new("RGB", (64, 48)), "TIFF", tiffinfo=tags)


SCENE = Image.new("RGB", (64, 48), (200, 60, 30))
REFUSED: dict[str, Callable[[], bytes]] = {
    "text.jpg": lambda: b"not a picture", "empty.png": lambda: b"", "small.png": lambda: png(1, 1),
    "low.png": lambda: encoded(Image.new("RGB", (200, 15))), "wide.png": lambda: png(8001, 8000),
    "bomb.png": lambda: png(2**31 - 1, 2**31 - 1), "a.DNG": dng, "renamed.tif": dng, "a.dng": lambda: b"any",
    **{f"a.{ending}": lambda: encoded(SCENE, "TIFF") for ending in ("cr2", "NEF", "arw", "pef")},
    **{f"a.{ending}": lambda: b"any" for ending in ("CR3", "raf", "orf", "rw2", "svg")},
    **{f"a.{kind}": lambda kind=kind: encoded(SCENE, kind) for kind in ("PPM", "TGA", "PCX", "ICO", "EPS")},
    "float.tif": lambda: encoded(Image.fromarray(np.zeros((32, 32), np.float32)), "TIFF"),
    "a.jxl": lambda: b"\xff\x0a" + bytes(50), "b.jpg": lambda: b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(50),
}  # fmt: skip


def test_pictures_that_are_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for name, content in REFUSED.items():
        (tmp_path / name).write_bytes(content())
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    for name in (*REFUSED, "large.png", "pipe", "", "missing.png", "a" * 5000):
        with pytest.raises(InputError) as refused:
            load_picture(tmp_path / name)
        message = without(refused.value.message, folder=tmp_path).replace("a" * 5000, "aa...")
        lines.append(f"{message} {refused.value.remedy}")
    assert "\n".join(lines) == snapshot

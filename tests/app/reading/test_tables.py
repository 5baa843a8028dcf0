"""Tests of tables: what a spreadsheet program of any language writes gives the request that was typed in."""

import csv
import io
import json
import re
from itertools import product
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from app.batch import MAX_BYTES, read_batch
from app.reading.tables import table_rows
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture
from tests.support.transcripts import own_settings

PROMPT = 'the "caméra", it pans; left\tand on…'
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]
MIXTURES = list(product(",;\t", ["\n", "\r\n", "\r"], ENCODINGS))


@pytest.fixture(autouse=True)
def photo(tmp_path: Path) -> Path:
    write_picture(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def entries_of(folder: Path, content: bytes | str, name: str = "a.csv") -> list[GenerationRequest | str]:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_batch(file, {}).values())


def request_of(folder: Path, content: bytes | str, name: str = "a.csv") -> GenerationRequest:
    (entry,) = entries_of(folder, content, name)
    assert isinstance(entry, GenerationRequest), entry
    return entry


@pytest.mark.parametrize(("separator", "end", "encoding"), MIXTURES)
def test_each_mixture_of_separators_line_ends_and_encodings_gives_the_same_request(
    tmp_path: Path, photo: Path, separator: str, end: str, encoding: str
) -> None:
    for first, empty_columns, seconds in product(
        ["", "sep={}", '"sep={}"', "sep={}{}"], (0, 2), ("1.5", "1,5")
    ):
        text = io.StringIO(newline="")
        rows = csv.writer(text, delimiter=separator, lineterminator=end)
        empty = [""] * empty_columns
        rows.writerows([["IMAGE", "Prompt ", " seconds", *empty], ["", "", "", *empty]])
        rows.writerow(["photo.png", PROMPT, seconds, *empty])
        lines = f"{first.format(separator, separator)}{end if first else ''}{text.getvalue()}"
        request = request_of(tmp_path, lines.encode(encoding), "a.CSV" if empty else "a.txt")
        assert (request.prompt, request.seconds, request.image) == (PROMPT, 1.5, str(photo)), lines


NUMBERS = ("1,5", ",5", "1.234,5", "1,234.5", "7", "a,5", "1.234.567,5", "1,2,3", "1 000", "-1,5", "1.", "")
CHOICES = {
    "loop": ("WAHR", "TRUE", "VRAI", "FALSCH", "On", "yes"), "shape": ("16:09", "04:03:00", "16:9"),
    "mode": ("Forward",), "vae_tile": ("Auto", "96"), "prompt": ("WAHR", "a,5", " two  words "),
}  # fmt: skip
# Tables, and their encodings.
TABLES: list[tuple[str, str]] = [
    ('prompt\na, b; c\n\n"d, e"\n"f\ng"\n', "utf-8"),
    ("seconds;prompt\r\n1;Ålesund på kvelden – “déjà vu”, 3×\r\n", "cp1252"),
    ("seconds;prompt\r\n1;El niño corre mañana\r\n", "cp1252"),
    ("seconds;prompt\r\n1;Красная лодка плывёт по реке №1\r\n", "cp1251"),
    ("seconds;prompt\r\n1;赤い船が、川を下る。\r\n", "cp932"),
    ("seconds;prompt\r\n1;红色的船，在河上航行。\r\n", "gb18030"),
    ("prompt\n빨간 배", "cp949"), ("prompt\n紅色的船在河上", "big5"), ("prompt\nZażółć gęślą jaźń", "cp1250"),
    ("prompt\nлодка плывёт", "koi8_r"), ("prompt\nτο κόκκινο καράβι", "cp1253"), ("\xff\xfe", "latin-1"),
    *((f"prompt\n{text}\nle gar\udce7on\n", "utf-8") for text in ("the caméra", "it’s late", "« à la mer »")),
    ("", "utf-8"), ("prompt,seconds\n", "utf-8"), ("sep=;\n", "utf-8"), ("\n;;\n", "utf-8"),
    ("PK\x03\x04\x14\0\x06\0", "utf-8"), ("\xd0\xcf\x11\xe0\xa1\xb1", "latin-1"),
    ("image;promt\nphoto.png;a", "utf-8"), ("image;seconds\nphoto.png;long", "utf-8"),
    ("image;prompt\nphoto.png;a;b", "utf-8"), ("image;;prompt\nphoto.png;a;b", "utf-8"),
    ("Image;image \nphoto.png;photo.png", "utf-8"),
    ('image,prompt,seed\nphoto.png,"a\nb",five\nphoto.png,a,1,2\nphoto.png,a,7.0\nphoto.png,"open', "utf-8"),
]  # fmt: skip
LINES = (
    '{"image": "photo.png", "prompt": "a"}', '{"image": "photo.png"', "# a remark", "[1]", "[" * 100_000,
    '{"image": "photo.png", "steps": 1000}', '{"image": "photo.png", "style": "x"}', '{"seed": 1}', "",
    '{"image": "none.png"}', '{"image": "text.png"}', '{"image": "photo.png", "model": "none"}',
    '{"image": "photo.png", "model": 3}', '{"image": "~nobody-of-that-name/photo.png"}',
)  # fmt: skip


def told(folder: Path, content: bytes, name: str) -> list[str]:
    (folder / name).write_bytes(content)
    try:
        entries = read_batch(folder / name, {"steps": 7})
    except InputError as error:
        return [str(error)]
    return [
        f"{line}: {entry if isinstance(entry, str) else own_settings(json.loads(entry.to_json()))}".replace(
            str(folder), "TMP"
        )
        for line, entry in entries.items()
    ]


def test_what_tables_and_lines_are_read_as(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    cells = [("seconds", field) for field in NUMBERS]
    cells += [(name, field) for name, fields in CHOICES.items() for field in fields]
    lines = [f"{name} {field!r}: {[*table_rows(chr(10).join((name, field, '')))]}" for name, field in cells]
    for text, encoding in TABLES:
        content = text.encode(encoding, "surrogateescape")
        lines.append(" | ".join([f"{text!r} in {encoding}", *told(tmp_path, content, "a.csv")]))
    (tmp_path / "text.png").write_text("no picture")
    lines += ["> lines", *told(tmp_path, "\n".join(LINES).encode(), "a.jsonl")]
    lines += ["> empty", *told(tmp_path, b"", "a.jsonl"), *told(tmp_path, b"PK\x03\x04", "a.xlsx")]
    lines += ["> binary", *told(tmp_path, b"\xff\xfe", "a.jsonl")]
    lines += ["> too long", *told(tmp_path, b" " * (MAX_BYTES + 1), "a.jsonl")]
    # What Python says of JSON depends on its version.
    assert re.sub(r"(It is not JSON) \(.*\)\.", r"\1.", "\n".join(lines)) == snapshot

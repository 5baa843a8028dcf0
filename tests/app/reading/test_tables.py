"""Tests of tables: what a spreadsheet program of any language writes gives the request that was typed in."""

import csv
import io
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from app.batch import read_batch
from app.reading.tables import decoded, table_rows
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture

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


def values_of(name: str, field: str) -> Any:
    ((_, settings),) = table_rows(f"{name}\n{field}\n")
    assert isinstance(settings, dict), settings
    return settings[name]


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


def test_one_column_has_no_separator(tmp_path: Path) -> None:
    entries = entries_of(tmp_path, 'prompt\na, b; c\n\n"d, e"\n"f\ng"\n')
    assert [getattr(entry, "prompt", entry) for entry in entries] == ["a, b; c", "d, e", "f\ng"]


@pytest.mark.parametrize(
    ("encoding", "prompt"),
    [
        ("cp1252", "Ålesund på kvelden – “déjà vu”, 3×"),
        ("cp1252", "El niño corre mañana"),
        ("cp1251", "Красная лодка плывёт по реке №1"),
        ("cp932", "赤い船が、川を下る。"),
        ("gb18030", "红色的船，在河上航行。"),
    ],
)
def test_encodings_of_windows_are_recognised_by_their_words(
    tmp_path: Path, encoding: str, prompt: str
) -> None:
    assert request_of(tmp_path, f"seconds;prompt\r\n1;{prompt}\r\n".encode(encoding)).prompt == prompt


@pytest.mark.parametrize("encoding", ["cp949", "big5", "cp1250", "koi8_r", "cp1253"])
def test_an_encoding_that_is_not_certain_is_refused(encoding: str) -> None:
    texts = {
        "cp949": "빨간 배", "big5": "紅色的船在河上", "cp1250": "Zażółć gęślą jaźń", "koi8_r": "лодка плывёт",
        "cp1253": "το κόκκινο καράβι",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"a\.csv is in an encoding that is not certain; expected .* UTF-8"):
        decoded(f"prompt\n{texts[encoding]}".encode(encoding), "a.csv")


@pytest.mark.parametrize("text", ["the caméra", "it’s late", "« à la mer »"])
def test_a_mixture_of_encodings_is_refused(text: str) -> None:
    lines = f"prompt\n{text}\n".encode() + "le garçon\n".encode("cp1252")
    with pytest.raises(InputError, match="an encoding that is not certain"):
        decoded(lines, "a.csv")


@pytest.mark.parametrize("content", [b"PK\x03\x04\x14\0\x06\0", b"\xd0\xcf\x11\xe0\xa1\xb1"])
@pytest.mark.parametrize("name", ["a.xlsx", "a.csv"])
def test_a_workbook_is_refused_with_what_to_save(tmp_path: Path, content: bytes, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} is a workbook; .* Save its sheet as CSV UTF-8"):
        entries_of(tmp_path, content, name)


@pytest.mark.parametrize("content", ["", "prompt,seconds\n", "sep=;\n", "\n;;\n"])
def test_a_table_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match=r"a\.csv has no line with a video"):
        entries_of(tmp_path, content)


@pytest.mark.parametrize(
    ("field", "value"),
    [("1,5", 1.5), (",5", 0.5), ("1.234,5", 1234.5), ("1,234.5", 1234.5), ("7", 7), ("a,5", "a,5"),
     ("1.234.567,5", 1234567.5), ("1,2,3", "1,2,3")],
)  # fmt: skip
def test_numbers_have_a_decimal_point_or_comma(field: str, value: float | str) -> None:
    assert values_of("seconds", field) == value


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("loop", "WAHR", "on"), ("loop", "TRUE", "on"), ("loop", "VRAI", "on"), ("loop", "FALSCH", "off"),
     ("loop", "On", "on"), ("loop", "yes", "yes"), ("shape", "16:09", "16:9"), ("shape", "04:03:00", "4:3"),
     ("mode", "Forward", "forward"), ("vae_tile", "Auto", None), ("prompt", "WAHR", "WAHR")],
)  # fmt: skip
def test_what_a_spreadsheet_makes_of_a_choice_is_understood(name: str, field: str, value: str | None) -> None:
    assert values_of(name, field) == value


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("image;promt\nphoto.png;a", "'promt' is not a setting; expected one of prompt, prompt_blend."),
        ("image;seconds\nphoto.png;long", "`seconds` is 'long'; expected a number from 1 to 120."),
        ("image;prompt\nphoto.png;a;b", "It has 3 fields, and the first line has 2 names, none for 'b'."),
        ("image;;prompt\nphoto.png;a;b", "It has 3 fields, and the first line has 2 names, none for 'a'."),
        ("Image;image \nphoto.png;photo.png", "The column 'image' appears twice. Remove one of them."),
    ],
)
def test_a_mistake_is_told_with_its_column(tmp_path: Path, content: str, problem: str) -> None:
    (entry,) = entries_of(tmp_path, content)
    assert str(entry).startswith(problem)

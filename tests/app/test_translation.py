"""Tests of the catalogues, and of the texts that are found again in them."""

import json
from typing import Any

import pytest

from app.languages.translation import (
    FOLDER,
    LANGUAGES,
    PLACEHOLDER,
    Translation,
    negotiated,
    spoken,
    translation,
)
from scripts import translate

OTHERS = [language for language in LANGUAGES if language != "en"]
MESSAGES: dict[str, Any] = {
    "Section {section} of {sections}": "Abschnitt {section} von {sections}",
    "The picture {name} cannot be read ({reason}).": "{reason}: {name} ist unlesbar.",
    "No such file": "Keine solche Datei",
    "part {piece} of {pieces}": "Teil {piece} von {pieces}",
    "{value} left": "noch {value}",
    "It is its turn.": "Es ist an der Reihe.",
    "exact": "genau",
    "tiles that fit; larger ones abort": "passende Kacheln, größere brechen ab",
    "Watch it": "Ansehen",
    "{now} of {whole} seconds": "{now} von {whole} Sekunden",
    "a video of 5 s takes {time}": "ein Video von 5 s dauert {time}",
    "Folder": "Ordner",
    "{count} frame": {"one": "{count} Bild", "other": "{count} Bilder"},
    "{count} frames": {"one": "{count} Bild", "other": "{count} Bilder"},
}
GERMAN = Translation("de", MESSAGES)


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("Watch it", "Ansehen"),
        ("  Watch it\n", "  Ansehen\n"),
        ("Section 2 of 12", "Abschnitt 2 von 12"),
        ("Section 2 of 12, part 1 of 3 · 12 s left", "Abschnitt 2 von 12, Teil 1 von 3 · noch 12 s"),
        ("The picture a b.png cannot be read (No such file).", "Keine solche Datei: a b.png ist unlesbar."),
        ("1 frame, 73 frames", "1 Bild, 73 Bilder"),
        ("It is its turn. Watch it.", "Es ist an der Reihe. Ansehen."),
        ("cpu (tiles that fit; larger ones abort)", "cpu (passende Kacheln, größere brechen ab)"),
        ("1.25 s of v2.13.0, 0.5", "1,25 s of v2.13.0, 0,5"),
        ("memory  2.5 of 5 seconds", "memory  2,5 von 5 Sekunden"),
        ("Watch it  Watch it   exact  x", "Ansehen   Ansehen    genau  x"),
        ("It is its turn.   exact   x", "Es ist an der Reihe.  genau  x"),
        ("exact     It is its turn.   x", "genau     Es ist an der Reihe.  x"),
        ("12 MB · a video of 5 s takes a few seconds", "12 MB · ein Video von 5 s dauert a few seconds"),
        ("A sentence that nobody translated.", "A sentence that nobody translated."),
        ("Exact. A video of 5 s takes 2 h", "Genau. Ein Video von 5 s dauert 2 h"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_text_is_found_again_by_its_template_and_columns_stay_in_line(english: str, german: str) -> None:
    assert GERMAN.text(english) == german
    assert Translation("en").text(english) == english


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("unit", ["step", "frame"])
def test_the_whole_template_counts_where_a_shorter_one_fits_too(language: str, unit: str) -> None:
    template = f"Section {{number}} of {{total}}, {unit} {{step}} of {{steps}}"
    values = {"number": "2", "total": "3", "step": "10", "steps": "24"}
    expected = translation(language)._messages[template].format_map(values)
    assert translation(language).text(template.format_map(values)) == expected


def test_a_column_begins_where_it_began_also_after_wide_characters() -> None:
    assert Translation("ja", {"card": "カード"}).text("card      x") == "カード    x"


def test_numbers_take_the_forms_of_the_language() -> None:
    forms = {
        "one": "{count} кадр",
        "few": "{count} кадра",
        "many": "{count} кадров",
        "other": "{count} кадра",
    }
    russian = Translation("ru", {"{count} frames": forms, "{count} frame": forms})
    texts = [russian.text(text) for text in ("1 frame", "2 frames", "5 frames", "21 frames")]
    assert texts == ["1 кадр", "2 кадра", "5 кадров", "21 кадр"]


def test_markup_keeps_all_but_its_texts() -> None:
    markup = (
        '<p class="Folder" title="Folder">Watch it &amp; <b>Folder</b><br><img src="Folder" alt="Folder"></p>'
        '<p translate="no"><i>Folder</i><input value="Folder"></p><script>Folder</script>'
        "<label>Folder</label>"
    )
    assert GERMAN.markup(markup) == (
        '<p class="Folder" title="Ordner">Watch it &amp; <b>Ordner</b><br><img src="Folder" alt="Ordner"></p>'
        '<p translate="no"><i>Folder</i><input value="Folder"></p><script>Folder</script>'
        "<label>Ordner</label>"
    )


def test_a_value_within_markup_stays_harmless() -> None:
    evil = Translation("de", {"Say {word}": 'Sag "{word}" <b>'})
    assert evil.markup('<p title="Say &lt;i&gt;">Say &lt;i&gt;</p>') == (
        '<p title="Sag &quot;&lt;i&gt;&quot; &lt;b&gt;">Sag "&lt;i&gt;" &lt;b&gt;</p>'
    )


def test_answers_keep_identifiers_and_prompts() -> None:
    answer = {
        "prompt": "Folder",
        "label": "Folder",
        "rows": [["Folder", 3, None]],
        "card": {"state": "exact"},
    }
    assert GERMAN.answer(answer) == {
        "prompt": "Folder", "label": "Ordner", "rows": [["Ordner", 3, None]], "card": {"state": "exact"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "language"),
    [
        (["de-AT", "en"], "de"), (["zh_CN.UTF-8"], "zh"), (["ja"], "ja"), (["C.UTF-8"], "en"), ([""], "en"),
        (["pt-BR", "fr;q=0.8"], "fr"), ([], "en"), (["en-US", "de"], "en"), (["../etc"], "en"),
    ],
)  # fmt: skip
def test_a_language_is_negotiated(wanted: list[str], language: str) -> None:
    assert negotiated(name.partition(";")[0] for name in wanted) == language


def test_a_terminal_has_the_language_of_its_variables() -> None:
    assert spoken({"LANG": "de_DE.UTF-8"}).language == "de"
    assert spoken({"LANGUAGE": "ru:en", "LANG": "de_DE.UTF-8"}).language == "ru"
    assert spoken({"LC_ALL": "C", "LANG": "C"}).language == "en"


def test_the_catalogues_have_what_the_sources_say() -> None:
    texts, of_scripts, nouns = translate.messages()
    for language in OTHERS:
        contents = translate.contents(language, translate.updated(language, texts, nouns), of_scripts)
        for name, content in contents.items():
            assert (FOLDER / name).read_text(encoding="utf-8") == content, f"run scripts/translate.py: {name}"


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_translated_with_its_values(language: str) -> None:
    texts, _, nouns = translate.messages()
    messages = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    assert [
        text for text in [*texts, *(f"{{count}} {noun}s" for noun in nouns)] if text not in messages
    ] == []
    for text in texts:
        assert sorted(PLACEHOLDER.findall(messages[text])) == sorted(PLACEHOLDER.findall(text)), text
    assert sum(map(len, translation(language).script)) <= 30_000

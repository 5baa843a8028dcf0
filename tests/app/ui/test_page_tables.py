"""Tables of what single scripts of the page make of their inputs, without a server."""

from typing import Any

import pytest

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


def test_texts_of_scripts_are_translated_by_the_template_that_they_fit(page: Any) -> None:
    told = page.evaluate(
        """async ([texts, all]) => {
        document.querySelector('#texts').textContent = JSON.stringify(texts);
        const { default: begin, translated } = await load('language.js');
        begin();
        const [made, own] = ['p', 'p'].map((tag) => document.body.appendChild(document.createElement(tag)));
        own.translate = false;
        for (const part of [made, own]) {
            part.textContent = 'Watch it:';
            part.title = 'Watch it';
        }
        await settle();
        const first = made.textContent;
        made.firstChild.data = '3 of 4 done';
        await settle();
        return [...all.map(translated), first, made.textContent, made.title, own.textContent];
    }""",
        [
            {
                "Watch it": "Sieh es an", "{n} of {m} done": "{m}: {n} fertig", "left": "links",
                "The {what} (now)": "{what} jetzt",
            },
            ["Watch it", "watch it", "3 of 4 done", "left · 3 of 4 done", "The left (now)", "",
             "The $& (now)"],
        ],
    )  # fmt: skip
    assert told == [
        "Sieh es an", "watch it", "4: 3 fertig", "links · 4: 3 fertig", "links jetzt", "", "$& jetzt",
        "Sieh es an:", "4: 3 fertig", "Sieh es an", "Watch it:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("language", "days"),
    [
        ("en", ["Today", "Yesterday", "26 Nov 2026", "29 Nov 2026"]),
        ("de", ["Heute", "Gestern", "26. Nov. 2026", "29. Nov. 2026"]),
        ("zh", ["今天", "昨天", "2026年11月26日", "2026年11月29日"]),
    ],
)
def test_a_time_has_its_day_and_an_address_its_tab(page: Any, language: str, days: list[str]) -> None:
    results = page.evaluate(
        """async (language) => {
        document.documentElement.lang = language;
        const { dayOf, clock } = await load('text.js');
        const { place } = await load('tabs.js');
        const { keep, recallTexts, recallValue } = await load('storage.js');
        const midnight = new Date(2026, 10, 28).getTime();
        const RealDate = Date;
        window.Date = class extends RealDate {
            constructor(...given) { super(...(given.length ? given : [midnight + 3.6e6])); }
        };
        const days = [0, -1, -86400, -86401, 86399, 86400].map((later) => dayOf(midnight / 1000 + later));
        const places = ['', '#queue', '#history/1', '#odd/2', '#models/a/b'].map((hash) => {
            location.hash = hash;
            return place().join('|');
        });
        keep('x', JSON.stringify(['a', 1, 'b']));
        keep('y', '{');
        keep('z', '"c"');
        const texts = ['x', 'y', 'z', 'none'].map((name) => recallTexts(name).join());
        keep('x', null);
        return [days, clock(midnight / 1000 + 60 * 61), places, texts, recallValue('x')];
    }""",
        language,
    )
    today, yesterday, earlier, later = days
    assert results == [
        [today, yesterday, yesterday, earlier, today, later], "01:01",
        ["create|", "queue|", "history|1", "create|", "models|a"], ["a,b", "", "c", ""], None,
    ]  # fmt: skip


def test_a_start_by_keys_is_one_press(page: Any) -> None:
    rows: list[tuple[dict[str, bool], str, bool, bool]] = [  # whether it is taken, and whether it starts
        ({"ctrlKey": True}, "#set-prompt textarea", True, True),
        ({"ctrlKey": True, "repeat": True}, "#set-prompt textarea", True, False),
        ({"metaKey": True}, "body", True, True),
        ({"repeat": True}, "#start", True, False),
        ({}, "#set-prompt textarea", False, False),
        ({"ctrlKey": True}, "#tab-queue", False, False),
        ({"ctrlKey": True}, "body", True, True),
    ]
    taken, sent = page.evaluate(
        """async (rows) => {
        await load('form/form.js').then((form) => { form.default(); });
        const taken = [];
        for (const [index, [key, target]] of rows.entries()) {
            document.querySelector('#form [name=prompt]').value = index;
            taken.push(press('Enter', key, document.querySelector(target)));
            await settle(); await settle();
        }
        document.querySelector('#form [name=prompt]').value = 'double';
        document.querySelector('#start').dispatchEvent(new MouseEvent('click', { bubbles: true, detail: 2 }));
        await settle();
        return [taken, JSON.parse(sessionStorage['longtake.press']).map(({ settings }) => settings.prompt)];
    }""",
        rows,
    )
    assert taken == [is_taken for *_, is_taken, _ in rows]
    assert sent == [str(index) for index, row in enumerate(rows) if row[-1]]


FINISHES: list[tuple[dict[str, Any], str]] = [
    ({"enlarge": "4"}, "enlarge:4"),
    ({"smooth": "2x", "speed": "0.5", "enlarge": "2"}, "speed:0.5,enlarge:2,smooth:2x"),
    ({"reverse": True, "loop": True, "colours": True, "mute": True}, "reverse,loop,colours,mute"),
    ({"from": "1.5"}, "trim:1.5-"),
    ({"to": "2"}, "trim:-2"),
    ({"from": "1", "to": "2", "mute": True}, "mute,trim:1-2"),
    ({}, ""),
]


ASK_FOR_FINISHING = """async (rows) => {
        const wait = window.setTimeout;
        window.setTimeout = (act, time) => wait(act, time === 300 ? 0 : time);
        const { finishFile } = await load('live/finishing.js');
        const asked = [];
        for (const [fields] of rows) {
            finishFile({ path: 'film.mp4' });
            const form = document.querySelector('#finish-file form');
            for (const [name, value] of Object.entries(fields)) {
                form.elements[name][value === true ? 'checked' : 'value'] = value;
            }
            form.dispatchEvent(new Event('input', { bubbles: true }));
            await settle(); await settle();
            const sent = fields.none ? null : named('finish_plan').at(-1)?.sent;
            asked.push([sent?.steps ?? '', textOf('#finish-file [role=status]').split(';')[0]]);
            document.querySelector('#finish-file').close();
        }
        finishFile({ path: 'film.mp4' });
        const form = document.querySelector('#finish-file form');
        named('history_search').at(-1).answer({ cards: [
            { job: '1', video: 'v', sentence: '', length: '2 s', created: 0, words: 'a ball' },
            { job: '2', video: '', sentence: '', length: '2 s', created: 0, words: '' },
            { job: '3', video: 'v', sentence: 'Paused', length: '2 s', created: 0, words: '' },
            { job: '4', video: 'v', sentence: '', length: 'Picture', created: 0, words: '' },
            { job: '5', video: 'v', sentence: '', length: '2 s', created: 0, words: '' },
        ] });
        await settle();
        const offered = [...form.elements.other.options].map((option) => option.value);
        for (const job of ['5', '1', '1']) {
            form.elements.other.value = job;
            form.elements.other.dispatchEvent(new Event('change', { bubbles: true }));
        }
        form.querySelectorAll('ol button')[1].click();
        form.elements.fade.value = 6;
        form.dispatchEvent(new Event('input', { bubbles: true }));
        await settle(); await settle();
        const early = named('finish_plan').at(-1);
        form.elements.mute.checked = true;
        form.dispatchEvent(new Event('input', { bubbles: true }));
        await settle(); await settle();
        named('finish_plan').at(-1).answer({ words: 'late' });
        await settle();
        early.answer({ words: 'early' });
        await settle();
        const words = textOf('#finish-file [role=status]');
        form.requestSubmit();
        await settle();
        const made = calls.at(-1);
        made.answer({ id: '9' });
        await settle();
        const { open } = document.querySelector('#finish-file');
        return [asked, offered, words, made.path, made.sent, open, location.hash];
    }"""


def test_a_finishing_is_asked_for_as_the_form_says_and_the_last_answer_is_told(page: Any) -> None:
    asked, offered, words, path, sent, is_open, place = page.evaluate(ASK_FOR_FINISHING, FINISHES)
    assert [steps for steps, _ in asked[:-1]] == [steps for _, steps in FINISHES[:-1]]
    assert asked[-1][1] == "Choose what to change"
    assert offered == ["", "1", "5"]
    assert (words, path, is_open, place) == ("late", "finish_start", False, "#history/9")
    assert sent == {
        "video": {"path": "film.mp4"}, "steps": "mute,join:6", "join": [{"job": "5"}, {"job": "1"}],
        "sound": None,
    }  # fmt: skip


def test_two_videos_are_compared_from_where_they_correspond(page: Any) -> None:
    results = page.evaluate("""async () => {
        const dialog = document.querySelector('#compare');
        const [left, right] = dialog.querySelectorAll('video');
        for (const video of [left, right]) film(video, { a: 4, b: 6, c: 3 });
        const { compare, default: begin } = await load('live/compare.js');
        begin();
        const acted = [];
        const entry = (name, more) => ({
            name, url: name, begin: 0, keep: `Keep ${name}`,
            act: (other) => acted.push(`${name} not ${other.name}`), ...more,
        });
        const close = (value) => Math.round(10 * value) / 10;
        const times = () => [left, right].map((video) => close(video.currentTime));
        compare([entry('a', { begin: 1, end: 3 }), entry('b', { begin: 2 }), entry('c', { keep: '' })]);
        await settle(); await settle();
        left.pause();
        await settle();
        const find = (name) => dialog.querySelector(`.lt-compare-${name}`);
        const [seek, play, split] = ['seek', 'play', 'split'].map(find);
        seek.max = 9;
        seek.value = 1.5;
        seek.dispatchEvent(new Event('input'));
        await settle();
        const results = [times(), Number(seek.max), seek.getAttribute('aria-valuetext')];
        results.push(play.textContent, right.paused);
        play.click();
        await settle();
        results.push([left.paused, right.paused, play.textContent]);
        play.click();
        await settle();
        results.push([left.paused, right.paused]);
        const [, second] = dialog.querySelectorAll('select');
        second.value = 2;
        second.dispatchEvent(new Event('change'));
        await settle();
        const keeps = [...dialog.querySelectorAll('.lt-compare-keep')];
        results.push(keeps.map((button) => button.hidden), right.src, left.src);
        split.value = 30;
        split.dispatchEvent(new Event('input'));
        results.push(split.getAttribute('aria-valuetext'));
        keeps[0].click();
        await settle();
        return [...results, acted, dialog.open, left.src];
    }""")
    assert results == [
        [2.5, 3.5], 2, "1.5 of 2.0 seconds", "Play", True, [False, False, "Pause"], [True, True],
        [False, True], "c", "a", "30 % left, 70 % right", ["a not c"], False, "",
    ]  # fmt: skip

"""Tests of what single parts of the page send and show for what a user does, without a server."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


# Keeps the second of three takes, and compares it with the first one.
TAKES = """async () => {
    const { prepareTakes } = await load('live/takes.js');
    await load('live/compare.js').then((compare) => compare.default());
    const box = document.querySelector('.lt-takes');
    const find = (name) => box.querySelector(`.lt-takes-${name}`);
    for (const video of document.querySelectorAll('#compare video')) film(video, { v1: 3, v2: 3 });
    const [went, opened, told] = [[], [], []];
    const panel = { goOn: async (waits) => { went.push(waits); }, open: (mode) => opened.push(mode) };
    const show = prepareTakes(box, panel, (job) => opened.push(job), (words) => told.push(words));
    const tile = (job, more = {}) => ({
        job, seed: '7', still: '', video: `v${job}`, name: `Take ${job}`, keep: `Keep ${job}`,
        begin: 1, end: 2, now: '', mayGoOn: true, ...more,
    });
    const tiles = [tile('1'), tile('2'), tile('3', { now: 'Waiting', mayGoOn: false })];
    const takes = { title: 'Which?', hint: '', of: 'p', keep: 2, waits: false, tiles };
    const results = [];
    const state = () => {
        const parts = [box, find('keep'), find('words'), find('compare')];
        const hidden = parts.map((part) => part.hidden);
        results.push([...hidden, textOf('.lt-takes-next')]);
    };
    show(takes, 'p'); state();
    show(takes, '2'); state();
    show(takes, '3'); state();
    show({ ...takes, tiles: takes.tiles.slice(1) }, '2'); state();
    show(null, '2'); state();
    show(takes, '2');
    const pressed = (item) => item.querySelector('button').getAttribute('aria-pressed');
    results.push([...box.querySelectorAll('li')].map((item) => item.dataset.job + pressed(item)));
    const [clip] = box.querySelectorAll('li video');
    film(clip, { '': 3 });
    const times = ['loadedmetadata', 'ended', 'timeupdate'].map((name) => {
        clip.currentTime = 2.5;
        clip.dispatchEvent(new Event(name));
        return Math.floor(clip.currentTime);
    });
    results.push(textOf('.lt-takes-keep'), times);
    find('keep').click(); find('words').click(); find('more').click();
    await settle();
    results.push(went, opened, calls.at(-1).sent, told.at(-1));
    find('compare').click();
    await settle();
    const dialog = document.querySelector('#compare');
    results.push([...dialog.querySelectorAll('select')].map(({ value }) => value));
    const before = calls.length;
    dialog.querySelectorAll('.lt-compare-keep')[0].click();
    for (let n = 0; n < 2; n += 1) { await settle(); calls.at(-1).answer([]); }
    await settle();
    return [...results, calls.slice(before).map(({ path, sent }) => [path, sent]), dialog.open];
}"""


def test_a_take_that_is_kept_goes_on_as_the_video_before_it(page: Any) -> None:
    results = page.evaluate(TAKES)
    assert results[:5] == [
        [False, True, True, False, "Press a take to see it after the film so far."],
        [False, False, False, False, "Without an answer it waits."],
        [False, True, True, False, ""],
        [False, False, False, True, "Without an answer it waits."],
        [True, False, False, True, "Without an answer it waits."],
    ]
    assert results[5:8] == [["1false", "2true", "3false"], "Keep 2", [1, 1, 1]]
    assert results[8:12] == [
        [False], ["steer"], {"job": "p", "keep": 2}, "Take 2 goes on. The others stay in the history.",
    ]  # fmt: skip
    assert results[12:] == [
        ["1", "0"],
        [["jobs_wait", {"jobs": ["2"], "wait": False}], ["jobs_resume", {"jobs": ["2"]}]], False,
    ]  # fmt: skip


def test_what_can_be_done_with_selected_videos_depends_on_all_of_them(page: Any) -> None:
    results = page.evaluate("""async () => {
        const card = (job, bytes, actions = ['remove'], video = 'v') => ({
            job, words: job, state: 'finished', root: '', versions: 1, still: '', length: '', sentence: '',
            created: 1, newest: 1, seed: '1', model: '', favourite: false, bytes, actions, video,
        });
        location.hash = 'history';
        await load('history/history.js').then((history) => history.default());
        await settle();
        const find = (name) => document.querySelector(`.lt-find-${name}`);
        named('history_search')[0].answer({ next: '', say: '', none: '', models: [], cards: [
            card('a', 1500), card('b', 2e6), card('c', 2.5e9), card('d', 0, [], ''),
        ] });
        await settle();
        const results = [];
        const pick = (...jobs) => {
            for (const item of document.querySelectorAll('.lt-video-card')) {
                item.querySelector('.lt-pick input').checked = jobs.includes(item.dataset.job);
            }
            document.querySelector('.lt-videos').dispatchEvent(new Event('change', { bubbles: true }));
            const isHidden = (part) => Number(document.querySelector(`.lt-picked${part}`).hidden);
            const hidden = ['', '-zip', '-compare', '-remove'].map(isHidden).join('');
            results.push(`${textOf('.lt-picked span')} ${hidden}`);
        };
        pick('a'); pick('a', 'b'); pick('b', 'c'); pick('a', 'd'); pick('d'); pick();
        pick('a', 'b');
        results.push(document.querySelector('.lt-picked-zip').getAttribute('href'));
        find('length').value = '3-10';
        find('length').dispatchEvent(new Event('change'));
        await settle();
        results.push(named("history_search").at(-1).sent);
        return results;
    }""")
    query = results.pop()
    assert results == [
        "1 selected · 2 kB 0010", "2 selected · 2.0 MB 0000",
        "2 selected · 2502.0 MB: select less than 2 GB 0100", "2 selected · 2 kB 0011",
        "1 selected · 0 kB 0111", "0 selected · 0 kB 1110", "2 selected · 2.0 MB 0000",
        "api/history/zip?jobs=a&jobs=b",
    ]  # fmt: skip
    limits = {"min_seconds": "3", "max_seconds": "10", "favourites": False, "stacked": True}
    assert limits.items() <= query.items()

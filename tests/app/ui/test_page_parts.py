"""Tests of what single parts of the page send and show for what a user does, without a server."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


USE_PANEL = """async () => {
        const { Panel } = await load('live/panel.js');
        const form = document.querySelector('.lt-panel');
        const find = (name) => form.querySelector(`.lt-panel-${name}`);
        const [cuts, told] = [[], []];
        const report = (...words) => told.push(words.join('|'));
        const panel = new Panel(form, (keep) => cuts.push(keep), report, () => {});
        const cells = [1, 2, 3].map((number) => ({ number, label: `${number}`, mayBranch: number > 1 }));
        const scene = { job: 'j', isOpen: true, cells, steering: null };
        const branch = {
            whyNot: '', whyNotLonger: '', kept: ['Keeps one.', 'Keeps two.'], prompt: 'a ball', seed: '7',
            seconds: 3.6, section: 1.2, longer: 9.6, keptByLonger: 'All stays.', further: [
                { name: 'steps', label: 'Steps', value: 25, choices: [], low: 1, high: 100, step: 1 },
                { name: 'mode', label: 'Order', value: 'x', choices: [['x', 'X'], ['y', 'Y']] },
            ],
        };
        const answer = async (path, value) => { named(path).at(-1).answer(value); await settle(); };
        const open = async (mode, keep) => {
            const opened = panel.open(mode, keep);
            await settle();
            await answer('history_open', { branch });
            await opened;
        };
        const sent = async () => { form.requestSubmit(); await settle(); return calls.at(-1).sent; };
        const results = [];
        panel.show(scene);
        await open('cut', 1);
        results.push([find('hint').textContent, form.querySelector('h3').textContent, cuts.at(-1)]);
        find('seed').value = '7';
        const plain = await sent();
        await answer('jobs_branch', { id: 'b' });
        results.push(plain, calls.at(-1).path, calls.at(-1).sent);
        await answer('jobs_pause', []);
        results.push(told.at(-1), form.hidden);
        panel.press(cells[0]);
        panel.press(cells[2]);
        results.push([cuts.at(-1), find('here').hidden, form.hidden]);
        panel.show({ ...scene, isOpen: false });
        await open('cut', 2);
        find('words').value = ' a ball ';
        find('seed').value = '8';
        find('seconds').value = '4.8';
        form.querySelector('[name=steps]').value = '30';
        form.querySelector('[name=mode]').value = 'y';
        results.push(await sent());
        await answer('jobs_branch', { id: 'c' });
        results.push(calls.at(-1).path);
        await open('longer');
        results.push([find('add').value, find('add').max], await sent());
        await answer('jobs_branch', { id: 'd' });
        results.push(told.at(-1));
        const steering = { words: 'now', waits: true, hint: 'Soon.', mayTake: true };
        panel.show({ ...scene, job: 'k', steering });
        await panel.open('steer');
        const went = [find('words').value, find('wait').checked, find('takes').disabled];
        find('words').value = 'later ';
        const before = calls.length;
        panel.goOn(false);
        for (let n = 0; n < 3; n += 1) { await settle(); calls.at(-1).answer([]); }
        await settle();
        results.push(went, calls.slice(before).map(({ path, sent: message }) => [path, message]));
        return results;
    }"""


def test_the_panel_sends_what_was_changed_and_a_branch_comes_first(page: Any) -> None:
    results = page.evaluate(USE_PANEL)
    assert results[:2] == [
        ["Keeps one.", "Again: section 2 and those made after it", 1],
        {"job": "j", "keep": 1, "changes": {}},
    ]
    assert results[2:4] == ["jobs_pause", {"jobs": ["j"]}]
    assert results[4:7] == ["The branch is in the queue. Keeps one.|b", True, [None, False, False]]
    assert results[7] == {
        "job": "j", "keep": 2, "changes": {"seed": 8, "seconds": 4.8, "steps": 30, "mode": "y"}
    }  # fmt: skip
    assert results[8:12] == [
        "jobs_branch", ["2.4", "9.6"], {"job": "j", "longer": 2.4},
        "The longer video is in the queue. All stays.|d",
    ]  # fmt: skip
    assert results[12:] == [
        ["now", True, False],
        [
            ["jobs_change", {"job": "k", "changes": {"prompt": "later"}}],
            ["jobs_wait", {"jobs": ["k"], "wait": False}], ["jobs_resume", {"jobs": ["k"]}],
        ],
    ]  # fmt: skip


def test_a_take_that_is_kept_goes_on_as_the_video_before_it(page: Any) -> None:
    results = page.evaluate("""async () => {
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
            const hidden = [box, find('keep'), find('compare')].map((part) => part.hidden);
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
        results.push(textOf('.lt-takes-keep'));
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
    }""")
    assert results[:5] == [
        [False, True, False, "Press a take to see it after the film so far."],
        [False, False, False, "Without an answer it waits."],
        [False, True, False, ""],
        [False, False, True, "Without an answer it waits."],
        [True, False, True, "Without an answer it waits."],
    ]
    assert results[5:7] == [["1false", "2true", "3false"], "Keep 2"]
    assert results[7:11] == [
        [False], ["steer"], {"job": "p", "keep": 2}, "Take 2 goes on. The others stay in the history.",
    ]  # fmt: skip
    assert results[11:] == [
        ["1", "0"],
        [["jobs_wait", {"jobs": ["2"], "wait": False}], ["jobs_resume", {"jobs": ["2"]}]], False,
    ]  # fmt: skip


def test_another_picture_has_a_crop_of_its_own(page: Any) -> None:
    results = page.evaluate("""async () => {
        await load('form/pictures.js');
        const { write, read } = await load('form/describe.js');
        const crops = () => ['crop', 'crop_y', 'zoom'].map(read);
        const results = [];
        const put = (path) => {
            write('image', path && { path, orig_name: 'a.png' });
            results.push(crops());
        };
        put('a.png');
        write('crop', 0.2); write('crop_y', 0.9); write('zoom', 2);
        put('a.png');
        put('b.png');
        write('crop', 0.2);
        put(null);
        return [results, document.querySelector('#set-image img')];
    }""")
    first, same, other, gone = results[0]
    assert (first[2], same, other, gone) == (1, [0.2, 0.9, 2], [0.5, None, 1], [0.5, None, 1])
    assert results[1] is None


def test_a_file_of_ones_own_takes_the_place_of_another_for_its_part(page: Any) -> None:
    results = page.evaluate("""async () => {
        const own = await load('models/own.js');
        own.prepareOwnFiles((name) => { results.push(name); return Promise.resolve(); });
        const results = [];
        const file = (name, part, model) => ({ name, part, model, title: name, words: '', problem: '' });
        own.loadFiles();
        await settle();
        calls.at(-1).answer({ words: '', adding: { name: '', seconds: 0, problem: '' }, files: [
            file('a', 'transformer', 'A'), file('b', 'transformer', 'B'), file('v', 'vae', 'V'),
            file('x', '', ''),
        ] });
        await settle();
        const boxes = [...document.querySelectorAll('.lt-own-files input')];
        const name = document.querySelector('.lt-own-name');
        const state = () => {
            const ticks = boxes.map(({ checked }) => Number(checked)).join('');
            results.push([ticks, name.value, textOf('.lt-own-reported')]);
        };
        for (const box of [2, 0, 1]) { boxes[box].click(); state(); }
        name.value = 'mine';
        name.dispatchEvent(new Event('input'));
        boxes[2].click();
        state();
        document.querySelector('.lt-own-form').requestSubmit();
        await settle();
        results.push(boxes[3].disabled, named('models_add')[0].sent);
        return results;
    }""")
    assert results == [
        ["0010", "V", ""], ["1010", "A", ""],
        ["0110", "B", "b replaces a, since a model has one file for each part."], ["0100", "mine", ""],
        True, {"model": "mine", "parts": {"transformer": "b"}, "base": ""},
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


def test_words_of_a_section_stay_in_use_and_go_on_to_where_other_words_began(page: Any) -> None:
    results = page.evaluate("""async () => {
        const { startSections } = await load('form/sections.js');
        const { read, take } = await load('form/describe.js');
        const place = document.querySelector('#sections');
        for (let fold = place; fold; fold = fold.parentElement.closest('details')) fold.open = true;
        startSections(place);
        const tell = async (all, prompt = '') => {
            const sections = all.map((words, at) => ({
                words, place: at, time: `${at} s`, label: `${at}`, begins: words !== all[at - 1],
                tone: 0, share: 30, change: '', picture: null, begin: at,
            }));
            const of = ['prompt', 'section_words', 'pictures'].map(read);
            take({ facts: { unused: [], ratio: 1.5, timeline: { of, prompt, sections, later: [] } } });
            await settle();
        };
        await tell(['a', 'a', 'b']);
        const fields = [...place.querySelectorAll('textarea')];
        const shown = () => fields.map(({ value }) => value).join('|');
        const results = [shown()];
        const type = (index, words) => {
            fields[index].focus();
            fields[index].value = words;
            fields[index].dispatchEvent(new Event('input', { bubbles: true }));
            results.push(read('section_words'));
        };
        type(0, 'x'); type(0, 'xx');
        await tell(['x', 'x', 'b'], 'x [2s: b]');
        results.push(shown(), read('section_words'), read('prompt'));
        await tell(['x', 'x', 'b']);
        type(2, '');
        await tell(['x', 'x', 'x'], 'x');
        fields[2].blur();
        await settle();
        return [...results, shown()];
    }""")
    assert results == [
        "a||b", '["x","x","b"]', '["xx","xx","b"]', "xx||b", "", "x [2s: b]", '["x","x","x"]', "x||",
    ]  # fmt: skip

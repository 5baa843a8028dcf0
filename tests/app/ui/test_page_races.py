"""Races of the page's scripts: late, lost and crossed answers, news meanwhile, and second presses.

The scripts run over the real document without a server; see `tests/support/page_scripts.py`.
"""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


def test_removals_that_follow_each_other_are_undone_together(page: Any) -> None:
    found = page.evaluate("""async () => {
        const { offerUndo } = await load('undo.js');
        const [words, undo, , leave] = document.querySelector('#undo').children;
        const said = [];
        let now = 1e12;
        Date.now = () => now;
        const remove = (job, later) => { now += later; offerUndo([job], job); said.push(words.textContent); };
        remove('a', 0); remove('b', 9000); remove('c', 9000);
        undo.click(); undo.click();
        await settle();
        calls[0].refuse('It is gone.');
        await settle();
        said.push(words.textContent);
        undo.click();
        await settle();
        calls[1].answer([]);
        await settle();
        remove('d', 11000); leave.click();
        remove('e', 1000); undo.click();
        await settle();
        return { said, sent: calls.map((call) => call.sent.jobs.join('')) };
    }""")
    assert found["said"] == [
        "Removed: a", "Removed: 2 videos", "Removed: 3 videos", "It is gone.", "Removed: d", "Removed: e",
    ]  # fmt: skip
    assert found["sent"] == ["abc", "abc", "e"]


def test_of_changes_of_the_form_only_the_last_is_described_and_a_lost_answer_is_asked_for_again(
    page: Any,
) -> None:
    sent = page.evaluate("""async () => {
        const [{ describe }, { reportJobs }] = [await load('form/describe.js'), await load('jobs.js')];
        const prompt = document.querySelector('#form [name=prompt]');
        const type = (text) => { prompt.value = text; describe(); };
        const step = async (act) => { act(); await settle(); };
        await step(() => ['a', 'b', 'c'].forEach(type));
        await step(() => calls[0].answer({}));
        await step(() => calls[1].lose());
        await step(() => reportJobs({ queue: {} }));
        await step(() => { type('d'); calls[2].refuse('No.'); });
        await step(() => calls[3].refuse('No.'));
        await step(() => reportJobs({ queue: {} }));
        await step(() => type('e'));
        await step(() => calls[4].answer({}));
        await step(() => reportJobs({ queue: {} }));
        return calls.map((call) => call.sent.settings.prompt);
    }""")
    assert sent == ["a", "c", "c", "d", "e"]


def test_a_chosen_video_stays_chosen_when_the_connection_breaks(page: Any) -> None:
    addresses = page.evaluate("""async () => {
        const { connect, follow } = await load('live/pulse.js');
        const wait = window.setTimeout;
        window.setTimeout = (act, time) => wait(act, time > 1000 ? 0 : time);
        follow(() => {});
        connect('job-1');
        for (let n = 0; n < 2; n += 1) {
            const now = streams.at(-1);
            now.readyState = 2;
            now.onerror();
            await settle();
            calls.at(-1).answer({});
            await settle();
        }
        connect('');
        connect();
        if (calls.some(({ address }) => address !== 'api/live')) return [];
        return streams.map(({ address, readyState }) => `${address.split('=')[1]} ${readyState}`);
    }""")
    assert addresses == [" 2", "job-1 2", "job-1 2", "job-1 2", " 2", " 1"]


def test_a_preview_comes_to_its_end_before_the_next_one_unless_that_is_of_another_section(page: Any) -> None:
    shown = page.evaluate("""async () => {
        const { preparePreview } = await load('live/preview.js');
        const show = preparePreview(document.querySelector('.lt-stage'));
        const image = document.querySelector('.lt-latent img');
        const shown = [];
        for (const [section, data, seconds] of [[1, 'a', 60], [1, 'b', 60], [2, 'c', 0.1], [2, 'd', 60]]) {
            show({ label: `Section ${section}`, seconds, data: `data:,${data}` });
            shown.push(image.src);
        }
        while (image.src === shown[3]) await settle();
        return [...shown, image.src];
    }""")
    assert shown == ["data:,a", "data:,a", "data:,c", "data:,c", "data:,d"]


def start_queue(page: Any) -> None:
    page.evaluate("""async () => {
        location.hash = 'queue';
        document.documentElement.dataset.tab = 'queue';
        await load('queue/queue.js').then((queue) => queue.default());
        await settle();
        named('jobs_queue')[0].answer(queued('a', 'b', 'c'));
        await settle();
    }""")


def test_of_crossed_answers_of_the_queue_the_last_question_counts(page: Any) -> None:
    start_queue(page)
    found = page.evaluate("""async () => {
        const { reportJobs } = await load('jobs.js');
        const hear = async (revision) => { reportJobs({ queue: { revision } }); await settle(); };
        await hear('1'); await hear('2');
        const [, first, second] = named('jobs_queue');
        second.answer(queued('c', 'b')); await settle();
        first.answer(queued('a', 'b', 'c')); await settle();
        const crossed = rows();
        await hear('3');
        document.querySelector('.lt-row [data-action=remove]').click(); await settle();
        const before = rows();
        named('jobs_queue').at(-1).answer(queued('c', 'b')); await settle();
        const meanwhile = rows();
        named('jobs_remove')[0].answer([]); await settle();
        named('jobs_queue').at(-1).answer(queued('b', 'd')); await settle();
        return [crossed, before, meanwhile, rows()];
    }""")
    assert found == ["cb", "b", "b", "bd"]


def test_a_row_follows_its_video_also_if_the_one_before_looked_the_same(page: Any) -> None:
    start_queue(page)
    states = page.evaluate("""async () => {
        const { reportJobs } = await load('jobs.js');
        const hear = async (job, revision) => {
            const now = { percent: 0, timeLeft: '', sentence: 'Starting', state: 'running', isRunning: true };
            reportJobs({ job, ...now, queue: { revision } });
            await settle();
        };
        const answer = async (running) => {
            const all = queued('a', 'b');
            all.jobs.find(({ id }) => id === running).actions = [];
            named('jobs_queue').at(-1).answer(all);
            await settle();
        };
        const states = [];
        const note = () => states.push(...['a', 'b'].map((id) => textOf(`[data-job=${id}] .lt-row-state`)));
        await hear('a', '1'); await answer('a'); note();
        await hear('a', '2'); await answer('b'); note();
        await hear('b', '2'); note();
        return states;
    }""")
    assert states == ["Starting", "Waiting", "Waiting", "Waiting", "Waiting", "Starting"]


def test_a_key_moves_a_row_by_its_neighbours(page: Any) -> None:
    rows: list[tuple[int, str, list[Any]]] = [
        (0, "d ArrowUp", ["c", "", False]),
        (0, "c ArrowUp", ["b", "", True]),
        (0, "b ArrowUp", []),
        (0, "b ArrowDown", ["d", "", False]),
        (0, "c ArrowDown", ["", "d", False]),
        (0, "d ArrowDown", []),
        (0, "d Home", [None, None, True]),
        (0, "b End", [None, None, False]),
        (9, "b ArrowUp", ["a", "", False]),
    ]
    start_queue(page)
    found = page.evaluate(
        """async (all) => {
        const { reportJobs } = await load('jobs.js');
        const answer = async (path, value) => { named(path).at(-1).answer(value); await settle(); };
        const found = [];
        for (const [revision, [first, keys]] of all.entries()) {
            const some = { ...queued('a', 'b', 'c', 'd'), first };
            if (!first) some.jobs[0].actions = [];
            reportJobs({ queue: { revision } });
            await settle();
            await answer('jobs_queue', some);
            const [job, key] = keys.split(' ');
            const before = named('jobs_reorder').length;
            press(key, {}, document.querySelector(`[data-job=${job}] .lt-row-grip`));
            await settle();
            const moves = named('jobs_reorder').slice(before);
            found.push(moves.flatMap(({ sent }) => [sent.before, sent.after, sent.first]));
            if (!moves.length) continue;
            await answer('jobs_reorder', {});
            await answer('jobs_queue', some);
        }
        return found;
    }""",
        rows,
    )
    assert found == [sent for *_, sent in rows]


def test_news_while_a_row_is_dragged_do_not_move_it(page: Any) -> None:
    start_queue(page)
    grips = page.locator(".lt-row-grip")
    box, last = grips.nth(0).bounding_box(), grips.nth(2).bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 5, last["y"] + last["height"] / 2, steps=4)
    during = page.evaluate("""async () => {
        const { reportJobs } = await load('jobs.js');
        reportJobs({ queue: { revision: 'new' } }); await settle();
        named('jobs_queue').at(-1).answer(queued('x', 'a', 'b', 'c')); await settle();
        return rows();
    }""")
    page.mouse.up()
    moved = page.evaluate("async () => { await settle(); return [rows(), named('jobs_reorder')[0].sent]; }")
    assert during == "abc"
    assert moved == ["bca", {"job": "a", "before": "", "after": "c", "first": False}]


def test_of_crossed_answers_of_a_search_the_last_question_counts(page: Any) -> None:
    shown = page.evaluate("""async () => {
        const found = (name, next = '', root = '') => ({
            next, say: name, none: '', models: [], cards: [{
                job: name, words: name, state: 'finished', root, versions: 1, still: '', length: '',
                sentence: '', created: 1, newest: 1, seed: '1', model: '', favourite: false, bytes: 1,
                actions: [], video: '',
            }],
        });
        const all = (selector) => [...document.querySelectorAll(selector)];
        const cards = () => all('.lt-video-card').map((card) => card.dataset.job).join('');
        const press = async (part) => { document.querySelector(part).click(); await settle(); };
        const answer = async (number, value) => {
          named('history_search')[number].answer(value);
          await settle();
        };
        location.hash = 'history';
        await load('history/history.js').then((history) => history.default());
        await settle();
        const shown = [];
        await answer(0, found('a', 'next'));
        shown.push(cards());
        await press('.lt-more');
        const more = named('history_search').length - 1;
        await press('.lt-find-favourites');
        await press('.lt-find-favourites');
        await answer(more + 2, found('d'));
        await answer(more + 1, found('c'));
        await answer(more, found('b'));
        shown.push(cards(), textOf('.lt-gallery-count'));
        await press('.lt-find-favourites');
        named('history_search').at(-1).refuse('No.');
        await settle();
        shown.push(cards(), textOf('.lt-gallery-count'));
        await press('.lt-find-favourites');
        await answer(named('history_search').length - 1, found('e', 'next', 'tree'));
        await press('.lt-more');  // meanwhile, the tree has got another first video
        await answer(named('history_search').length - 1, found('f', '', 'tree'));
        return [...shown, cards()];
    }""")
    assert shown == ["a", "d", "d", "d", "No.", "f"]


def test_what_a_model_was_before_a_press_is_not_shown_after_it(page: Any) -> None:
    labels = page.evaluate("""async () => {
        const models = (label) => ({ disk: '', is_busy: false, models: [{
            model: 'm', title: 'M', label, state: label, purpose: '', facts: '', needs: [], sources: [],
            licence: '', parts: [], progress: { is_shown: false, percent: 0, words: '' }, problem: '',
            problems: null, actions: [['pause', 'Pause']], asks: {},
        }] });
        const labels = [];
        const answer = async (call, value) => {
            call.answer(value);
            await settle();
            labels.push(document.querySelector('.lt-model-card')?.dataset.state ?? '');
        };
        const { reportJobs } = await load('jobs.js');
        location.hash = 'models';
        await load('models/models.js').then((module) => module.default());
        await settle();
        await answer(named('models_list').at(-1), models('getting'));
        document.querySelector('.lt-model-card [data-action=pause]').click();
        document.querySelector('.lt-model-card [data-action=pause]').click();
        reportJobs({ queue: { revision: 'new', models: '' } });
        await settle();
        await answer(named('models_list').at(-1), models('before'));
        await answer(named('models_pause').at(-1), {});
        const late = named('models_list').at(-1);
        reportJobs({ queue: { revision: 'newer', models: '' } });
        await settle();
        await answer(named('models_list').at(-1), models('paused'));
        await answer(late, models('late'));
        return [...labels, named('models_pause').length];
    }""")
    assert labels == ["getting", "getting", "getting", "paused", "paused", 1]


def test_presses_of_start_are_sent_in_turn_each_until_it_is_answered(page: Any) -> None:
    sent, kept = page.evaluate("""async () => {
        const wait = window.setTimeout;
        window.setTimeout = (act, time) => wait(act, time >= 2000 ? 0 : time);
        const { press } = await load('form/press.js');
        const start = document.querySelector('#start');
        const prompt = document.querySelector('#form [name=prompt]');
        const of = () => named('form_start');
        prompt.value = 'a';
        press(start); press(start);
        await settle();
        of()[0].lose();
        await settle(); await settle();
        press(start);
        await settle();
        prompt.value = 'b';
        press(start);
        await settle();
        const kept = JSON.parse(sessionStorage['longtake.press']).map(({ settings }) => settings.prompt);
        of()[1].answer('');
        await settle(); await settle();
        of().at(-1).refuse('No room.');
        await settle(); await settle();
        kept.push(sessionStorage['longtake.press'] ?? 'none', textOf('#notice').trim());
        return [of().map(({ sent }) => [sent.press, sent.settings.prompt]), kept];
    }""")
    assert [prompt for _, prompt in sent] == ["a", "a", "b"]
    assert sent[0] == sent[1] != sent[2]
    assert kept == ["a", "b", "none", "No room."]


def test_a_slider_and_its_field_say_the_same_in_both_directions(page: Any) -> None:
    page.evaluate("load('form/sliders.js').then(({ prepareSliders }) => prepareSliders(() => {}))")
    wrong = page.evaluate("""() => [...document.querySelectorAll('#form .lt-slider')].flatMap((block) => {
        const [field, range] = ['number', 'range'].map((type) => block.querySelector(`[type=${type}]`));
        const [low, high] = [Number(field.min), Number(field.max)];
        const inner = [1, 2.4, 5, 19.9, 20, 21, 60].filter((value) => value > low && value < high);
        const values = [low, high, ...inner];
        const step = field.name === 'seconds' ? 0 : Number(range.step) || 1;
        return values.filter((value) => !step || Number.isInteger((value - low) / step)).filter((value) => {
            field.value = value;
            field.dispatchEvent(new Event('input', { bubbles: true }));
            const at = range.value;
            range.value = range.min;
            range.value = at;
            range.dispatchEvent(new Event('input', { bubbles: true }));
            return Number(field.value) !== value;
        }).map((value) => `${field.name} ${value}`);
    })""")
    assert wrong == []


def test_a_duration_is_told_in_whole_seconds(page: Any) -> None:
    told = page.evaluate(
        "async (all) => all.map((await load('text.js')).duration)",
        [-1, 0.4, 7.6, 59.6, 125, 3599, 3600, 6000],
    )
    assert told == ["0 s", "0 s", "8 s", "1 min 0 s", "2 min 5 s", "59 min 59 s", "1 h 0 min", "1 h 40 min"]

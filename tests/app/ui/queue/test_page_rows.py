"""Tests of the Queue tab's scripts without a server: what is asked, moved, pressed and complained of."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium
# Opens the tab; `list` answers with jobs of which those in capitals are being made.
QUEUE = """
    window.revision = 0;
    window.hear = async (more = {}) => {
        const { reportJobs } = await load('jobs.js');
        reportJobs({ job: '', queue: { revision: String(revision += 1), held: false }, ...more });
        await settle();
    };
    window.page = (names, more = {}) => {
        const all = queued(...names);
        for (const job of all.jobs) if (job.id !== job.id.toLowerCase()) job.actions = [];
        return { ...all, ...more };
    };
    window.list = (names, more) => answer('jobs_queue', page(names, more));
    window.grip = (job) => find(`[data-job="${job}"] .lt-row-grip`);
    window.said = () => textOf('.lt-queue-reported');
    window.problem = () => find('.lt-queue-problem').hidden ? '' : textOf('.lt-queue-problem');
    window.asks = () => named('jobs_queue').map(({ sent }) => sent.first);
    location.hash = 'queue';
    document.documentElement.dataset.tab = 'queue';
    await load('queue/queue.js').then((queue) => queue.default());
    await settle();
"""


def queue(page: Any, script: str) -> Any:
    return page.evaluate(f"async () => {{ {QUEUE} {script} }}")


PRESS_ROWS = """
        const told = [];
        const button = (job, action) => {
            const made = document.createElement('button');
            made.dataset.action = action;
            find(`[data-job="${job}"] .lt-row-first`).append(made);
            return made;
        };
        const act = async (job, action) => {
            const [before, made] = [calls.length, button(job, action)];
            made.click(); made.click(); await settle();
            const [{ path, sent }] = calls.slice(before).length ? calls.slice(before) : [{ path: '-',
                sent: {} }];
            told.push(`${path} ${Object.entries(sent).join('; ')}`, said());
        };
        const names = ['A', 'b', 'c', 'd'];
        await list(names);
        told.push([...document.querySelectorAll('.lt-row-grip')].map(({ ariaLabel, hidden }) => hidden
            || ariaLabel.split(':')[0]));
        for (const [job, action] of [['A', 'stop_after_section'], ['A', 'cancel'], ['b', 'pause'],
            ['b', 'resume'], ['c', 'duplicate']]) {
            await act(job, action); await answer(calls.at(-1).path, []); await list(names);
        }
        told.push(said());
        for (const [job, action] of [['b', 'later'], ['c', 'earlier'], ['d', 'first'], ['b', 'last'],
            ['d', 'later'], ['b', 'earlier']]) {
            await act(job, action); told.push(rows());
            if (!calls.at(-1).isOver) { await answer('jobs_reorder', {}); await list(names); }
        }
        const label = (job) => grip(job).ariaLabel.split(':')[0];
        await act('c', 'remove'); told.push(rows(), label('d'));
        named('jobs_remove')[0].refuse('It has begun.'); await settle();
        told.push(rows(), problem(), find('#undo').hidden);
        await list(names); told.push(problem());
        const asked = asks().length;
        await act('d', 'remove'); told.push(problem()); await answer('jobs_remove', []);
        await list(['A', 'b', 'c']);
        told.push(textOf('#undo span'), rows(), asks().length - asked);
        await hear(); named('jobs_queue').at(-1).refuse('The disk is away.'); await settle();
        told.push(problem());
        await hear({ queue: { revision: String(revision), held: false } }); told.push(asks().length - asked);
        return told;
    """


def test_each_press_is_sent_once_told_and_undone_if_it_is_refused(page: Any) -> None:
    assert queue(page, PRESS_ROWS) == [
        [True, "Place 2 of 4", "Place 3 of 4", "Place 4 of 4"],
        "jobs_cancel jobs,A; after_section,true", "", "jobs_cancel jobs,A", "", "jobs_pause jobs,b", "",
        "jobs_resume jobs,b", "", "jobs_duplicate job,c", "", "A copy of c is at the end of the queue.",
        "jobs_reorder job,b; before,d; after,; first,false", "b is now number 3 of 4.", "Acbd",
        "jobs_reorder job,c; before,b; after,; first,true", "c is now number 2 of 4.", "Acbd",
        "jobs_reorder job,d; first,true", "d is now the next one.", "Adbc",
        "jobs_reorder job,b; first,false", "b is now the last one.", "Abcd",
        "- ", "d cannot be moved further.", "Abcd", "- ", "b cannot be moved further.", "Abcd",
        "jobs_remove jobs,c", "b cannot be moved further.", "Abd", "Place 3 of 3", "Abcd", "It has begun.",
        True,
        "It has begun.", "jobs_remove jobs,d", "b cannot be moved further.", "", "Removed: d", "Abc", 1,
        "The disk is away.", 3,
    ]  # fmt: skip


def test_a_drag_ends_where_it_is_dropped_or_nowhere(page: Any) -> None:
    told = queue(
        page,
        """
        const names = ['A', 'b', 'c', 'd'];
        await list(names);
        const told = [];
        const heightOf = document.querySelector('.lt-row').getBoundingClientRect().height;
        const pointer = (type, job, rowsDown, more = {}) => {
            const at = start + rowsDown * heightOf;
            grip(job).dispatchEvent(new PointerEvent(type,
                { bubbles: true, cancelable: true, clientY: at, ...more }));
        };
        let start = 0;
        const drag = async (job, rowsDown, end, more = {}) => {
            await hear(); if (!named('jobs_queue').at(-1).isOver) await list(names);
            const before = named('jobs_reorder').length;
            const box = grip(job).getBoundingClientRect();
            start = box.top + box.height / 2;
            grip(job).setPointerCapture = () => {};
            pointer('pointerdown', job, 0, more);
            pointer('pointermove', job, 0.02); pointer('pointermove', job, rowsDown);
            const shifted = [...document.querySelectorAll('.lt-row')].map(({ style }) =>
                Math.sign(parseFloat(style.transform.slice(11)) || 0)).join('');
            if (end === 'Escape') press('Escape', {}, document.body);
            else pointer(end, job, rowsDown);
            await settle();
            const sent = named('jobs_reorder').slice(before).map(({ sent }) =>
                `${sent.job} ${sent.before} ${sent.after} ${sent.first}`).join();
            told.push([shifted, rows(), sent,
                document.querySelectorAll('.lt-moving, .lt-sorting').length].join('/'));
            if (sent) await answer('jobs_reorder', {});
            if (!named('jobs_queue').at(-1).isOver) await list(names);
        };
        await drag('b', 1, 'pointerup'); await drag('d', -2, 'pointerup'); await drag('d', -9, 'pointerup');
        await drag('b', 9, 'pointerup'); await drag('b', 1, 'pointercancel'); await drag('b', 1, 'Escape');
        await drag('c', 0.3, 'pointerup'); await drag('b', 1, 'pointerup', { button: 2 });
        return told;
    """,
    )
    assert told == [
        "01-10/Acbd/b d  false/0", "011-1/Adbc/d b  true/0", "011-1/Adbc/d b  true/0",
        "01-1-1/Acdb/b  d false/0",
        "01-10/Abcd//0", "01-10/Abcd//0", "0010/Abcd//0", "0000/Abcd//0",
    ]  # fmt: skip


def test_a_long_queue_is_asked_for_by_what_is_in_sight(page: Any) -> None:
    told = queue(
        page,
        """
        const told = [];
        const height = parseFloat(getComputedStyle(find('.lt-rows')).getPropertyValue('--row'));
        const some = (from, count, total) =>
            page([...Array(count).keys()].map((n) => `r${from + n}`), { first: from, total });
        const paddings = () =>
            ['paddingTop', 'paddingBottom'].map((side) => parseFloat(find('.lt-rows').style[side]) / height);
        await answer('jobs_queue', some(0, 60, 500));
        told.push(named('jobs_queue')[0].sent.first, ...paddings());
        scrollTo(0, 200 * height); await settle(); await settle();
        const { first, limit } = named('jobs_queue').at(-1).sent;
        told.push(first > 165 && first < 200, limit > 50 && limit <= 200);
        await answer('jobs_queue', some(first, limit, 500));
        told.push(paddings()[0] === first, paddings()[1] === 500 - first - limit, asks().length);
        told.push(grip(`r${first}`).ariaLabel.split(':')[0] === `Place ${first + 1} of 500`);
        press('ArrowUp', {}, grip(`r${first}`)); told.push(said() === `r${first} cannot be moved further.`);
        press('ArrowDown', {}, grip(`r${first}`)); await settle();
        told.push(named('jobs_reorder')[0].sent.first,
            said() === `r${first} is now number ${first + 2} of 500.`);
        const count = asks().length;
        scrollTo(0, 0); await settle(); told.push(asks().length - count);
        await answer('jobs_reorder', {}); await answer('jobs_queue', some(0, 3, 3)); told.push(paddings());
        find('.lt-row .lt-row-more').focus();
        await hear(); await answer('jobs_queue', page(['r1', 'r2']));
        told.push(document.activeElement.closest('.lt-row')?.dataset.job ?? document.activeElement.className);
        find('#tab-queue').focus(); await hear(); await answer('jobs_queue', page([]));
        told.push(document.activeElement.id);
        const hold = find('.lt-queue-hold');
        const head = () => told.push([hold.hidden ? '' : hold.textContent, hold.getAttribute('aria-pressed'),
            Boolean(hold.title), find('.lt-queue-empty').hidden].join('/'));
        head();
        await hear(); await list([], { held: true }); head();
        hold.click(); await settle(); told.push(calls.at(-1).path); await answer('jobs_go_on', {});
        await list(['a']); head();
        hold.click(); await settle(); told.push(calls.at(-1).path); await answer('jobs_hold', {});
        await list(['a'], { held: true }); head();
        const before = asks().length;
        await hear({ sectionsDone: 1 }); await list(['a']); revision -= 1; await hear({ sectionsDone: 1 });
        told.push(asks().length - before);
        revision -= 1; await hear({ sectionsDone: 2 }); await list(['a']); told.push(asks().length - before);
        location.hash = 'history'; await settle(); await hear(); told.push(asks().length - before);
        return told;
    """,
    )
    assert told == [
        0, 0, 440, True, True, True, True, 2, True, True, False, True, 0, [0, 0], "r1",
        "tab-queue", "/false/true/false", "Resume the queue/true/false/false", "jobs_go_on",
        "Pause everything/false/true/true",
        "jobs_hold", "Resume the queue/true/false/true", 1, 2, 2,
    ]  # fmt: skip


def test_each_card_has_its_line_and_buttons(page: Any) -> None:
    told = queue(
        page,
        """
        const line = (card, job, more = {}) => ({
            card, name: card, memory: '', job, now: job ? `Makes ${job}` : 'Free', isOut: false,
            buttons: [['leave', 'Take out'], ['pause', 'Pause this card']], ...more,
        });
        await list(['a'], { cards: [line('one', 'x'), line('two', '')] });
        const told = [];
        const at = (card, action) => find(`.lt-devices [data-card=${card}] [data-action=${action}]`);
        told.push(find('.lt-devices').hidden, at('one', 'watch').ariaLabel, at('two', 'watch').disabled);
        at('two', 'leave').click(); await settle();
        told.push(calls.at(-1).path, calls.at(-1).sent);
        await answer('cards_leave', []); await list(['a'], { cards: [line('two', '', { isOut: true })] });
        told.push([...document.querySelectorAll('.lt-devices li')].map(({ dataset }) =>
            `${dataset.card} ${dataset.out}`));
        await hear(); await list(['a'], { cards: [line('one', 'x')] });
        at('one', 'watch').click(); await settle();
        told.push(location.hash, streams.at(-1).address);
        return told;
    """,
    )
    assert told == [
        False, "Makes x. Watch it.", True, "cards_leave", {"card": "two"}, ["two true"], "#create",
        "api/live?job=x",
    ]  # fmt: skip

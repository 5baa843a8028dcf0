"""Tests of the History tab's scripts without a server: what is asked, shown, removed and led to."""

from typing import Any

from tests.app.ui.live.test_page_stage import scene
from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium
# Opens the tab over cards; `cards` tells which are shown, and `hear` sends the news of another revision.
GALLERY = """
    window.card = (job, more = {}) => ({
        job, words: job, state: 'finished', root: '', versions: 1, still: '', length: '', sentence: '',
        created: 1e9,
        newest: 1e9, seed: '1', model: 'M', favourite: false, bytes: 1, actions: ['remove'], video: `v${job}`,
        ...more,
    });
    window.some = (cards, next = '', models = ['M']) => (
        { next, say: `${cards.length} videos.`, none: '', models, cards });
    let [now, revision] = [5000, 0];
    performance.now = () => now;
    const { reportJobs } = await load('jobs.js');
    window.hear = async (later = 2000) => {
        now += later;
        reportJobs({ queue: { revision: String(revision += 1) } });
        await settle();
    };
    window.item = (job) => find(`.lt-video-card[data-job="${job}"]`);
    window.cards = () =>
        [...document.querySelectorAll('.lt-video-card')].map(({ dataset }) => dataset.job).join('');
    window.asked = () => named('history_search').length;
    location.hash = 'history';
    await load('undo.js');
    await load('tabs.js').then((tabs) => tabs.default(find('.lt-tabs')));
    await load('history/history.js').then((history) => history.default());
    await settle();
"""


def browse(page: Any, script: str, argument: Any = None) -> Any:
    return page.evaluate(f"async (base) => {{ {GALLERY} {script} }}", argument)


def test_videos_are_removed_by_key_and_for_good_by_a_second_press(page: Any) -> None:
    told = browse(
        page,
        """
        await answer('history_search', some(['a', 'b', 'c', 'd'].map((job) => card(job))));
        const told = [];
        const pick = (job) => item(job).querySelector('.lt-pick input').click();
        const keyed = async (key, target) => {
            const before = named('jobs_remove').length;
            press(key, {}, target);
            await settle();
            told.push(named('jobs_remove').slice(before).map(({ sent }) => sent.jobs.join('')).join());
        };
        pick('a'); pick('c'); pick('d');
        told.push(find('.lt-picked-compare').hidden);
        pick('d');
        await keyed('x', item('a').querySelector('a'));
        await keyed('Delete', find('.lt-find-text'));
        await keyed('Delete', item('b').querySelector('a'));
        named('jobs_remove').at(-1).refuse('It is used.'); await settle();
        told.push(textOf('.lt-gallery-count'), find('#undo').hidden);
        await keyed('Delete', item('a').querySelector('a'));
        await answer('jobs_remove', []);
        told.push(textOf('#undo span'), document.activeElement.className);
        await answer('history_search', some([card('b'), card('d')])); told.push(cards());
        find('.lt-space').open = true; await settle();
        const usage = { say: '3 GB', removed_bytes: 5, jobs: [{ id: 'b', title: 'B', size: '2 GB' }] };
        await answer('jobs_usage', usage);
        told.push([textOf('.lt-space-say'), find('.lt-space-empty').hidden]);
        const button = () => find('.lt-space-videos button');
        button().click(); await settle();
        told.push([button().textContent, button().ariaLabel, named('jobs_delete').length]);
        button().click(); await settle();
        told.push(named('jobs_delete')[0].sent);
        await answer('jobs_delete', []);
        await answer('jobs_usage', { ...usage, removed_bytes: 0, jobs: [] });
        await answer('history_search', some([card('d')]));
        told.push([cards(), find('.lt-space-empty').hidden, find('.lt-space-videos').childElementCount]);
        return told;
    """,
    )
    assert told == [
        True, "", "", "b", "It is used.", True, "ac", "Removed: 2 videos", "lt-undo-do", "bd",
        ["3 GB", False],
        ["Press again to delete it", "Press again to delete it: B", 0], {"jobs": ["b"]}, ["d", True, 0],
    ]  # fmt: skip


ASK_ANEW = """
        const told = [];
        const sent = () => {
            const { limit, before, stacked, root, text } = named('history_search').at(-1).sent;
            told.push([limit, before, stacked ?? false, root ?? '', text].join('/'));
        };
        const many = (count, from = 0) => [...Array(count).keys()].map((n) => card(`${from + n}-`));
        sent(); await answer('history_search', some(many(24), '24', ['M', 'N']));
        told.push(find('.lt-find-model').hidden, find('.lt-more').hidden);
        find('.lt-more').click(); await settle(); sent();
        await answer('history_search', some(many(1, 24), '', ['M']));
        told.push(find('.lt-find-model').hidden, find('.lt-more').hidden, cards().length);
        await hear(); sent(); await answer('history_search', some(many(24)));
        await hear(); sent(); await answer('history_search', some([]));
        const quiet = asked();
        await hear(500); told.push(asked() - quiet);
        await hear(600); sent(); named('history_search').at(-1).lose(); await settle();
        const lost = asked();
        now += 2000; reportJobs({ queue: { revision: String(revision) } }); await settle();
        told.push(asked() - lost);
        const tree = [card('a', { root: 'r', versions: 3 }),
            card('z', { created: 1e9 - 9e5, newest: 1e9 - 2e5, words: '' })];
        await answer('history_search', some(tree));
        const facts = (job) => item(job).querySelector('.lt-video-card-facts').textContent;
        told.push(facts('a').split(' · ').slice(1), facts('a').split(', ').length,
            facts('z').split(', ').length, item('z').textContent.includes('No prompt'));
        const stack = () => item('a').querySelector('.lt-stack');
        told.push(stack().textContent, stack().ariaExpanded);
        stack().click(); await settle(); sent();
        await answer('history_search', some([card('a'), card('b'), card('c')]));
        told.push([cards(), stack().ariaExpanded, item('b').dataset.stacked, item('z').dataset.stacked]);
        stack().click(); await settle();
        told.push([cards(), stack().ariaExpanded]);
        const star = () => item('a').querySelector('.lt-star');
        for (const favourite of [true, false]) {
            star().click(); await settle();
            told.push(named('jobs_favourite').at(-1).sent.favourite);
            await answer('jobs_favourite', [{ favourite }]);
            told.push(star().getAttribute('aria-pressed') + star().ariaLabel);
        }
        window.told = told;
        const link = item('a').querySelector('a');
        window.point = async (type, pointerType) => {
            link.dispatchEvent(new PointerEvent(type, { pointerType }));
            for (let n = 0; n < 10; n += 1) await settle();
            told.push(link.querySelector('video')?.getAttribute('src') ?? '');
        };
        await point('pointerenter', 'touch'); await point('pointerenter', 'mouse');
        await point('pointerleave', 'touch');
        await point('pointerleave', 'mouse');
        return told;
    """


def test_a_gallery_is_asked_for_anew_as_far_as_it_is_shown(page: Any) -> None:
    assert browse(page, ASK_ANEW) == [
        "24//true//", False, False, "24/24/true//", True, True, 24 * 2 + 14 + 3, "48//true//", "24//true//",
        0,
        "24//true//", 1, ["seed 1", "M"], 1, 2, True, "3 versions", "false", "200//false/r/",
        ["abcz", "true", "true", "false"], ["az", "false"],
        True, "trueFavourite: a", False, "falseFavourite: a", "", "va", "va", "",
    ]  # fmt: skip
    page.emulate_media(reduced_motion="reduce")
    assert (
        page.evaluate("(async () => { await point('pointerenter', 'mouse'); return told.at(-1); })()") == ""
    )


LEAD_BACK = """
        const told = [];
        const opened = (job, more = {}) => ({
            ...base, job, card: card(job), actions: ['remove'], states: [], files: [], tree: null, queue: {},
            ...more,
        });
        const here = () => [
            document.querySelector('.lt-past').dataset.state, find('.lt-past-open').dataset.job,
            document.activeElement.closest('li')?.dataset.job ?? document.activeElement.className,
        ].join(' ');
        await answer('history_search', some(['a', 'b', 'c'].map((job) => card(job))));
        find('.lt-gallery').style.minHeight = '3000px';
        window.scrollTo(0, 120); await settle(); await settle();
        location.hash = 'history/b'; await settle();
        window.scrollTo(0, 0);
        const tree = {
            columns: 2, isInverted: false,
            rows: ['a', 'b'].map((job) => (
                { job, begin: 1, parent: 0, cells: [null], words: job, spoken: job, isOpened: job === 'b' })),
        };
        await answer('history_open', opened('b', { tree }));
        told.push(here(), [...document.querySelectorAll('.lt-past-open .lt-tree a')].map((link) =>
            link.getAttribute('aria-current')));
        location.hash = 'history'; await settle();
        told.push(window.scrollY, here());
        await answer('history_search', some(['a', 'b', 'c'].map((job) => card(job))));
        location.hash = 'history/gone'; await settle();
        named('history_open').at(-1).reply({ message: 'Away.' }, 500); await settle();
        told.push(textOf('.lt-past-say'), location.hash);
        await hear(); named('history_open').at(-1).reply({ message: 'Gone.' }, 404); await settle();
        await answer('history_search', some([card('a')]));
        told.push(location.hash, textOf('.lt-gallery-count'));
        await hear(); await answer('history_search', some([card('a')]));
        location.hash = 'history/a'; await settle(); await answer('history_open', opened('a'));
        const remove = () => find('.lt-past-open .lt-remove').click();
        remove(); await settle(); named('jobs_remove').at(-1).refuse('It is used.'); await settle();
        told.push(textOf('.lt-past-say'), textOf('.lt-gallery-count'));
        press('Delete', {}, find('.lt-past-open .lt-back')); await settle();
        told.push(named('jobs_remove').length);
        remove(); await settle(); await answer('jobs_remove', []); await settle();
        told.push(location.hash, here(), textOf('#undo span'));
        await answer('history_search', some([])); told.push(textOf('.lt-gallery-count'));
        location.hash = 'history/c'; await settle();
        await answer('history_open', opened('c', { log: 'c/log' })); told.push(textOf('.lt-past-say'));
        press('Escape', {}, find('.lt-find-text')); told.push(location.hash);
        press('Escape', {}, find('.lt-past-open .lt-back')); await settle(); told.push(location.hash);
        await answer('history_search', some([]));
        location.hash = 'history/c'; await settle();
        await answer('history_open', opened('c', { log: 'c/log' }));
        told.push(find('.lt-past-open .lt-log').hidden);
        location.hash = 'queue'; await settle(); told.push(find('.lt-past-open .lt-log').hidden);
        const before = named('history_open').length;
        await hear(); told.push(named('history_open').length - before);
        return told;
    """


def test_an_opened_video_leads_back_to_where_the_gallery_was(page: Any) -> None:
    told = browse(page, LEAD_BACK, scene())
    lost = "The video of that link is not here any more; these are all videos. 1 videos."
    assert told == [
        "open b lt-back", [None, "page"], 120, "gallery b b", "Away.", "#history/gone", "#history", lost,
        "It is used.", lost, 1, "#history", "gallery a lt-undo-do", "Removed: a", "0 videos.", "",
        "#history/c", "#history",
        False, True, 0,
    ]  # fmt: skip


def test_two_selected_videos_are_compared_and_one_is_kept(page: Any) -> None:
    told = browse(
        page,
        """
        for (const video of document.querySelectorAll('#compare video')) film(video, { va: 2, vb: 2 });
        await load('live/compare.js').then((compare) => compare.default());
        await answer('history_search', some([card('a'), card('b', { actions: [], words: '' })]));
        for (const job of ['a', 'b']) item(job).querySelector('.lt-pick input').click();
        find('.lt-picked-compare').click(); await settle();
        const keeps = [...document.querySelectorAll('#compare .lt-compare-keep')];
        const told = [keeps.map(({ textContent, hidden }) => (hidden ? '' : textContent))];
        told.push([...document.querySelectorAll('#compare video')].map(({ ariaLabel }) =>
            ariaLabel.split(' · ')[1]));
        keeps[1].click(); await settle();
        told.push(named('jobs_remove')[0].sent);
        await answer('jobs_remove', []); told.push(find('#compare').open);
        find('.lt-picked-none').click(); told.push(find('.lt-picked').hidden);
        return told;
    """,
    )
    assert told == [
        ["", "Keep right, remove left"], ["a", "No prompt"], {"jobs": ["a"]}, False, True,
    ]  # fmt: skip

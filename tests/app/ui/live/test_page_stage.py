"""Tests of the stage's scripts without a server: which video is shown, how it is moved, and what is said."""

from typing import Any

from app.ui.live.progress import LiveJob
from app.ui.live.scene import scene_data
from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium
from tests.support.reported_jobs import job_of

__all__ = ["document", "page"]
pytestmark = needs_chromium
# A player of videos of known lengths; `show` gives it a version, and waits until that is on top or refused.
PLAYER = """
    const { Player } = await load('live/player.js');
    const stage = document.querySelector('.lt-stage');
    const lengths = { a: 2, b: 3.2, c: 5 };
    for (const video of stage.querySelectorAll('video')) film(video, lengths);
    let told = 0;
    const player = new Player(stage, (at) => { told = at; });
    const top = () => stage.querySelector('video.lt-top');
    const show = async (job, url, more = {}, facts = {}) => {
        const video = url && { url, front: 0, hidden: 0, fps: 24, ...more };
        player.show({ job, poster: null, plays: false, video, ...facts });
        for (let n = 0; n < 5; n += 1) await settle();
        return [stage.dataset.state, stage.dataset.url, stage.dataset.swaps].join(' ');
    };
    const close = (value) => Math.round(100 * value) / 100;
"""


def play(page: Any, script: str) -> Any:
    return page.evaluate(f"async () => {{ {PLAYER} {script} }}")


def test_a_job_that_comes_back_to_the_stage_is_shown_anew_and_a_lost_video_is_asked_for_again(
    page: Any,
) -> None:
    shown = play(
        page,
        """
        const wait = window.setTimeout;
        window.setTimeout = (act, time) => wait(act, time === 1000 ? 0 : time);
        const shown = [await show('1', 'a'), await show('1', 'a'), await show('1', 'b'), await show('2', '')];
        shown.push(await show('1', 'b'));
        shown.push(await show('1', 'gone'), await show('1', 'gone'));
        lengths.gone = 4;
        shown.push(await show('1', 'gone'));
        shown.push(await show('3', '', {}, { poster: 'data:,x' }), await show('', ''));
        shown.push(await show('4', 'never'), await show('5', 'c'));
        return shown;
    """,
    )
    assert shown == [
        "video a 1", "video a 1", "video b 2", "empty  0", "video b 1", "video b 1", "video b 1",
        "video gone 2", "picture  0", "empty  0", "empty  0",
        "video c 1",
    ]  # fmt: skip


def test_a_version_takes_over_time_speed_sound_and_rest_of_the_one_before(page: Any) -> None:
    results = play(
        page,
        """
        await show('1', 'a');
        const [first, speed] = [top(), stage.querySelector('.lt-speed')];
        first.muted = false;
        first.volume = 0.25;
        speed.value = 2;
        speed.dispatchEvent(new Event('change'));
        player.jump(0.5);
        await show('1', 'b', { front: 1.2, hidden: 0.4 });
        const { volume, muted, playbackRate, paused } = top();
        const rest = [top() !== first, close(player.at), close(told), volume, muted, playbackRate, paused];
        player.jumpTo(2);
        const jumped = [close(player.at), stage.querySelector('.lt-time').textContent];
        top().play();
        await settle();
        await show('1', 'c', { front: 1.2, hidden: 0.4 });
        const plays = [top().paused, player.at > 1.6, stage.dataset.playing];
        await show('2', 'a', {}, { plays: true });
        return [rest, jumped, plays, [top().paused, top().loop, first.getAttribute('aria-hidden')]];
    """,
    )
    assert results == [
        [True, 1.7, 2.1, 0.25, False, 2, True], [1.6, "1.6 / 3.2 s"], [False, True, "true"],
        [False, True, "true"],
    ]  # fmt: skip


def test_each_key_of_the_stage_does_its_work(page: Any) -> None:
    moved = play(
        page,
        """
        await show('1', 'a');
        const names = ['seek', 'play', 'speed'];
        const [seek, play, speed] = names.map((name) => stage.querySelector(`.lt-${name}`));
        const at = (key, from = 1, more = {}, target = seek) => {
            player.jump(from);
            const isTaken = press(key, more, target);
            return [key, isTaken, Math.round(1000 * player.at)];
        };
        const moved = [
            at('ArrowLeft'), at('ArrowLeft', 0.5), at('ArrowRight', 0.5), at('ArrowRight', 1.5),
            at(','), at('.'),
            at('Home'), at('End'), at('x'), at('ArrowLeft', 1, { ctrlKey: true }),
            at('ArrowLeft', 1, { metaKey: true }), at('ArrowLeft', 1, { altKey: true }),
            at('ArrowLeft', 1, {}, speed), at('ArrowLeft', 1, {}, play), at(' ', 1, {}, play),
        ];
        const states = [];
        for (const key of [' ', 'l', 'l', 'l', 'l', 'k', 'k', 'k']) {
            press(key, {}, seek);
            states.push(`${top().paused ? 'rests' : 'plays'} ${top().playbackRate}`);
        }
        return [moved, states];
    """,
    )
    end = round(1000 * (2 - 1 / 60))
    assert moved[0] == [
        ["ArrowLeft", True, 0], ["ArrowLeft", True, 0], ["ArrowRight", True, 1500], ["ArrowRight", True, end],
        [",", True, round(1000 - 1000 / 24)], [".", True, round(1000 + 1000 / 24)], ["Home", True, 0],
        ["End", True, end], ["x", False, 1000], ["ArrowLeft", False, 1000], ["ArrowLeft", False, 1000],
        ["ArrowLeft", False, 1000], ["ArrowLeft", False, 1000], ["ArrowLeft", True, 0], [" ", False, 1000],
    ]  # fmt: skip
    assert moved[1] == [
        "plays 1", "plays 1.5", "plays 2", "plays 2", "plays 2", "rests 2", "plays 2", "rests 2",
    ]  # fmt: skip


def test_a_wish_to_loop_outlasts_the_job_and_a_press_at_the_end_begins_anew(page: Any) -> None:
    results = play(
        page,
        """
        const [loop, play] = ['loop', 'play'].map((name) => stage.querySelector(`.lt-${name}`));
        const state = () => [loop.getAttribute('aria-pressed'), top().loop, top().paused].join(' ');
        await show('1', 'a', {}, { plays: true });
        const results = [state()];
        await show('1', 'b', {}, { plays: false });
        results.push(state());
        loop.click();
        play.click();
        await show('2', 'c', {}, { plays: true });
        play.click();
        results.push(state());
        loop.click();
        results.push(state());
        loop.click();
        results.push(state());
        play.click();
        top().currentTime = 5;
        play.click();
        await settle();
        return [...results, state(), player.at < 1];
    """,
    )
    assert results == [
        "true true false", "false false false", "true true true", "false false true", "true true false",
        "true true false", True,
    ]  # fmt: skip


def scene(**facts: Any) -> dict[str, Any]:
    live = LiveJob(job_of("forward", 3.6))
    made = scene_data(live, 1.0, lambda _: "") | {"takes": None, "log": "", "open": []}
    return made | {"poster": None, "memory": None, "settings": [], "spent": 0} | facts


FOLLOW = """async (base) => {
        for (const video of document.querySelectorAll('.lt-stage video')) film(video, {});
        await load('live/live.js').then((live) => live.default());
        let revision = 0;
        const find = (selector) => document.querySelector(selector);
        const make = (job, state, more = {}) => {
            const [isRunning, isOpen] = [state === 'running', ['running', 'queued'].includes(state)];
            const ending = { sentence: `The video is ${state}`, title: state };
            const isWorthKeeping = state === 'finished';
            return {
                ...base, job, state, isRunning, isOpen, isWorthKeeping, ending, percent: 12.7, section: 1,
                sections: 3, headline: `${job} is ${state}`,
                announcement: { kind: 'Next', prompt: job, label: 'Watch' },
                queue: { revision: String(revision += 1) }, ...more,
            };
        };
        const said = () => {
            const words = textOf('.lt-say');
            find('.lt-say').textContent = '';
            const next = find('.lt-next').hidden ? '-' : find('.lt-next').dataset.job;
            return `${find('.lt-status').dataset.job} ${next} ${document.title.split(' · ')[0]}: ${words}`;
        };
        const told = [];
        const hear = async (...scene) => {
            streams.at(-1).onmessage({ data: JSON.stringify(make(...scene)) });
            await settle();
            told.push(said());
        };
        const look = async (...scene) => {
            calls.at(-1).answer(make(...scene));
            await settle();
            told.push(`${calls.at(-1).path} ${said()}`);
        };
        await hear('1', 'finished');
        await hear('2', 'running');
        await hear('2', 'running', { section: 2 });
        await hear('2', 'finished');
        await hear('3', 'running');
        await hear('3', 'running', { section: 2 });
        find('.lt-next button').click();
        told.push(said());
        await hear('4', 'running');
        await look('3', 'paused');
        await hear('4', 'failed', { failure: { message: 'Why.', remedy: '', report: '' } });
        await hear('5', 'queued', { isFollowed: true });
        await hear('6', 'running', { before: { job: '5' } });
        const { expectStage, openOnStage, watchRunning } = await load('live/live.js');
        await hear('6', 'cancelled');
        expectStage();
        await hear('7', 'running');
        openOnStage('2');
        await settle();
        await look('2', 'finished');
        await hear('7', 'running', { section: 2 });
        await hear('7', 'finished');
        await hear('7', 'finished');
        watchRunning('8');
        told.push(streams.at(-1).address);
        await hear('8', 'running');
        openOnStage('2');
        await settle();
        await look('2', 'finished');
        await hear('8', 'running', { section: 2 });
        find('.lt-next button').click();
        expectStage();
        await hear('8', 'finished');
        await hear('9', 'running');
        openOnStage('2');
        await settle();
        await look('2', 'finished', { isFollowed: true });
        await hear('9', 'running', { before: { job: '2' } });
        openOnStage('9');
        await settle();
        await look('9', 'running');
        await hear('9', 'finished');
        expectStage();
        await hear('94', 'finished');
        await hear('95', 'running');
        Object.assign(window, { hear, told });
        return told;
    }"""


NOTIFY = """async () => {
        const [lines, notes] = [[], []];
        const part = (name) => document.querySelector(`.lt-${name}`);
        Object.defineProperty(window, 'isSecureContext', { value: true });
        window.Notification = class {
            static permission = 'granted';
            constructor(title, { body, tag }) { notes.push([title, body, tag].join()); }
        };
        for (const job of ['A', 'B', 'C']) {
            await hear(job, 'running');
            if (job > 'A') { part('notify').click(); await settle(); }
            lines.push(part('line').hidden || textOf('.lt-line-words'), part('notify').ariaPressed);
            part('next').querySelector('button').click();
            await hear(job, 'finished');
            lines.push(part('line').hidden, notes.length);
        }
        await hear('D', 'queued');
        return [...lines, ...notes, part('next').querySelector('i').style.transform];
    }"""


def test_the_stage_follows_what_is_made_and_keeps_what_a_user_has_seen_end(page: Any) -> None:
    assert page.evaluate(FOLLOW, scene()) == [
        "1 - Longtake: ",
        "2 - 12 %: 2 is running",
        "2 - 12 %: Section 2 of 3 is being made.",
        "2 - finished: The video is finished.",
        "2 3 12 %: The video is finished. Next: 3.",
        "2 3 12 %: ",
        "3 - 12 %: 3 is running",
        "3 - 12 %: ",  # until the server has told what became of it
        "jobs_scene 4 - 12 %: 4 is running",
        "4 - failed: ",  # an alert tells of it
        "5 - Waiting: 5 is queued",
        "6 - 12 %: 6 is running",
        "6 - cancelled: The video is cancelled.",
        "7 - 12 %: 7 is running",
        "jobs_scene 2 7 12 %: The video is finished.",
        "2 7 12 %: ",
        "2 7 finished: The video is finished.",
        "2 7 finished: ",
        "api/live?job=8",
        "8 - 12 %: 8 is running",
        "jobs_scene 2 8 12 %: The video is finished.",
        "2 8 12 %: ",
        "8 - finished: The video is finished.",
        "8 9 12 %: The video is finished. Next: 9.",
        "jobs_scene 2 9 12 %: The video is finished.",
        "2 9 12 %: ",
        "jobs_scene 9 - 12 %: 9 is running",
        "9 - finished: The video is finished.",
        "94 - finished: The video is finished.",
        "94 95 12 %: The video is finished. Next: 95.",
    ]
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate(NOTIFY) == [
        "Next: A is running", "false", True, 0, "Next: B is running", "true", True, 1, "Next: C is running",
        "false", True, 1, "Longtake: the video is finished,B,B", "scaleX(0)",
    ]  # fmt: skip


def test_times_run_on_between_two_updates_and_stand_still_without_a_connection(page: Any) -> None:
    facts = {
        "job": "1", "state": "running", "isRunning": True, "isOpen": True, "elapsed": 100, "left": 60,
        "due": "", "isGuess": False, "percent": 50, "quiet": 2, "calm": 8, "usual": "a step takes 2 s",
        "expected": 30, "expectedText": "about 30 s", "spent": 10, "remark": "It rests.",
    }  # fmt: skip
    alive = "alive", "Last sign of life 2 s ago."
    later = "alive", "Last sign of life 7 s ago."
    time, remark = "about 1 min 0 s left · 1 min 40 s so far", "10 s of about 30 s. It rests."
    time_later, remark_later = "about 55 s left · 1 min 45 s so far", "15 s of about 30 s. It rests."
    late = "a guess: 1 min 0 s left · 1 min 40 s so far", "for 30 s, longer than expected. It rests."
    quiet = "quiet", "No sign of life for 9 s: a step takes 2 s."
    lost = "lost", "This was the last that was heard of the video."
    so_far = "1 min 40 s so far"
    rows: list[tuple[dict[str, Any], float, tuple[str, str, str, str]]] = [
        ({}, 0, (*alive, time, remark)),
        ({"quiet": 1.4}, 0, ("alive", "Last sign of life just now.", time, remark)),
        ({}, 5, (*later, time_later, remark_later)),
        ({"quiet": 3}, 5, ("alive", "Last sign of life 8 s ago.", time_later, remark_later)),
        ({"quiet": 4}, 5, (*quiet, time_later, remark_later)),
        ({}, 6, (*lost, f"{so_far}, when it was last heard of", remark)),
        ({"isGuess": True, "spent": 30}, 0, (*alive, *late)),
        ({"left": None, "expected": 0, "remark": ""}, 0, (*alive, so_far, "for 10 s.")),
        ({"left": 0.5, "percent": 95}, 0, (*alive, f"nearly done · {so_far}", remark)),
        ({"left": 0.5}, 0, (*alive, so_far, remark)),
        ({"left": 1}, 5, (*later, "1 min 45 s so far", remark_later)),
        ({"left": -1}, 5, (*later, "longer than expected · 1 min 45 s so far", remark_later)),
        ({"due": "first video soon"}, 5, (*later, "first video soon · 1 min 45 s so far", remark_later)),
        ({"isRunning": False, "expected": None}, 5, ("none", "", "-", "-")),
    ]
    told = page.evaluate(
        """async (scenes) => {
        let now = 0;
        performance.now = () => now;
        const { preparePulse } = await load('live/pulse.js');
        const view = document.querySelector('.lt-view');
        return scenes.map(([scene, later]) => {
            for (const part of ['eta', 'remark']) view.querySelector(`.lt-${part}`).textContent = '-';
            const pulse = preparePulse(view);
            pulse.receive(scene);
            now += 1000 * later;
            const isLost = pulse.tick();
            const lost = textOf('.lt-lost');
            if (isLost !== lost.startsWith('Connection lost.')) throw new Error(lost);
            return [view.querySelector('.lt-pulse').dataset.kind,
                ...['pulse-text', 'eta', 'remark'].map((part) => textOf(`.lt-${part}`))];
        });
    }""",
        [[facts | changed, later] for changed, later, _ in rows],
    )
    assert [tuple(words) for words in told] == [expected for *_, expected in rows]

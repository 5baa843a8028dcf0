"""Tests of what the buttons and panels beside the stage send, and of what they say then, without a server."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium
# `sent` gives what was sent since it was asked last.
SENT = """
    find('.lt-view').dataset.state = 'running';
    let seen = 0;
    const sent = () => calls.slice(seen, seen = calls.length).map(({ path, sent }) => (
        `${path} ${JSON.stringify(sent).replaceAll('"', '')}`));
    const told = [];
    const report = (words, job = '') => told.push(`${words}|${job}`);
    const expect = () => told.push('expected');
"""


USE_PANEL = """
        const { Panel } = await load('live/panel.js');
        const form = find('.lt-panel');
        const part = (name) => form.querySelector(`.lt-panel-${name}`);
        const cuts = [];
        const panel = new Panel(form, (keep) => cuts.push(keep), report, expect);
        const cells = [1, 2, 3].map((number) => ({ number, label: `${number}`, mayBranch: number < 3 }));
        const scene = (more = {}) => ({ job: '1', isOpen: false, cells, steering: null, ...more });
        const setting = (name, value, choices = []) =>
            ({ label: name, name, value, choices, low: 1, high: 99, step: 1 });
        const branch = {
            kept: ['k1', 'k2'], whyNot: '', whyNotLonger: '', section: 1.2, longer: 2, keptByLonger: 'K',
            prompt: 'p',
            seed: '5', seconds: 3.6,
            further: [setting('steps', 25), setting('sampler', 'a', [['a', 'A'], ['b', 'B']])],
        };
        const results = [];
        const tell = () => {
            const shown = [...form.querySelectorAll('[data-of]')].filter((item) => !item.hidden).length;
            const [title, hint] = ['h3', '.lt-panel-hint'].map((name) =>
                form.querySelector(name).textContent);
            const disabled = form.querySelectorAll('input:disabled').length;
            results.push(form.hidden ? 'hidden' : [title, hint, shown, disabled, cuts.at(-1)].join('/'));
        };
        panel.show(scene());
        panel.press(cells[2]); tell();
        panel.press(cells[1]); tell();
        part('here').click(); await settle();
        await answer('history_open', { branch }); tell();
        results.push(part('words').value, document.activeElement.className, sent());
        panel.press(cells[0]); tell(); panel.press(cells[1]);
        const seed = part('seed').value;
        part('new').click(); results.push(part('seed').value !== seed);
        part('seed').value = '77';
        part('words').value = ' new ';
        part('further').querySelector('[name=steps]').value = '9';
        form.requestSubmit(); await settle(); results.push(sent());
        await answer('jobs_branch', { id: 'b' }); tell();
        results.push(told.splice(0), named('jobs_branch')[0].sent.changes.seed);
        panel.show(scene({ isOpen: true }));
        panel.open('cut'); await settle(); await answer('history_open', { branch }); tell();
        part('seed').value = '5'; part('further').querySelector('select').value = 'b';
        form.requestSubmit(); await settle(); await answer('jobs_branch', { id: 'b' });
        await answer('jobs_pause', []);
        results.push(sent().slice(1)); told.length = 0;
        panel.open('longer'); await settle(); await answer('history_open', { branch }); tell();
        results.push(part('add').value); sent();
        form.requestSubmit(); await settle(); await answer('jobs_branch', { id: 'l' });
        results.push(told.splice(0), sent());
        panel.open('cut'); await settle();
        panel.show(scene({ job: '2' }));
        await answer('history_open', { branch }); tell();
        part('close').click(); tell();
        panel.open('cut', 1); await settle();
        await answer('history_open', { branch: { ...branch, whyNot: 'Why.' } }); tell();
        part('close').click();
        panel.open('cut', 1); await settle(); await answer('history_open', { branch }); sent();
        part('takes').click(); await settle(); await answer('jobs_takes', [{ id: 't' }]);
        results.push(sent(), told.splice(0));
        panel.show(scene({ job: '2', percent: 5 })); tell(); panel.show(scene({ job: '3' })); tell();
        return results;
    }"""


def test_the_panel_asks_for_branches_and_longer_videos(page: Any) -> None:
    results = page.evaluate(f"async () => {{ {SENT} {USE_PANEL}")
    again = "Again: section 2 and those made after it"
    assert results == [
        "hidden", f"{again}//0/4/", f"{again}/k1/3/2/1", "p", "lt-panel-words", ['history_open {job:1}'],
        "Again: section 1 and those made after it//3/2/0", True,
        ["jobs_branch {job:1,keep:1,changes:{prompt:new,seed:77,steps:9}}"], "hidden",
        ["expected", "The branch is in the queue. k1|b"], 77, "Again: section 3/k2/3/2/2",
        ["jobs_branch {job:1,keep:2,changes:{sampler:b}}", "jobs_pause {jobs:[1]}"],
        "Make it longer/Whole sections of 1.2 s are added. K/2/4/", "2",
        ["expected", "The longer video is in the queue. K|l"], ["jobs_branch {job:1,longer:2}"],
        "Again: section 1 and those made after it//0/5/",
        "hidden", "Change from a section/Why./0/5/", ["jobs_takes {job:2,keep:1}"],
        ["Three takes of this section are in the queue. What was made stays.|t"], f"{again}/k1/3/2/1",
        "hidden",
    ]  # fmt: skip


def test_a_video_is_directed_by_words_that_no_news_takes_away(page: Any) -> None:
    results = page.evaluate(
        f"async () => {{ {SENT}"
        """
        const { Panel } = await load('live/panel.js');
        const form = find('.lt-panel');
        const part = (name) => form.querySelector(`.lt-panel-${name}`);
        const panel = new Panel(form, () => {}, report, expect);
        const show = (words, more = {}) => panel.show({
            job: '1', isOpen: true, cells: [],
            steering: { words, hint: 'h', waits: true, mayTake: false, ...more },
        });
        const results = [];
        const words = () => results.push(part('words').value);
        show('w'); await panel.open('steer');
        results.push([part('wait').checked, part('takes').disabled,
            form.querySelector('.lt-panel-hint').textContent]); words();
        panel.press({ number: 2, mayBranch: true, label: '' });
        results.push(form.querySelector('h3').textContent);
        part('words').value = 'typed'; show('news'); words();
        part('words').blur(); show('w'); words(); show('other'); words();
        part('words').value = 'mine'; show('other', { waits: false, mayTake: true }); words();
        results.push([part('wait').checked, part('takes').disabled]);
        panel.goOn(false); await settle();
        for (const name of ['jobs_change', 'jobs_wait', 'jobs_resume']) await answer(name, []);
        results.push(sent(), told.splice(0));
        panel.goOn(); await settle(); await answer('jobs_resume', []); results.push(sent());
        part('words').value = 'late';
        panel.goOn().catch(({ message }) => results.push(message)); await settle();
        named('jobs_change').at(-1).refuse('Too late.'); await settle(); results.push(sent());
        for (const isChecked of [true, false]) {
            part('wait').click(); await settle(); await answer('jobs_wait', []);
        }
        results.push(sent(), told.splice(0));
        part('words').value = 'again';
        part('takes').click(); await settle(); await answer('jobs_change', []);
        await answer('jobs_takes', []);
        results.push(sent(), form.hidden, told.splice(0).length);
        await panel.open('steer'); words();
        form.requestSubmit(); await settle(); named('jobs_change').at(-1).refuse('Too late.'); await settle();
        results.push(told.splice(0));
        panel.show({ job: '1', isOpen: true, cells: [], steering: null }); results.push(form.hidden);
        return results;
    }"""
    )
    assert results == [
        [True, True, "h"], "w", "What comes next", "typed", "typed", "other", "mine", [False, False],
        ["jobs_change {job:1,changes:{prompt:mine}}", "jobs_wait {jobs:[1],wait:false}",
            "jobs_resume {jobs:[1]}"],
        ["What comes next has the new words. What is made keeps its own.|"], ["jobs_resume {jobs:[1]}"],
        "Too late.", ["jobs_change {job:1,changes:{prompt:late}}"],
        ["jobs_wait {jobs:[1],wait:true}", "jobs_wait {jobs:[1],wait:false}"],
        ["It waits for you after each section; the device is free meanwhile.|", "It goes on by itself.|"],
        ["jobs_change {job:1,changes:{prompt:again}}", "jobs_takes {job:1}"], True, 2, "other",
        ["Too late.|"], True,
    ]  # fmt: skip


ACT = """
        await openForm();
        const { prepareActions, prepareReport, prepareStill } = await load('live/actions.js');
        const { read } = await load('form/describe.js');
        const box = find('.lt-actions').cloneNode(true); // the page has prepared its own
        const opened = [];
        const panel = { goOn: async () => opened.push('on'), open: async (mode) => opened.push(mode) };
        const show = prepareActions(box, panel, report, expect);
        const button = (label, enabled = true) => ({ label, enabled });
        const scene = { job: '1', prompt: 'p', favourite: false, offersMore: true };
        show({ ...scene, buttons: { pause: button('Pause'), cancel: button('End', false) } });
        const results = [['pause', 'stop', 'end', 'resume'].map((name) => {
            const { hidden, disabled, textContent } = box.querySelector(`.lt-${name}`);
            return hidden ? '' : `${textContent} ${disabled}`;
        })];
        show({ ...scene, buttons: { cancel: button('End') } });
        results.push(box.querySelector('.lt-end').disabled); sent();
        const answers = { again: { id: 'n' }, favourite: [{ favourite: true }], continue: { text: '{}' } };
        const star = () => box.querySelector('.lt-favourite').getAttribute('aria-pressed');
        for (const name of ['pause', 'stop', 'end', 'resume', 'steer', 'longer', 'change', 'again',
            'favourite']) {
            box.querySelector(`.lt-${name}`).click(); await settle();
            if (!calls.at(-1).isOver) calls.at(-1).answer(answers[name] ?? []);
            await settle();
        }
        const last = sent();
        const seed = /seed:(\\d+)/.exec(last[3])?.[1] ?? last.join();
        results.push([...last.map((line) => line.replace(seed, 'N'))], opened,
            told.splice(0).map((line) => line.replace(seed, 'N')), star());
        box.querySelector('.lt-favourite').click(); await settle();
        await answer('jobs_favourite', [{ favourite: false }]);
        results.push(sent(), star());
        const place = find('.lt-after-say');
        const said = prepareReport(place);
        said.turnTo({ job: '1', offersMore: true });
        said.say('Queued.', '2'); said.turnTo({ job: '1', offersMore: true });
        results.push(place.textContent);
        said.turnTo({ job: '2', offersMore: false });
        results.push(place.querySelector('a').getAttribute('href'));
        said.turnTo({ job: '3', offersMore: false }); results.push(place.textContent);
        said.say('Kept.'); results.push(place.innerHTML); said.turnTo({ job: '3', offersMore: true });
        results.push(place.textContent);
        const fold = find('.lt-still').cloneNode(true);
        const player = { at: 0, frame: async () => new Blob(['frame']) };
        const showStill = prepareStill(fold, player, report);
        const files = [];
        URL.createObjectURL = (file) => { files.push(file); return 'blob:x'; };
        HTMLAnchorElement.prototype.click = () => {};
        const save = async () => {
            const before = files.length;
            fold.querySelector('[data-use=save]').click(); await settle();
            if (calls.at(-1).path === 'first.png') calls.at(-1).answer('first');
            for (let n = 0; n < 100 && files.length === before; n += 1) await settle();
            results.push(`${files.at(-1).name} ${await files.at(-1).text()}`);
        };
        const film = (isPicture, first) => ({ first, video: { name: 'film.mp4', isPicture } });
        showStill(film(false, 'first.png')); await save();
        player.at = 0.5; await save();
        showStill(film(true, 'first.png')); await save();
        player.at = 0; showStill(film(false, null)); await save();
        location.hash = 'history';
        fold.querySelector('[data-use=end_image]').click(); await settle(); await uploaded('up/f');
        await settle();
        results.push(read('end_image'), location.hash);
        showStill({ video: null }); results.push(fold.hidden);
        return results;
    }"""


def test_the_actions_on_a_video_and_its_frame(page: Any) -> None:
    results = page.evaluate(f"async () => {{ {SENT} {ACT}")
    assert results == [
        ["Pause false", "", "End true", ""], False,
        ["jobs_pause {jobs:[1]}", "jobs_cancel {jobs:[1],after_section:true}", "jobs_cancel {jobs:[1]}",
         "jobs_duplicate {job:1,changes:{seed:N}}", "jobs_favourite {jobs:[1],favourite:true}"],
        ["on", "steer", "longer", "cut"],
        ["expected", "The video continues; finished work is not repeated.|", "expected",
         "The same video with the seed N is in the queue.|n"], "true",
        ["jobs_favourite {jobs:[1],favourite:false}"], "false", "Queued. Show it", "#history/2", "", "Kept.",
        "",
        'film-at-0.00-s.png "first"', "film-at-0.50-s.png frame", 'film.png "first"',
        "film-at-0.00-s.png frame",
        {"path": "up/f", "orig_name": "film-at-0.00-s.png"}, "#create", True,
    ]  # fmt: skip

"""Tests of a film's strip, records, exports, preview and stream of updates, without a server."""

from typing import Any

from tests.app.ui.live.test_page_stage import scene
from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


SHOW_FILM = """async (base) => {
        const view = find('.lt-view').cloneNode(true);
        find('.lt-view').replaceWith(view);
        for (const video of view.querySelectorAll('video')) film(video, { 'v1': 3, 'v2': 3 });
        const later = holdTimers();
        const { makeFilm } = await load('live/film.js');
        const made = makeFilm(view, () => {});
        const part = (name) => view.querySelector(`.lt-${name}`);
        const [first] = base.cells;
        const cellsOf = (count, done) => [...Array(count).keys()].map((index) => ({
            ...first, number: index + 1, begin: index, isDone: index < done, label: `${index}`,
            mayBranch: true,
        }));
        const video = { url: 'v1', front: 0, hidden: 0, fps: 24, name: 'f.mp4', isPicture: false };
        const show = async (more = {}) => {
            made.show({ ...base, job: '1', cells: cellsOf(3, 2), video, took: 'took 5 s', ...more });
            for (let n = 0; n < 3; n += 1) await settle();
        };
        const results = [];
        const cells = () => [...part('strip').children];
        const state = () => results.push(cells().map(({ ariaCurrent, dataset, ariaDisabled }) => (
            [dataset.section, ariaCurrent ? 'now' : '', dataset.goes === 'true' ? 'goes' : '',
                ariaDisabled === 'true' ? 'rests' : ''].join('')
        )).join(' '));
        await show(); state();
        cells()[1].click(); await settle(); state();
        cells()[2].click(); await settle(); state();
        view.querySelector('.lt-panel-here').click(); await settle();
        await answer('history_open', { branch: {
            kept: ['k'], whyNot: '', whyNotLonger: '', section: 1, longer: 2, keptByLonger: '', prompt: '',
            seed: '1', seconds: 3, further: [],
        } });
        state(); view.querySelector('.lt-panel-close').click(); state();
        await show({ cells: cellsOf(4, 1) }); state();
        await show({ job: '2', video: null, cells: cellsOf(4, 0) }); state();
        const time = (more) => show(more).then(() => results.push(textOf('.lt-eta')));
        await time({ isRunning: true, isOpen: true, eta: 'soon' });
        await time({ isRunning: false, isOpen: true });
        for (const stages of [[], [{ name: 'n', text: 't', share: 0.5 }]]) {
            await show({ figures: { facts: [], stages } }); results.push(part('figures').hidden);
        }
        const fold = part('details');
        await show({ memory: { isNear: false, rows: [] } }); fold.open = true;
        await show({ memory: { isNear: false, rows: [] }, percent: 9 }); results.push(fold.open);
        await show({ job: '3', memory: { isNear: false, rows: [] } }); results.push(fold.open);
        fold.open = false;
        await show({ job: '3', memory: { isNear: true, rows: [] } }); results.push(fold.open);
        fold.open = false;
        await show({ job: '3', memory: { isNear: true, rows: [] }, percent: 3 }); results.push(fold.open);
        const texts = { 'http://page.test/1': 'one', 'http://page.test/2': 'two' };
        let asked = [];
        window.fetch = async (address) => {
            asked.push(String(address).at(-1));
            return address in texts ? new Response(texts[address]) : new Response('', { status: 404 });
        };
        const [log, pre] = [part('log'), part('log pre')];
        const read = (words) =>
            { results.push(`${words} ${pre.textContent} ${asked.join('')}`); asked = []; };
        await show({ log: '' }); results.push(log.hidden);
        fold.open = log.open = true;
        await show({ log: '1', isRunning: true }); read('begins');
        texts['http://page.test/1'] = 'one more'; await later(2000); read('goes on');
        await show({ log: '1', isRunning: false }); read('over'); await later(2000); read('again');
        await later(4000); read('rests');
        await show({ log: '2', isRunning: true }); read('other');
        delete texts['http://page.test/2']; await show({ log: '3', isRunning: false }); read('none');
        let release = null;
        window.fetch = (address) => new Promise((done) => {
            release = () => done(new Response(texts[address] ?? 'x\\n'.repeat(99)));
        });
        await show({ log: '1', isRunning: true }); results.push(pre.textContent);
        const late = release;
        await show({ log: '4', isRunning: true }); release(); await settle(); late(); await settle();
        results.push(pre.textContent.length);
        Object.assign(pre.style, { height: '50px', overflow: 'auto' });
        for (const to of [9999, 0]) {
            pre.scrollTop = to; texts['http://page.test/4'] = 'x\\n'.repeat(199 + to);
            await later(2000); release(); await settle();
            results.push(pre.scrollTop > 0);
        }
        const strip = part('strip');
        Object.assign(strip.style, { width: '60px', overflowX: 'auto', display: 'flex' });
        const wide = (done) => show({ cells: cellsOf(9, done), isOpen: true });
        await wide(0);
        for (const cell of cells()) cell.style.flex = '0 0 50px';
        await wide(6); results.push(strip.scrollLeft > 200);
        cells()[6].focus(); strip.scrollLeft = 0; await wide(8); results.push(strip.scrollLeft);
        part('takes').hidden = false; made.clear(); results.push(part('takes').hidden);
        const picture = part('poster');
        Object.defineProperties(picture, { naturalWidth: { value: 200 }, naturalHeight: { value: 100 } });
        await show({ job: '4', video: null, poster: 'data:,x', ratio: 1, crop: [0, 1, 1.5] });
        picture.dispatchEvent(new Event('load'));
        const { width, height, left, top } = picture.style;
        results.push([width, height, left, top].join(' '));
        return results;
    }"""


def test_the_strip_and_the_records_tell_of_the_video_that_is_shown(page: Any) -> None:
    assert page.evaluate(SHOW_FILM, scene()) == [
        "1now 2 3rests", "1 2now 3rests", "1 2now 3rests", "1 2nowgoes 3goesrests", "1 2now 3rests",
        "1 2rests 3rests 4rests", "1rests 2rests 3rests 4rests", "soon", "took 5 s", True, False, True, True,
        True, False,
        True, "begins one 11", "goes on one more 1", "over one more 1", "again one more ", "rests one more ",
        "other two 2", "none Nothing has been logged for this video. 3", "", 198,
        True, False, True, 0, True, "300% 150% 0% -50%",
    ]  # fmt: skip


def test_a_video_is_exported_cancelled_and_offered_anew(page: Any) -> None:
    results = page.evaluate("""async () => {
        const { prepareExports } = await load('live/exports.js');
        const fold = find('.lt-export').cloneNode(true);
        document.body.append(fold);
        const told = [];
        const show = prepareExports(fold, (words) => told.push(words));
        const video = { url: 'v1', isPicture: false };
        const results = [];
        const formats = () =>
            results.push(fold.hidden ? 'hidden' : `${fold.open} ${fold.querySelectorAll('li').length}`);
        const offers = [{ format: 'gif', label: 'GIF', size: '2 MB' },
            { format: 'png', label: 'PNG', size: '9 MB' }];
        show({ job: 'a b', video }); formats();
        fold.open = true; await settle(); named('exports_list')[0].refuse('Not now.'); await settle();
        formats();
        show({ job: 'a b', video }); await settle(); await answer('exports_list', offers); formats();
        show({ job: 'a b', video }); await settle(); results.push(named('exports_list').length, told);
        results.push(fold.querySelector('a').getAttribute('href'));
        const saved = [];
        HTMLAnchorElement.prototype.click = function click() {
            saved.push(`${this.getAttribute('href')} ${this.download}`);
        };
        const ask = window.fetch;
        let write = null;
        window.fetch = (address, { signal }) => Promise.resolve(new Response(new ReadableStream({ start(to) {
            write = (fact) => to.enqueue(new TextEncoder().encode(`${JSON.stringify(fact)}\\n`));
            write.end = () => to.close();
            signal.addEventListener('abort', () => to.error(signal.reason));
        } })));
        const say = () => results.push(fold.querySelector('p').textContent);
        const make = async () => { fold.querySelector('button').click(); await settle(); };
        const tell = async (fact) => { write(fact); await settle(); say(); };
        await make(); await tell({ share: 0.456 }); formats();
        await tell({ share: 1, size: '3 MB', url: 'file', name: 'f.gif' }); write.end(); await settle();
        formats();
        await make(); await tell({ share: 0.1 });
        [...fold.querySelectorAll('button')].find(({ textContent }) => textContent === 'Cancel').click();
        await settle(); say(); formats();
        await make(); write({ refusal: 'No room.' }); await settle(); say();
        await make(); window.fetch = ask;
        show({ job: 'other', video: { ...video, url: 'v2' } }); await settle(); say(); formats();
        show({ job: 'other', video: { ...video, isPicture: true } }); formats();
        return [...results, saved];
    }""")
    assert results == [
        "false 0", "true 0", "true 2", 2, ["Not now."], "api/exports/frames?job=a%20b", "GIF: 45 %", "true 3",
        "GIF: 3 MB", "true 2", "GIF: 10 %", "GIF was cancelled.", "true 2", "No room.", "GIF was cancelled.",
        "false 2", "hidden", ["file f.gif"],
    ]  # fmt: skip


def test_a_preview_is_enlarged_hidden_and_brought_back(page: Any) -> None:
    results = page.evaluate("""async () => {
        const { preparePreview } = await load('live/preview.js');
        const show = preparePreview(find('.lt-stage'));
        const [box, back, size, hide] = ['', '-show', '-size', '-hide'].map((part) =>
            find(`.lt-latent${part}`));
        const preview = { label: 'Section 1', seconds: 1, data: 'data:,a' };
        const results = [];
        const tell = () => results.push([box.hidden, back.hidden, size.textContent,
            size.ariaPressed].join(' '));
        show(null); tell(); show(preview); tell();
        for (const button of [size, size, hide]) { button.click(); tell(); }
        show(null); tell(); show(preview); back.click(); tell();
        return results;
    }""")
    assert results == [
        "true true Enlarge false", "false true Enlarge false", "false true Make small true",
        "false true Enlarge false", "true false Enlarge false", "true true Enlarge false",
        "false true Enlarge false",
    ]  # fmt: skip


def test_a_lost_stream_begins_again_at_intervals_and_other_scripts_are_loaded(page: Any) -> None:
    results = page.evaluate("""async () => {
        let now = 0;
        performance.now = () => now;
        const later = holdTimers();
        const [{ connect, follow, preparePulse }, { post }] = [await load('live/pulse.js'),
            await load('server.js')];
        const heard = [];
        follow((news) => heard.push(news.job));
        const pulse = preparePulse(find('.lt-view'));
        const results = [];
        const scene = { job: '1', isRunning: false, isOpen: true, elapsed: 0, quiet: 0, calm: 9 };
        const at = (time) =>
            { now = time; results.push([pulse.tick(), streams.length, textOf('.lt-lost').split('.')[0]]); };
        at(15400); at(15600); at(20000); at(25600);
        pulse.receive(scene); at(25700); at(31300);
        results.push(textOf('.lt-lost').includes('the video continues once it runs again'));
        pulse.receive({ ...scene, isOpen: false }); at(37000);
        results.push(textOf('.lt-lost').includes('the video continues once it runs again'));
        pulse.receive(scene);
        post('x').catch(() => {}); await settle(); calls.at(-1).lose(); await settle();
        results.push(textOf('.lt-lost').split('.')[0]);
        now += 4001; pulse.receive(scene); results.push(textOf('.lt-lost'));
        const count = streams.length;
        const old = streams.at(-1);
        connect('2'); old.readyState = 2; old.onerror(); await later(3000);
        results.push(old.readyState, streams.length - count, calls.at(-1).path);
        const current = streams.at(-1);
        current.onerror(); await later(3000); results.push(calls.at(-1).path);
        const version = document.querySelector('link[rel=icon]').getAttribute('href').split('/')[1];
        current.onmessage({ data: JSON.stringify({ job: '2', version }) });
        current.onmessage({ data: '{"job": "3"}' });
        return [...results, heard];
    }""")
    lost, quiet, connection = True, False, "Connection lost"
    assert results == [
        [quiet, 1, ""], [lost, 2, connection], [lost, 2, connection], [lost, 3, connection], [quiet, 3, ""],
        [lost, 3, connection], True, [lost, 4, connection], False, "The server does not answer", "",
        2, 1, "x", "x", ["2", "3"],
    ]  # fmt: skip
    page.evaluate('window.isOld = true; streams.at(-1).onmessage({ data: \'{"version": "old"}\' })')
    page.wait_for_function("!window.isOld")
    page.evaluate("""async () => {
        const later = holdTimers();
        const { connect } = await load('live/pulse.js');
        connect();
        window.isOld = true;
        streams.at(-1).readyState = 2; streams.at(-1).onerror(); await later(3000);
        calls.at(-1).reply(null, 401);
    }""")
    page.wait_for_function("!window.isOld")

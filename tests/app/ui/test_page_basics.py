"""Tests of what all scripts of the page share: elements, the server, tabs, and what is undone."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


def test_a_copied_text_is_said_for_a_while(page: Any) -> None:
    said = page.evaluate("""async () => {
        const { offerCopy } = await load('elements.js');
        const later = holdTimers();
        document.body.innerHTML = '<details><pre>text</pre></details><button>Copy</button>';
        const [fold, source, button] = ['details', 'pre', 'button'].map((tag) => document.querySelector(tag));
        const said = [];
        const click = async () => { button.click(); await settle(); said.push(button.textContent); };
        offerCopy(button, source);
        await click();
        said.push(fold.open, String(getSelection()));
        await later(3000);
        Object.defineProperty(navigator, 'clipboard',
            { value: { writeText: async (text) => said.push(text) } });
        await click();
        for (const time of [1500, 2500]) { await later(time); said.push(button.textContent); }
        return said;
    }""")
    assert said == ["Selected: press Ctrl + C", True, "text", "text", "Copied", "Copied", "Copy"]


def test_choices_facts_and_the_focus_stay_where_they_were(page: Any) -> None:
    results = page.evaluate("""async () => {
        const { arrange, fillActions, make, makeTable, render, roam, setOptions } = await load('elements.js');
        document.body.innerHTML = `<select></select><p data-set="title:t aria-level:zero"><b
            data-text="words"></b><i data-when="zero" data-set="id:t"></i></p><ul></ul><div></div>`;
        const [select, facts, list, box] = ['select', 'p', 'ul', 'div'].map(find);
        const results = [];
        const tell = (...more) => results.push(more.join(' '));
        const choose = (...values) =>
            { setOptions(select, values.map((one) => [one, one])); tell(select.value); };
        choose('a', 'b'); select.value = 'b'; choose('c', 'b'); choose('c', 'a');
        const show = (now) => { render(facts, now); tell(facts.outerHTML.replace(/\\s+/g, ' ')); };
        show({ t: 'x', zero: 0, words: 'w' }); show({ t: null, zero: 1 });
        const items = ['a', 'b', 'c'].map((textContent) => make('button', { textContent }));
        arrange(list, items);
        let arrived = '';
        roam(list, () => items, (item) => { arrived += item.textContent; });
        items[0].focus();
        for (const key of ['ArrowRight', 'ArrowRight', 'ArrowRight', 'Home', 'ArrowLeft', 'End', 'x',
            'Home']) {
            const isTaken = press(key);
            tell(key, isTaken, document.activeElement.textContent, items.map(({ tabIndex }) => tabIndex),
                arrived);
        }
        arrange(list, [items[0], items[2]]);
        tell(list.textContent, document.activeElement.textContent);
        const fill = (...actions) => {
            fillActions(box, actions, 'T');
            const names = [...box.children].map((item) => `${item.ariaLabel}/${item.dataset.action}`);
            tell(names, document.activeElement.textContent);
        };
        fill(['a', 'A…'], ['b', 'B']); box.lastChild.focus();
        fill(['c', 'C'], ['b', 'Bs']); fill(['c', 'C'], ['d', 'D']);
        tell(makeTable([], [['n', ['v', 'w']]]).outerHTML, makeTable(['h'], [], 'k').outerHTML);
        return results;
    }""")
    assert results == [
        "a", "b", "c",
        '<p data-set="title:t aria-level:zero" title="x" aria-level="0"><b data-text="words">w</b>'
        '<i data-when="zero" data-set="id:t" id="x" hidden=""></i></p>',
        '<p data-set="title:t aria-level:zero" aria-level="1"><b data-text="words">w</b>'
        '<i data-when="zero" data-set="id:t"></i></p>',
        "ArrowRight true b -1,0,-1 b", "ArrowRight true c -1,-1,0 bc", "ArrowRight false c -1,-1,0 bc",
        "Home true a 0,-1,-1 bca", "ArrowLeft false a 0,-1,-1 bca", "End true c -1,-1,0 bcac",
        "x false c -1,-1,0 bcac", "Home true a 0,-1,-1 bcaca", "ac a", "A: T/a,B: T/b a", "C: T/c,Bs: T/b Bs",
        "C: T/c,D: T/d C",
        '<table class=""><tbody><tr><th scope="row">n</th><td>vw</td></tr></tbody></table> '
        '<table class="k"><thead><tr><th scope="col">h</th></tr></thead><tbody></tbody></table>',
    ]  # fmt: skip


def test_a_press_counts_once_until_it_is_done_and_a_failure_is_told(page: Any) -> None:
    said = page.evaluate("""async () => {
        const { chooseFiles, onSubmit } = await load('elements.js');
        document.body.innerHTML = '<form><button type="button">No</button><button>Yes</button></form>';
        const form = document.querySelector('form');
        const said = [];
        let end = null;
        const wait = () => new Promise((done, fail) => { said.push('act'); end = fail; });
        onSubmit(form, wait, (words) => said.push(words));
        const busy = () => said.push([...form.children].map(({ ariaBusy }) => ariaBusy).join());
        for (const words of ['Not now.', 'Nor now.']) {
            form.requestSubmit(); form.requestSubmit();
            busy();
            end(new Error(words));
            await settle();
            busy();
        }
        const open = HTMLInputElement.prototype.click;
        HTMLInputElement.prototype.click = function click() { this.dispatchEvent(new Event('cancel')); };
        chooseFiles('.x', true).then((files) => said.push(files.length));
        await settle();
        HTMLInputElement.prototype.click = open;
        return said;
    }""")
    assert said == ["act", ",true", "Not now.", ",", "act", ",true", "Nor now.", ",", 0]


LOSE_ANSWERS = """async () => {
        const { addressOf, linesOf, noteBack, post, sayLost, upload } = await load('server.js');
        const later = holdTimers();
        const said = [];
        const line = () => said.push(textOf('.lt-lost'));
        const quiet = (answer) => answer.catch(({ message, isAway }) => said.push(isAway ? 'away' : message));
        post('a'); post('b');
        await later(1499); line();
        await later(2); line();
        calls[0].answer({}); await settle(); line();
        sayLost('It reconnects.'); line(); sayLost('');
        calls[1].answer({}); await settle(); line();
        let now = 1e6;
        performance.now = () => now;
        const refusals = [[502, {}], [503, {}], [504, {}], [500, {}],
            [422, { message: 'Wrong.', remedy: 'Mend it.' }]];
        for (const [status, refusal] of refusals) {
            quiet(post('c', { a: null }));
            calls.at(-1).reply(refusal, status);
            await settle();
        }
        said.push(calls.at(-1).sent);
        const refused = post('c').catch(({ status, setting }) => said.push(status, setting));
        calls.at(-1).reply({ message: 'No.', setting: 'steps' }, 409); await refused;
        line(); noteBack(); line(); now += 4001; noteBack(); line();
        quiet(post('c')); calls.at(-1).lose(); await settle();
        line(); sayLost('It reconnects.'); line();
        const parts = ['{"n": 1}\\n{"n"', ': "', 'ü"}\\n'].map((text) => new TextEncoder().encode(text));
        const cut = parts[2].slice(0, 1);
        const stream = () => new ReadableStream({ start(to) {
            for (const part of [parts[0], parts[1], cut, parts[2].slice(1)]) to.enqueue(part);
            to.close();
        } });
        window.fetch = async () => new Response(stream());
        for await (const { n } of linesOf(null, 'lines', {})) said.push(n);
        const sent = [];
        window.fetch = async (address, { body }) => {
            sent.push([address, body.get('files').name]);
            return new Response('["folder/x.png"]');
        };
        const nameless = new File(['x'], '');
        said.push(await upload(nameless), await upload(new File(['x'], 'ä b.png')), sent);
        window.fetch = async () => new Response('Too large.', { status: 413 });
        await quiet(upload(nameless));
        nameless.slice = () => ({ arrayBuffer: () => Promise.reject(new Error('a folder')) });
        await quiet(upload(nameless));
        said.push(addressOf('a b/#ü.png'));
        return said;
    }"""


def test_a_late_or_lost_answer_is_told_until_it_comes(page: Any) -> None:
    said = page.evaluate(LOSE_ANSWERS)
    away = "The server does not answer. Once the server answers, this page shows what your press has done; "
    away += "if nothing, press again."
    waits = "Still waiting for the server…"
    assert said == [
        "", waits, waits, "Connection lost. It reconnects.", "",
        "away", "away", "away", "The server refused this (500).", "Wrong. Mend it.",
        {"a": None}, 409, "steps", away, away, "", "away", away, f"Connection lost. {away[28:]}",
        1, "ü", {"path": "folder/x.png", "orig_name": "pasted.png"},
        {"path": "folder/x.png", "orig_name": "ä b.png"},
        [["gradio_api/upload", "pasted.png"], ["gradio_api/upload", "ä b.png"]],
        "Too large.", "pasted.png cannot be read. Drop files, and no folder.",
        "gradio_api/file=a%20b/%23%C3%BC.png",
    ]  # fmt: skip


def test_the_tabs_tell_what_waits_and_lead_by_keys(page: Any) -> None:
    told = page.evaluate("""async () => {
        const [tabs, { reportJobs }] = [await load('tabs.js'), await load('jobs.js')];
        const heard = [];
        tabs.whenShown('history', (rest) => heard.push(rest));
        tabs.default(document.querySelector('.lt-tabs'));
        const all = ['create', 'queue', 'history', 'models'].map((name) =>
            document.querySelector(`#tab-${name}`));
        const told = [];
        const tell = async () => {
            await settle();
            const shown = all.map((tab) => [tab.tabIndex, tab.ariaSelected === 'true' ? 'x' : ''].join(''));
            told.push([document.documentElement.dataset.tab, ...shown, window.scrollY].join(' '));
        };
        const names = () => all.map((tab) =>
            `${tab.ariaLabel}|${tab.querySelector('.lt-tab-count')?.textContent}`);
        await tell();
        document.body.style.height = '9000px';
        window.scrollTo(0, 500);
        tabs.goTo('history', 'a'); await tell();
        location.hash = 'history/b'; await tell();
        all[2].focus();
        press('ArrowRight'); await tell();
        press('Home'); await tell();
        press(' ', {}, all[1]); await tell();
        for (const queue of [{ waiting: 2, download: '5 %' }, { waiting: 0, download: '' }]) {
            reportJobs({ queue });
            told.push(names().slice(1).join(' '));
        }
        return [...told, heard.join()];
    }""")
    assert told == [
        "create 0x -1 -1 -1 0", "history -1 -1 0x -1 0", "history -1 -1 0x -1 0", "models -1 -1 -1 0x 0",
        "create 0x -1 -1 -1 0", "queue -1 0x -1 -1 0",
        "Queue, 2 waiting|2 null|undefined Models, 5 % downloaded|5 %",
        "Queue| null|undefined Models|", "a,b",
    ]  # fmt: skip


def test_what_was_removed_is_deleted_or_left(page: Any) -> None:
    results = page.evaluate("""async () => {
        const [{ keep, recall }, { offerUndo }] = [await load('storage.js'), await load('undo.js')];
        const bar = document.querySelector('#undo');
        const [words, , erase] = bar.children;
        offerUndo(['a', 'b'], 'a');
        const results = [bar.hidden, words.textContent];
        erase.click();
        await settle();
        calls[0].answer([]);
        await settle();
        offerUndo(['c'], 'c');
        results.push(words.textContent, calls[0].path, calls[0].sent);
        for (const text of ['', null]) { keep('x', text); results.push(recall('x')); }
        document.querySelector('#texts').textContent = '{"Watch it": "Sieh es an"}';
        const choice = document.querySelector('#language');
        const cookies = [];
        Object.defineProperty(document, 'cookie', { set: (text) => cookies.push(text) });
        await load('language.js').then((language) => language.default());
        choice.value = 'de';
        choice.dispatchEvent(new Event('change'));
        return [...results, cookies];
    }""")
    assert results == [
        False, "Removed: 2 videos", "Removed: c", "jobs_delete", {"jobs": ["a", "b"]}, "", None,
        ["language=de; max-age=31536000; path=/; samesite=strict"],
    ]  # fmt: skip

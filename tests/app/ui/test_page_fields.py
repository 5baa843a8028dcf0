"""Tests of what the form makes of what a user enters, and of what the server answers."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


def test_values_notices_and_markup_change_only_what_they_concern(page: Any) -> None:
    told = page.evaluate("""async () => {
        const script = await load('form/describe.js');
        const { changed, putPicture, read, refuse, restored, showNotice, take, write } = script;
        const later = holdTimers();
        const told = [];
        for (const value of [0, null, 7]) { write('crf', value); told.push(read('crf')); }
        const marked = () =>
            [...document.querySelectorAll('#form [aria-invalid]')].map(({ name }) => name).join();
        const open = () => [...document.querySelectorAll('#form details[open]')].map(({ id }) => id).join();
        for (const setting of ['steps', 'vae_tile', 'nothing']) {
            refuse('No.', setting);
            told.push(`${marked()} ${open()} ${document.activeElement.name ?? ''}`);
        }
        const box = (words, more = '') => `<div class="lt-box" ${more}>${words}</div>`;
        const notice = () => told.push(textOf('#notice'));
        showNotice(box('first', 'data-seconds="2"')); await later(1000);
        showNotice(box('second', 'data-seconds="2"')); await later(1000); notice();
        await later(1000); notice();
        showNotice(box('kept')); changed(); notice();
        refuse('Gone.'); changed(); notice();
        const fold = (text) => ({ 'memory-plan': `<details><summary>${text}</summary></details>` });
        take({ markup: fold('a') });
        find('#memory-plan details').open = true;
        take({ markup: fold('b') });
        told.push(textOf('#memory-plan'), find('#memory-plan details').open);
        const choices = (text) =>
            ({ 'in-model': `<option value="a">${text}</option><option value="b">b</option>` });
        take({ markup: choices('1') });
        find('#in-model').value = 'b';
        take({ markup: choices('2') });
        told.push(read('model'), textOf('#in-model option'));
        const [first, second] = document.querySelectorAll('#options-step_cache input');
        first.checked = true;
        const names = (all) => all.map(({ id, textContent }) => id || textContent).join();
        const unused = () => told.push(names([...document.querySelectorAll('[data-ignored]')]));
        const either = [first, second].map(({ name, value }) => `${name}=${value}`);
        take({ facts: { ...facts, unused: ['steps', ...either] } }); unused();
        take({ facts: { ...facts, unused: ['seed'] } }); unused();
        write('prompt', 'early'); changed();
        told.push(kept('form'));
        restored();
        take({ facts: { ...facts, defaults: { ...script.values(), seed: -1 }, continues: true } });
        write('prompt', 'own'); write('extras', 'more'); changed();
        told.push(kept('form'));
        const picture = { path: 'p', orig_name: 'p' };
        putPicture('end_image', picture); told.push(read('extras'));
        putPicture('image', picture); told.push(read('extras'));
        return told;
    }""")
    assert told[:6] == [
        0, None, 7, "steps fold-look steps", "vae_tile fold-look,fold-memory,expert vae_tile",
        " fold-look,fold-memory,expert vae_tile",
    ]  # fmt: skip
    assert told[6:10] == ["second", "", "kept", ""]
    assert told[10:14] == ["b", True, "b", "2"]
    assert told[14:17] == ["set-steps,TeaCache, gentle", "set-seed", None]
    assert {"prompt": "own", "extras": "more"}.items() <= told[17].items()
    assert sorted(told[17]) == ["extras", "prompt", "seed"]
    assert told[18:] == ["more", ""]


def test_restored_settings_keep_the_pictures_that_they_say_nothing_of(page: Any) -> None:
    rows: list[tuple[bool, dict[str, str], list[str | None]]] = [
        (False, {}, ["a", "b"]), (True, {}, ["a", None]), (True, {"image": ""}, [None, None]),
        (True, {"image": "c"}, ["c", None]), (False, {"end_image": "d"}, ["a", "d"]),
    ]  # fmt: skip
    results = page.evaluate(
        """async (rows) => {
        const { read, restoreForm, write } = await load('form/describe.js');
        const results = [];
        for (const [isWhole, pictures] of rows) {
            location.hash = 'queue';
            write('image', { path: 'a' }); write('end_image', { path: 'b' });
            restoreForm({ text: JSON.stringify({ is_whole: isWhole }), pictures });
            await settle();
            const [image, end] = ['image', 'end_image'].map((name) => read(name)?.path ?? null);
            results.push([image, end, read('image')?.orig_name ?? '', location.hash]);
            await answer('form_fill',
                { values: { prompt: 'p' }, notice: '<div class="lt-box">Loaded.</div>' });
            results.at(-1).push(read('prompt'), textOf('#notice'), named('form_fill').at(-1).sent.restored);
        }
        return results;
    }""",
        rows,
    )
    assert [result[:2] for result in results] == [pictures for *_, pictures in rows]
    assert results[3][2] == "start-picture.png"
    assert {tuple(result[3:6]) for result in results} == {("#create", "p", "Loaded.")}
    assert '"is_whole":true' in results[1][-1]


PRESS_FORM = """async () => {
        const { read, write } = await openForm();
        const { reportJobs } = await load('jobs.js');
        const told = [];
        const hear = async (models, more = {}) => {
            reportJobs({ queue: { models, start: 'Start', held: false, can_end: false, ...more } });
            await settle();
        };
        const asked = () => calls.filter(({ path }) => path.startsWith('form_model')).map(({ path }) => path);
        await hear('a', { held: true });
        told.push([find('#held').hidden, find('#end').disabled]);
        named('form_models')[0].lose(); await settle();
        await hear('a', { can_end: true });
        told.push([find('#held').hidden, find('#end').disabled]);
        await answer('form_models', {});
        await hear('a');
        enter('#in-model', 'framepack-f1', 'change'); await settle();
        named('form_model').at(-1).lose(); await settle();
        await hear('a');
        told.push(asked(), find('#end').disabled);
        for (const name of ['when', 'look']) { find(`#fold-${name}`).open = true; await settle(); }
        find('#fold-when').open = false; find('#fold-memory').open = true; await settle();
        told.push(kept('folds'));
        const missing = async (starts, prompt, image) => {
            write('prompt', prompt); write('image', image);
            await say({ starts });
            told.push(find('#start').dataset.missing);
        };
        await missing('picture', 'p', null); await missing('picture', ' ', { path: 'a' });
        await missing('', 'p', null); await missing('', ' ', null); await missing('words', '', null);
        for (const value of ['loop', 'one_frame', '']) {
            enter('#in-makes', value, 'change');
            told.push(`${read('loop')} ${read('one_frame')} ${find('#in-makes').value}`);
        }
        write('loop', 'on'); told.push(find('#in-makes').value); write('loop', 'off');
        write('random_seed', true); enter('#in-seed', 5); told.push(read('random_seed'));
        find('.lt-demo-close').click();
        told.push(localStorage['longtake.demo-box'], find('#demo-box').classList.contains('lt-closed'));
        const act = '<button data-before="more"></button><button data-setting="lora"></button>';
        find('#acting').innerHTML = act;
        write('mode', 'forward'); write('image', { path: 'a' }); write('lora', 'x');
        for (const button of [...find('#acting').children]) button.click();
        told.push([read('extras'), read('mode'), read('image'), read('lora'), document.activeElement.id]);
        write('mode', 'forward');
        find('#end-note').innerHTML = '<button type="button"></button>';
        find('#end-note button').click();
        told.push(read('mode'));
        find('#memory-plan').innerHTML = '<button data-preserved="4.5"></button>';
        find('#memory-plan button').click();
        told.push(read('preserved_gb'));
        write('steps', 7); write('prompt', 'mine');
        find('#reset').click(); await settle();
        await answer('form_reset', { values: { steps: 25 } });
        told.push(`${read('steps')} ${read('prompt')}`);
        find('#notice button').click();
        told.push(`${read('steps')} ${kept('form').steps}`);
        return told;
    }"""


def test_the_buttons_and_choices_of_the_form(page: Any) -> None:
    told = page.evaluate(PRESS_FORM)
    assert told == [
        [False, True], [True, False], ["form_models", "form_models", "form_model", "form_model"], True,
        ["look", "memory"], "Add a picture", "", "", "Add a picture or a prompt", "Add a picture or a prompt",
        "on 0 loop", "off 9 one_frame", "off 0 ", "loop", False, "closed", True,
        ["more", "inverted", None, "", "start"], "inverted", 4.5, "25 mine", "7 7",
    ]  # fmt: skip

"""Tables of what a user's words, numbers, sections, LoRAs and presets become in the form."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


def test_loras_are_lines_with_weights_and_checksums(page: Any) -> None:
    rows: list[tuple[str, str, float | None, str]] = [
        ("", "a", 0.5, "a:0.5"), ("a:1\nab:2", "ab", None, "a:1"), ("ab:2", "a", -0.5, "ab:2\na:-0.5"),
        ("a:1 sha256:f0\nb", "a", 2, "a:2 sha256:f0\nb"), ("b", "b", 99, "b:10"), ("b", "b", -99, "b:-10"),
        ("b:1", "a", None, "b:1"), ("a\nb\nc", "b", None, "a\nc"),
    ]  # fmt: skip
    results = page.evaluate(
        """async (rows) => {
        const [{ read, write }, loras] = [await openForm(), await load('form/loras.js')];
        const results = rows.map(([text, name, weight]) => {
            write('lora', text);
            loras.chooseLora(name, weight);
            return read('lora');
        });
        find('#fold-look').open = true; await settle();
        const file = (name, problem = '', triggers = []) => ({ name, triggers, problem });
        const none = { files: [], folder: 'loras', more: 0 };
        await answer('lora_list', none);
        results.push(textOf('.lt-loras > p'));
        find('#look-loras').click(); await settle();
        const files = [file('a.safetensors', '', ['film']), file('b.safetensors', 'It is broken.')];
        await answer('lora_list', { ...none, files, more: 3 });
        results.push(textOf('.lt-loras > p'));
        write('lora', '');
        const shown = () => results.push([...document.querySelectorAll('.lt-lora-list li')].map((row) => {
            const [box, weight] = row.querySelectorAll('input');
            const title = textOf.call(null,
                `.lt-lora-list li:nth-child(${[...row.parentElement.children].indexOf(row) + 1}) span`);
            return [title, Number(box.checked), Number(box.disabled),
                weight.hidden ? '' : weight.value].join('/');
        }).join(' '));
        await say({ loras: { text: '', weights: {} } }); shown();
        const [box, weight] = document.querySelectorAll('.lt-lora-list input');
        box.click(); results.push(read('lora'));
        weight.value = '-0.5'; weight.dispatchEvent(new Event('change')); results.push(read('lora'));
        weight.value = ''; weight.dispatchEvent(new Event('change')); results.push(read('lora'));
        await say({ loras: { text: 'an earlier choice', weights: {} } }); shown();
        await say({ loras: { text: read('lora'),
            weights: { 'a.safetensors': 0.5, 'gone.safetensors': 2 } } }); shown();
        write('prompt', ' a ball '); find('.lt-triggers button').click(); results.push(read('prompt'));
        return results;
    }""",
        rows,
    )
    assert results[: len(rows)] == [text for *_, text in rows]
    assert results[len(rows) :] == [
        "There is no safetensors file in the folder “loras” yet.", "3 more files are not listed.",
        "a/0/0/ b/0/1/", "a.safetensors:1", "a.safetensors:-0.5", "a.safetensors:1", "a/1/0/ b/0/1/",
        "a/1/0/0.5 b/0/1/ gone/1/0/2", "a ball, film",
    ]  # fmt: skip


def test_unknown_words_are_told_and_prompts_remembered(page: Any) -> None:
    many = " ".join(f"w{number}" for number in range(12))
    rows: list[tuple[str, str, str]] = [  # a prompt, what is told of it, and the note of the button
        ("a red Ball", "", ""), ("walrus ball WALRUS", "does not know, and ignores: walrus.", ""),
        ("ball walrus [1.2s: seed 5] [2 sec - 3s: lora x:0.5]", "and ignores: walrus.", ""),
        ("ba", "", ""), ("ba ball", "ignores: ba.", ""), (f"ball {many}", "w10, w11.", ""),
        (f"ball {many} last", "w11 and 1 more.", ""), (" ", "", "no prompt: the motion is left to chance"),
        ("walrus", "It knows, for example: red ball", "no known word: the motion is left to chance"),
    ]  # fmt: skip
    results = page.evaluate(
        """async (rows) => {
        const later = holdTimers(900);
        const { read, write } = await openForm({ words: ['a', 'red', 'ball'], offered: ['red', 'ball'] });
        const { rememberPrompt } = await load('form/prompts.js');
        const [box, line] = ['#in-prompt', '#lt-unknown'].map(find);
        box.focus();
        const type = (text) => enter('#in-prompt', text);
        const results = rows.map(([text]) => {
            type(text);
            return [line.hidden ? '' : line.textContent.trim(), find('#start').dataset.note];
        });
        const spoken = () => results.push(find('.lt-prompt-help .lt-sr').textContent);
        type('ball walrus'); await later(600); type('ball sea'); await later(600); spoken(); await later(300);
        spoken();
        type('walrus'); line.querySelector('button').click(); results.push(read('prompt'), line.hidden);
        type('ball sea');
        box.blur();
        const earlier = find('#earlier-prompts');
        results.push(earlier.hidden);
        for (const text of ['one', 'two', ' one ', '']) { write('prompt', text); rememberPrompt(); }
        results.push(earlier.hidden, [...earlier.options].map((option) => option.textContent),
            kept('prompts'));
        enter('#earlier-prompts', 'two', 'change');
        results.push(read('prompt'), earlier.value);
        for (let n = 0; n < 40; n += 1) { write('prompt', `p${n}`); rememberPrompt(); }
        results.push([earlier.options.length, kept('prompts').length, kept('prompts')[0]]);
        earlier.selectedIndex = 31;
        earlier.dispatchEvent(new Event('change'));
        results.push(kept('prompts'), earlier.hidden, read('prompt'));
        return results;
    }""",
        rows,
    )
    for (prompt, told, note), (line, button_note) in zip(rows, results, strict=False):
        assert (line.endswith(told), button_note) == (True, note), prompt
        assert bool(line) == bool(told), prompt
    assert results[len(rows) :] == [
        "", "The demo model does not know, and ignores: sea.", "red", True, True, False,
        ["Earlier prompts (2)", "one", "two", "Forget them"], ["one", "two"], "two", "", [32, 30, "p39"], [],
        True, "p39",
    ]  # fmt: skip


WRITE_SECTIONS = """async () => {
        const { read, write } = await openForm();
        const section = (place, words, begins, more = {}) => ({
            place, words, begins, time: `${place} s`, begin: place, share: 25, tone: 0,
            label: `Words ${place}`,
            change: '', picture: null, ...more,
        });
        const of = () => ['prompt', 'section_words', 'pictures'].map(read);
        const results = [];
        const describe = async (words, more = {}) => {
            const sections = words.map((text, at) =>
                section(at, text, !at || text !== words[at - 1], more[at]));
            await say({ timeline: { of: of(), prompt: read('prompt'), later: ['9s: late'], sections } });
        };
        const fields = () => [...document.querySelectorAll('.lt-sections textarea')];
        const shown = () => results.push(fields().map(({ value, placeholder }) => value
            || placeholder).join('|'));
        const type = (index, text) => {
            fields()[index].focus();
            fields()[index].value = text;
            fields()[index].dispatchEvent(new Event('input', { bubbles: true }));
            results.push(read('section_words'));
        };
        find('#fold-when').open = true;
        write('prompt', 'p');
        await describe(['a', 'a', 'b', 'b']); shown();
        type(1, 'c'); type(1, 'cd'); type(1, '');
        write('section_words', ''); type(0, 'b'); type(0, 'bc'); write('section_words', '');
        fields()[1].focus(); fields()[1].value = 'being typed';
        await describe(['a', 'x', 'b', 'b']); shown();
        fields()[1].value = ''; fields()[2].focus();
        await describe(['a', 'a', 'b', 'b']);
        await say({ timeline: { of: ['p', '', 'other'], prompt: 'p', later: [], sections: [] } });
        results.push(find('.lt-sections').inert);
        fields()[3].focus();
        type(2, 'x');
        await say({ timeline: { of: ['p', '', ''], prompt: 'p', later: [], sections: [] } });
        results.push(read('section_words'), find('.lt-sections').inert);
        await say({ timeline: { of: of(), prompt: 'p [1s: c]', later: [],
            sections: [section(0, 'a', true)] } });
        results.push(of(), fields().length, find('.lt-sections').inert);
        write('prompt', 'new'); // which the server has not read
        fields()[0].blur();
        type(0, 'early');
        await describe(['q']);
        results.push(read('section_words'));
        write('section_words', '');
        await describe(['a', 'a', 'b']);
        await say({ timeline: { of: of(), prompt: '', later: [], sections: [] } });
        results.push(find('.lt-sections').inert);
        await describe(['a', 'a', 'b']);
        const key = (index, name, more = {}) => {
            fields()[index].focus();
            const isTaken = press(name, more, fields()[index]);
            results.push(`${isTaken} ${fields().indexOf(document.activeElement)}`);
        };
        key(0, 'ArrowDown'); key(0, 'ArrowUp'); key(1, 'ArrowUp'); key(2, 'ArrowDown');
        key(0, 'ArrowDown', { altKey: true }); key(0, 'ArrowDown', { shiftKey: true }); key(0, 'Enter');
        key(0, 'Enter', { metaKey: true });
        const picture = { path: 'p.png', crop: 0.5 };
        await describe(['a', 'a', 'b'], { 2: { picture } });
        const tile = document.querySelectorAll('.lt-placed')[2];
        const image = tile.querySelector('img');
        results.push([...tile.children].map(({ hidden }) => hidden), image.getAttribute('src'),
            image.ariaValueNow);
        image.getBoundingClientRect = () => ({ width: 100, height: 100 });
        press('ArrowRight', {}, image);
        results.push(read('pictures'), image.ariaValueNow);
        image.setPointerCapture = () => {};
        const drag = (type, clientX) =>
            image.dispatchEvent(new PointerEvent(type, { clientX, cancelable: true }));
        drag('pointerdown', 0); drag('pointermove', 10); drag('lostpointercapture', 10);
        results.push(read('pictures'));
        tile.lastElementChild.click();
        results.push(read('pictures'), [...tile.children].map(({ hidden }) => hidden));
        return results;
    }"""


def test_words_of_sections_go_on_until_other_words_begin(page: Any) -> None:
    results = page.evaluate(WRITE_SECTIONS)
    assert results == [
        "a|same as above|b|same as above", '["a","c","b","b"]', '["a","cd","b","b"]', '["a","a","b","b"]',
        '["b","b","b","b"]', '["bc","bc","b","b"]', "a|being typed|b|same as above", False,
        '["a","a","x","x"]', '["a","a","x","x"]', False, ["p [1s: c]", "", ""], 1, False, "",
        '["early"]', True, "true 1", "false 0", "true 0", "false 2", "false 0", "false 0", "true 0",
        "true 0", [True, False, False], "gradio_api/file=p.png", "50", "2s@0.52: p.png\n9s: late", "52",
        "2s@0.42: p.png\n9s: late", "9s: late", [False, True, True],
    ]  # fmt: skip


def test_numbers_obey_keys_and_come_back(page: Any) -> None:
    moves: list[tuple[float, str, float]] = [
        (5, "ArrowRight", 5.1), (5, "ArrowLeft", 4.9), (19.9, "ArrowUp", 20), (20, "ArrowRight", 21),
        (20, "ArrowLeft", 19.9), (21, "ArrowDown", 20), (30, "PageUp", 40), (30, "PageDown", 20),
        (10, "PageUp", 11), (10, "PageDown", 9), (1, "ArrowLeft", 1), (120, "ArrowUp", 120),
    ]  # fmt: skip
    entries: list[tuple[str, str, str, str]] = [  # a field, what is entered, its value then, and what is told
        ("seconds", "500", "120", "500 is not possible, so it was changed to 120."),
        ("seconds", "0", "1", "0 is not possible, so it was changed to 1."), ("seconds", "12.5", "12.5", ""),
        ("seconds", "", "7", "A number is needed here, so 7 stays."), ("variants", "999999", "999999", ""),
    ]  # fmt: skip
    results = page.evaluate(
        """async ([moves, entries]) => {
        const later = holdTimers();
        const { read, write } = await openForm();
        const range = find('#set-seconds [type=range]');
        const results = moves.map(([from, key]) => {
            range.value = 0.9;
            write('seconds', from);
            const share = from > 20 ? 0.6 + (0.4 * (from - 20)) / 100 : (0.6 * (from - 1)) / 19;
            if (Math.abs(Number(range.value) - share) > 0.01) return [from, range.value];
            return press(key, {}, range) && [read('seconds'), range.ariaValueText, kept('form').seconds];
        });
        const told = () => textOf('#form').includes('number is needed')
            || textOf('#form').includes('not possible');
        const words = () => (told() ? find('#form .lt-kept').textContent : '');
        for (const [name, text] of entries) {
            write(name, 7);
            const field = find(`#form [name=${name}]`);
            field.focus(); field.value = text; field.blur();
            results.push([field.value, words(), kept('form')[name] ?? null]);
            enter('#in-prompt', 'x');
        }
        const field = find('#form [name=seconds]');
        const fail = (text) => { field.focus(); field.value = text; field.blur(); };
        fail('500'); await later(5000); fail('600'); await later(5000);
        results.push(words()); await later(3000); results.push(words());
        find('#in-prompt').maxLength = 3;
        enter('#in-prompt', 'abc'); results.push(find('#form .lt-kept').textContent);
        enter('#in-prompt', 'ab'); results.push(find('#form .lt-kept') === null);
        return results;
    }""",
        [moves, entries],
    )
    assert results[: len(moves)] == [
        [value, f"{value} seconds of video", None if value == 5 else value] for *_, value in moves
    ]
    settled = results[len(moves) : -4]
    assert [result[:2] for result in settled] == [list(entry[2:]) for entry in entries]
    assert [result[2] for result in settled][:2] == [120, 1]
    assert results[-4:] == [
        "600 is not possible, so it was changed to 120.", "", "At most 3 letters fit in here.", True,
    ]  # fmt: skip


USE_PRESETS = """async () => {
        await openForm();
        const dialog = find('#presets');
        const results = [];
        const names = () => [...dialog.querySelectorAll('li')].map((row) =>
            row.firstChild.textContent).join();
        const button = (name, label) => [...dialog.querySelectorAll('li button')]
            .find((item) => item.ariaLabel === `${label}: ${name}`);
        const status = () => dialog.querySelector('[role=status]').textContent;
        const press = async (name, label) => { button(name, label).click(); await settle(); };
        find('#open-presets').click(); await settle();
        await answer('preset_list', []);
        results.push([dialog.open, dialog.querySelector('p').hidden, document.activeElement.id]);
        localStorage.removeItem('longtake.form');
        find('#preset-name').value = ' mine ';
        dialog.querySelector('form').requestSubmit(); await settle();
        results.push(named('preset_save')[0].sent);
        await answer('preset_save', ['a', 'start', 'mine']);
        results.push([names(), find('#preset-name').value, status(), dialog.querySelector('p').hidden]);
        results.push(button('Default', 'Make default') ?? 'none');
        await press('a', 'Make default'); await answer('preset_default', ['start', 'a']);
        results.push([named('preset_default')[0].sent, status(), names()]);
        await press('a', 'Remove');
        await answer('preset_export', '{"steps": 5}'); await answer('preset_remove', ['start']);
        results.push([names(), document.activeElement.ariaLabel, dialog.querySelector('p').hidden]);
        const files = [];
        const append = FormData.prototype.append;
        FormData.prototype.append = function take(name, file, title) { files.push(file);
            append.call(this, name, file, title); };
        document.activeElement.click(); await answer('gradio_api/upload', ['up/a.json']); await settle();
        results.push([files[0].name, await files[0].text(), named('preset_import')[0].sent]);
        await answer('preset_import', ['start', 'a']);
        results.push([names(), status()]);
        HTMLInputElement.prototype.click = function click() {
            const box = new DataTransfer();
            box.items.add(new File(['{}'], 'soft.look.v2.json'));
            this.files = box.files;
            this.dispatchEvent(new Event('change'));
        };
        dialog.querySelector('.lt-preset-ends button').click(); await settle();
        await answer('gradio_api/upload', ['up/b.json']);
        results.push(named('preset_import')[1].sent.name);
        named('preset_import')[1].refuse('No preset.'); await settle();
        results.push(status());
        await press('Default', 'Use');
        await answer('preset_load', { text: '{}' });
        await answer('form_fill', {});
        results.push(dialog.open);
        find('#open-presets').click(); await settle();
        results.push(status());
        return results;
    }"""


def test_presets_are_listed_used_passed_on_and_brought_back(page: Any) -> None:
    results = page.evaluate(USE_PRESETS)
    assert results == [
        [True, False, "preset-name"], {"name": "mine", "form": "{}"},
        ["Default,a,mine", "", "“mine” is saved.", True],
        "none", [{"name": "a"}, "New pages and “Reset to defaults” now use “a”.", "Default,a"],
        ["Default", "Bring a back", True],
        ["a.json", '{"steps": 5}', {"name": "a", "file": {"path": "up/a.json"}}],
        ["Default,a", "The preset is back."], "soft.look.v2", "No preset.", False, "",
    ]  # fmt: skip

"""Tests of pictures, dropped files and presses of Start: what is sent for them, and what stays."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium


MOVE_CROP = """async (rows) => {
        const { read, write } = await openForm();
        const paint = async (name, width = 40) => {
            const canvas = Object.assign(document.createElement('canvas'), { width, height: 20 });
            const image = find(`#set-${name} img`);
            image.src = canvas.toDataURL();
            await image.decode();
        };
        const hole = (name) => find(`#set-${name} .lt-crop i`);
        const crops = () => ['crop', 'crop_y', 'zoom'].map(read);
        write('image', { path: 'a.png' });
        await paint('image');
        const results = [];
        for (const [crop, key] of rows) {
            await say({ crops: { image: crop } });
            write('crop', 0.5); write('crop_y', 0.5); write('zoom', 1);
            const isTaken = press(key, {}, hole('image'));
            results.push([...crops(), isTaken, find('#set-image .lt-crop').dataset.moves,
                hole('image').tabIndex]);
        }
        const more = [];
        for (const [zoom, key] of [[0.26, '-'], [7.9, '+']]) {
            write('zoom', zoom); press(key, {}, hole('image')); more.push(read('zoom'));
        }
        await say({ crops: { image: rows[0][0] } });
        write('crop', 0.2); write('crop_y', null); press('ArrowUp', {}, hole('image'));
        more.push(crops().slice(0, 2), hole('image').ariaValueText, hole('image').ariaValueNow);
        await say({ crops: { image: rows[6][0] } });
        more.push(hole('image').ariaValueText, hole('image').getAttribute('aria-orientation'));
        const wheel = () => hole('image').dispatchEvent(new WheelEvent('wheel',
            { deltaY: 1, cancelable: true }));
        write('zoom', 2); wheel(); more.push(read('zoom'));
        hole('image').focus(); wheel(); more.push(read('zoom'));
        const well = find('#set-image .lt-well');
        const finger = (type, pointerId, clientX, pointerType = 'touch') => (
            well.dispatchEvent(new PointerEvent(type, { pointerId, clientX, pointerType })));
        write('zoom', 1);
        finger('pointerdown', 1, 0); finger('pointercancel', 1, 0);
        finger('pointerdown', 2, 0); finger('pointermove', 2, 50); more.push(read('zoom'));
        finger('pointerdown', 3, 100); finger('pointermove', 3, 150); more.push(read('zoom'));
        finger('pointerup', 2, 50); finger('pointermove', 3, 500); more.push(read('zoom'));
        write('end_image', { path: 'b.png' });
        await paint('end_image');
        await say({ crops: { end_image: rows[6][0] } });
        press('+', {}, hole('end_image')); press('End', {}, hole('end_image'));
        more.push(read('end_crop'), read('zoom'), find('#set-image .lt-crop').hidden);
        write('end_image', { path: 'c.png' });
        await paint('end_image', 60);
        more.push(find('#set-end_image .lt-crop').hidden, read('zoom'), read('end_crop'));
        return [results, more];
    }"""


def test_a_crop_moves_within_its_room_and_zooms_within_its_bounds(page: Any) -> None:
    free, wide = [10, 0, 80, 60], [10, 0, 80, 99.6]
    rows: list[tuple[list[float], str, list[float | None]]] = [  # a crop, a key, and what follows
        (free, "End", [1, 1, 1]), (free, "Home", [0, 0, 1]), (free, "ArrowDown", [0.5, 0.52, 1]),
        (free, "ArrowLeft", [0.48, 0.5, 1]), (free, "PageUp", [0.5, 0.3, 1]), (free, "x", [0.5, 0.5, 1]),
        (wide, "End", [1, None, 1]), (wide, "ArrowDown", [0.52, None, 1]), (wide, "PageUp", [0.3, None, 1]),
        (free, "+", [0.5, 0.5, 1.1]), (free, "-", [0.5, 0.5, 0.91]),
        ([0, 0, 100, 100], "End", [0.5, 0.5, 1]), ([0, 0, 100, 100], "=", [0.5, 0.5, 1.1]),
    ]  # fmt: skip
    results, more = page.evaluate(MOVE_CROP, rows)
    assert [result[:3] for result in results] == [after for *_, after in rows]
    moves = {"across down": rows[:6] + rows[9:11], "across": rows[6:9], "": rows[11:]}
    for way, some in moves.items():
        assert {tuple(results[rows.index(row)][4:]) for row in some} == {(way, 0)}
    assert [result[3] for result in results] == [row[1] not in "x+-=" and row[0][2] < 100 for row in rows]
    assert more == [
        0.25, 8, [0.2, 0.18], "20 % across, 18 % down", "20", None, "horizontal", 2, 1.82, 1, 2, 2, 1, 2,
        True,
        True, 2, 0.5,
    ]  # fmt: skip


DROP_FILES = """async () => {
        const { read, write } = await openForm();
        const { filesRead } = await load('form/pictures.js');
        const told = [];
        const last = () => { const { path, sent } = calls.at(-1); return [path, sent]; };
        const problem = () => document.querySelector('p.lt-refusal')?.textContent ?? '';
        location.hash = 'queue'; await settle();
        await drop('body', ['film.mp4', 'video/mp4']);
        await uploaded('up/film'); told.push(location.hash, last());
        await answer('file_read', { text: '' }); told.push(read('image'));
        await drop('#set-end_image .lt-well', ['a.png', 'image/png']);
        await uploaded('up/a'); told.push(last());
        await answer('picture_check', {}); told.push(read('end_image').path, read('image').path);
        await drop('#set-end_image', ['x.json']);
        await uploaded('up/x'); told.push(last());
        let isRead = null;
        filesRead().then((value) => { isRead = value; });
        await settle(); told.push(isRead);
        calls.at(-1).refuse('It is broken.'); await settle(); told.push(isRead, problem());
        told.push(await filesRead());
        await drop('body', ['film.SAFETENSORS']); told.push(problem());
        await uploaded('up/l'); told.push(last());
        await answer('lora_add', 'film.safetensors'); told.push(read('lora'));
        await drop('body', ['a.png', 'image/png'], ['b.png', 'image/png']); told.push(problem());
        await drop('body', ['jobs.CSV'], ['own.png', 'image/png']);
        for (const part of ['own', 'jobs']) {
            told.push(await answer('gradio_api/upload', [`up/${part}`]));
        }
        const { path, sent } = calls.at(-1);
        told.push([path, sent.file.path, sent.pictures, 'image' in JSON.parse(sent.form),
            'steps' in JSON.parse(sent.form)]);
        await answer('batch_add', {}); told.push(location.hash);
        write('image', null);
        await drop('body', ['jobs', 'text/csv']); await uploaded('up/jobs');
        told.push(calls.at(-1).sent.pictures);
        await answer('batch_add', {});
        const paste = (target, text, ...files) => {
            const clipboardData = transferOf(...files);
            if (text) clipboardData.setData('text/plain', text);
            const event = new ClipboardEvent('paste', { bubbles: true, cancelable: true, clipboardData });
            find(target).dispatchEvent(event);
            return event.defaultPrevented;
        };
        const picture = ['cell.png', 'image/png'];
        told.push([paste('#in-prompt', 'words', picture), paste('#in-prompt', '/home/cell.png', picture),
            paste('#start', 'words', picture), paste('#in-prompt', '', picture),
                paste('#in-prompt', 'words')]);
        await uploaded('up/p'); await answer('file_read', { text: '' });
        const [input] = document.querySelectorAll('#set-end_image [type=file]');
        const before = named('gradio_api/upload').length;
        for (let n = 0; n < 2; n += 1) {
            input.files = transferOf(picture).files;
            input.dispatchEvent(new Event('change', { bubbles: true }));
            await uploaded('up/c'); await answer('picture_check', {});
        }
        told.push(input.value, named('gradio_api/upload').length - before);
        const { dataset } = document.documentElement;
        const drag = (type, more = {}) => {
            document.body.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, ...more }));
            told.push('dropping' in dataset);
        };
        const dataTransfer = transferOf(picture);
        drag('dragover'); drag('dragover', { dataTransfer });
        drag('dragleave', { relatedTarget: document.body }); drag('dragleave');
        drag('dragover', { dataTransfer }); drag('dragend');
        const canvas = document.createElement('canvas');
        canvas.getContext('2d');
        const [track] = canvas.captureStream().getTracks();
        const media = { getUserMedia: async () => new MediaStream([track]) };
        Object.defineProperty(navigator, 'mediaDevices', { value: media });
        find('#set-image [data-from=camera]').click(); await settle();
        told.push(find('#camera').open);
        find('#camera').querySelectorAll('button')[1].click(); await settle();
        told.push(find('#camera').open, track.readyState);
        write('image', { path: 'p' });
        find('#set-image [data-from=""]').click();
        told.push(read('image'), document.activeElement.className);
        return told;
    }"""


def test_dropped_pasted_and_chosen_files_become_what_they_are(page: Any) -> None:
    told = page.evaluate(DROP_FILES)
    film = {"path": "up/film", "orig_name": "film.mp4"}
    assert told == [
        "#create", ["file_read", {"file": film, "name": "film.mp4"}], film,
        ["picture_check", {"file": {"path": "up/a", "orig_name": "a.png"}}], "up/a", "up/film",
        ["file_read", {"file": {"path": "up/x", "orig_name": "x.json"}, "name": "x.json"}], None, False,
        "It is broken.", True, "", ["lora_add", {"file": {"path": "up/l"}, "name": "film.SAFETENSORS"}],
        "film.safetensors:1",
        "These are 2 files. Drop one at a time; only a batch file comes with its pictures.",
        "own.png", "jobs.CSV",
        ["batch_add", "up/jobs", {"own.png": {"path": "up/own"}, "": {"path": "up/film"}}, False, True],
        "#queue", {},
        [False, True, True, True, False], "", 2, False, True, True, False, True, False, True, False, "ended",
        None,
        "lt-drop",
    ]  # fmt: skip


def test_a_press_is_kept_withdrawn_and_waits_for_its_picture(page: Any) -> None:
    results = page.evaluate("""async () => {
        sessionStorage['longtake.press'] = JSON.stringify([{
            id: 'old', settings: { prompt: 'old', image: { path: 'gone' }, end_image: { path: 'e' } },
            mayDownload: true,
        }]);
        const later = holdTimers();
        const { read, write } = await load('form/describe.js');
        const started = () =>
            named('form_start').map(({ sent }) => [sent.press, sent.settings.prompt, sent.may_download]);
        const isKept = () =>
            [sessionStorage['longtake.press'] ? 'kept' : '', find('#start').getAttribute('aria-busy')];
        write('image', { path: 'here' });
        let drawn = 0;
        crypto.getRandomValues = (numbers) => numbers.fill(drawn += 1);
        await openForm(); await settle();
        const results = [started(),
            ['image', 'end_image'].map((name) => named('form_start')[0].sent.settings[name].path)];
        await answer('form_start', ''); results.push(isKept());
        const start = async (prompt) => { write('prompt', prompt); find('#start').click(); await settle(); };
        write('random_seed', false); write('seed', 5);
        await start('a'); results.push(read('seed'));
        await later(2000); results.push(textOf('#notice b'));
        find('#notice .lt-withdraw').click(); await settle(); results.push(isKept());
        named('form_start').at(-1).refuse('Too late.'); await settle(); results.push(textOf('#notice'));
        write('random_seed', true); await start('b'); results.push(read('seed') !== 5);
        await answer('form_start', '<div class="lt-box"><button data-answer="yes">Yes</button></div>');
        find('#notice button').click(); await settle();
        results.push(started().slice(1).map(([, ...sent]) => sent),
            new Set(started().map(([id]) => id)).size, started().at(-1)[0]);
        named('form_start').at(-1).lose(); await settle(); results.push(isKept());
        await later(2000); results.push(named('form_start').length); await answer('form_start', '');
        await later(2000); results.push(textOf('#notice'), isKept());
        find('#notice').innerHTML = '<button data-continue="up/v" data-name="v.mp4"></button>';
        find('#notice button').click(); await settle(); results.push(calls.at(-1).sent);
        await answer('file_continue', { text: '{}' }); await answer('form_fill', {});
        await drop('#set-image', ['a.png', 'image/png']);
        await start('c'); await start('c'); results.push(named('form_start').length, isKept());
        await uploaded('up/a'); await answer('picture_check', {}); await settle();
        results.push(named('form_start').slice(5).map(({ sent }) => sent.settings.image.path));
        await answer('form_start', '');
        await drop('#set-image', ['b.png', 'image/png']);
        await start('d'); (await pending('gradio_api/upload')).refuse('No.'); await settle();
        results.push(named('form_start').length, isKept());
        return results;
    }""")
    assert results == [
        [["old", "old", True]], ["here", "e"], ["", "false"], 5, "The server does not answer yet.",
        ["", "false"], "", True, [["a", False], ["b", False], ["b", True]], 4, "03" * 16, ["kept", "true"],
        5, "", ["", "false"], {"file": {"path": "up/v"}, "name": "v.mp4"}, 5, ["", "true"], ["up/a"], 6,
        ["", "false"],
    ]  # fmt: skip


def test_the_form_comes_back_after_videos_were_edited(page: Any) -> None:
    results = page.evaluate("""async () => {
        const { read, write } = await openForm();
        const [{ editJob }, { reportJobs }] = [await load('form/press.js'), await load('jobs.js')];
        const bar = find('.lt-editing');
        const results = [];
        const tell = () => results.push([bar.hidden ? '' : bar.textContent,
            document.documentElement.dataset.editing]);
        const edit = async (id, prompt = id) => {
            editJob({ id, offered: true, request: { prompt } }).catch(() => {});
            await settle();
            await answer('history_settings', { text: '{"is_whole": true}', pictures: { image: '' } });
            await answer('form_fill', { values: { prompt } });
            tell();
        };
        editJob({ id: 'x', offered: false }).catch(({ message }) => results.push(message.slice(0, 40)));
        await settle();
        write('prompt', 'mine'); write('image', { path: 'own' });
        await edit('a', 'x'.repeat(80)); await edit('b', 'y'.repeat(81));
        find('#save').click(); await settle();
        results.push(named('form_save')[0].sent.job);
        await answer('form_save', '<div class="lt-box">Not now.</div>'); tell();
        find('#save').click(); await settle();
        named('form_save').at(-1).refuse('It is wrong.'); await settle(); tell();
        bar.lastChild.click(); await settle();
        results.push(JSON.parse(named('form_restore').at(-1).sent.kept).prompt);
        await answer('form_restore', { values: { prompt: 'mine' } });
        tell(); results.push([read('prompt'), read('image').path, location.hash, document.activeElement.id]);
        location.hash = 'create';
        await edit('c');
        const queue = { models: '', start: '', held: false, can_end: false };
        const hear = async (job, ...actions) =>
            { reportJobs({ job, actions, queue }); await settle(); tell(); };
        await hear('d'); await hear('c', 'edit'); await hear('c', 'cancel');
        bar.lastChild.click(); await settle(); tell();
        results.push([named('form_restore').length, location.hash]);
        await edit('e');
        find('#save').click(); await settle();
        await answer('form_save', '<div class="lt-box" data-saved>Saved.</div>');
        results.push(JSON.parse(named('form_restore').at(-1).sent.kept).prompt);
        await answer('form_restore', {}); tell();
        return results;
    }""")
    you, cancel = "You are editing a video in the queue: ", "Cancel editing"
    begun = "The video has begun and keeps its settings. You can start another one with these.Close"
    b = [f"{you}{'y' * 80}…{cancel}", "b"]
    c = [f"{you}c{cancel}", "c"]
    assert results == [
        "This page does not offer the model of th", [f"{you}{'x' * 80}{cancel}", "a"], b, "b", b, b, "mine",
        ["", ""],
        ["mine", "own", "#queue", "tab-queue"], c, c, c, [begun, ""], ["", ""], [2, "#create"],
        [f"{you}e{cancel}", "e"], "c", ["", ""],
    ]  # fmt: skip

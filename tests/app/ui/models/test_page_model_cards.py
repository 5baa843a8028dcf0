"""Tests of the Models tab's scripts without a server: questions, refusals, and the user's own files."""

from typing import Any

from tests.support.page_scripts import document, page
from tests.support.pages import needs_chromium

__all__ = ["document", "page"]
pytestmark = needs_chromium
# Opens the tab with the list of models and of the user's own files; `list` answers for the former.
MODELS = """
    const later = holdTimers();
    const { reportJobs } = await load('jobs.js');
    let revision = 0;
    const hear = async (queue = {}) => {
        reportJobs({ queue: { revision: String(revision += 1), models: '', ...queue } });
        await settle();
    };
    const model = (name, more = {}) => ({
        model: name, title: name.toUpperCase(), label: 'On this machine', state: 'complete', purpose: '',
        facts: '', needs: [],
        sources: [], licence: '', parts: [], progress: { is_shown: false, percent: 0, words: '' },
        problem: '', problems: null,
        actions: [['use', 'Use'], ['remove', 'Remove…'], ['convert', 'Make a copy…'], ['check', 'Check']],
        asks: {
            remove: { title: 'Remove?', words: 'It is 3 GB.', sure: 'Remove it' },
            convert: { title: 'Copy?', words: '', sure: 'Make it' },
        },
        ...more,
    });
    const list = (models, more = {}) =>
        answer('models_list', { models, disk: '9 GB', is_busy: false, ...more });
    const card = (name) => find(`.lt-model-card[data-model=${name}]`);
    const part = (name, what) => card(name).querySelector(`.lt-model-${what}`);
    const press = async (name, action) => {
        card(name).querySelector(`[data-action=${action}]`).click();
        await settle();
    };
    const asked = () => named('models_list').length;
    const file = (name, kind, more = {}) =>
        ({ name, part: kind, model: name, title: name, words: '', problem: '', ...more });
    const files = (all, adding = {}) => (
        answer('models_files',
            { files: all, words: `${all.length} files.`,
                adding: { name: '', seconds: 0, problem: '', ...adding } }));
    location.hash = 'models';
    document.documentElement.dataset.tab = 'models';
    await load('tabs.js').then((tabs) => tabs.default(find('.lt-tabs')));
    await load('models/models.js').then((models) => models.default());
    await settle();
    const told = [];
"""


def models(page: Any, script: str) -> Any:
    return page.evaluate(f"async () => {{ {MODELS} {script} return told; }}")


CHANGE_MODEL = """
        named('models_list')[0].refuse('Away.'); await settle();
        told.push(textOf('.lt-models-problem')); await later(1000); await list([model('a'), model('b')]);
        told.push(textOf('.lt-models-problem'), textOf('.lt-models-say'), textOf('.lt-models-reported'));
        const question = () => told.push([
            part('a', 'question').hidden, part('a', 'question').ariaLabel,
            part('a', 'question').querySelector('p').textContent,
            part('a', 'question').querySelector('[data-action=sure]').ariaDisabled,
            document.activeElement.dataset.action ?? document.activeElement.className,
        ].join('/'));
        await press('a', 'remove'); question();
        document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
        question();
        await press('a', 'remove'); await press('a', 'keep'); question();
        await press('a', 'convert'); question();
        const kinds = part('a', 'copies');
        const choose = async (value) =>
            { kinds.value = value; kinds.dispatchEvent(new Event('change', { bubbles: true }));
                await settle(); };
        const first = named('models_copy')[0];
        await choose('fp16');
        first.answer({ refusal: 'No room.', words: '' }); await settle(); question();
        await press('a', 'sure'); told.push(named('models_convert').length);
        await answer('models_copy', { refusal: '', words: '4 GB in /m.' }); question();
        await choose('bf16'); await answer('models_copy', { refusal: 'No room.', words: '' }); question();
        await choose('fp16'); await answer('models_copy', { refusal: '', words: '4 GB in /m.' });
        told.push(named('models_copy').map(({ sent }) => sent.weight_dtype).join());
        await press('a', 'sure'); told.push(named('models_convert')[0].sent); question();
        named('models_convert')[0].refuse('It is used.'); await settle();
        await list([model('a'), model('b')]);
        told.push(part('a', 'problem').textContent);
        await press('a', 'check'); told.push(calls.at(-1).sent, part('a', 'problem').textContent);
        await hear(); const meanwhile = named('models_list').at(-1);
        meanwhile.answer({ models: [model('a', { title: 'old' })], disk: '', is_busy: false });
        await settle();
        told.push(part('a', 'title').textContent);
        await answer('models_check', {});
        await list([model('a', { state: 'checking', label: 'Checking', problems: [] }), model('b')],
            { is_busy: true });
        told.push(textOf('.lt-models-reported'), part('a', 'checked').textContent);
        const count = asked();
        await later(1000); await list([model('a', { problems: ['x is damaged.'] }), model('b')],
            { is_busy: true });
        told.push(asked() - count, part('a', 'checked').textContent, part('a', 'checked').dataset.whole);
        location.hash = 'queue'; await settle(); await later(1000);
        named('models_list').at(-1).lose(); await settle(); await later(1000); told.push(asked() - count);
        location.hash = 'models/b'; await settle(); await list([model('a'), model('b')]);
        told.push(document.activeElement.textContent);
        part('b', 'title').blur(); await hear({ models: 'new' }); await list([model('a'), model('b')]);
        told.push(document.activeElement.tagName, part('a', 'checked').hidden);
        const quiet = asked(); revision -= 1; await hear({ models: 'new' }); told.push(asked() - quiet);
        await press('b', 'remove'); await press('b', 'sure'); await answer('models_remove', {});
        await list([model('a')]);
        told.push(named('models_remove')[0].sent, document.activeElement.id, card('b'));
        part('a', 'title').focus(); await hear(); await list([model('c')]);
        told.push(document.activeElement.id);
        await press('c', 'use'); told.push(JSON.parse(calls.at(-1).sent.restored).settings, location.hash);
    """


def test_a_model_is_asked_about_changed_and_refused(page: Any) -> None:
    assert models(page, CHANGE_MODEL) == [
        "Away.", "", "9 GB", "", "false/Remove?/It is 3 GB.//keep", "true/Remove?/It is 3 GB.//remove",
        "true/Remove?/It is 3 GB.//remove", "false/Copy?//true/lt-model-copies",
        "false/Copy?//true/lt-model-copies", 0,
        "false/Copy?/4 GB in /m.//lt-model-copies", "false/Copy?/No room./true/lt-model-copies",
        "int8,fp16,bf16,fp16",
        {"model": "a", "weight_dtype": "fp16"}, "true/Copy?/4 GB in /m.//convert", "It is used.",
        {"model": "a"}, "", "A",
        "A: Checking.", "All files are complete and their checksums are correct.", 1, "x is damaged.",
        "false", 2,
        "B", "BODY", True, 0, {"model": "b"}, "tab-models", None, "tab-models",
        {"model": "c", "steps": None, "guidance": None, "resolution": None}, "#create",
    ]  # fmt: skip


ADD_FILES = """
        const boxes = () => [...document.querySelectorAll('.lt-own-files input')];
        const state = () => told.push([
            boxes().map(({ checked, disabled }) => `${Number(checked)}${disabled ? '-' : ''}`).join(' '),
            find('.lt-own-form').hidden,
            find('.lt-own-name').value, textOf('.lt-own-reported'), find('.lt-own-bar').hidden,
            find('.lt-own-add').ariaDisabled,
        ].join('/'));
        const all = [file('v', 'vae'), file('a', 'transformer'), file('x', '')];
        await list([model('m')]);
        await files(all); told.push(textOf('.lt-own-say'),
            [...find('.lt-own-base').options].map(({ value }) => value).join());
        const { loadFiles } = await load('models/own.js');
        loadFiles(); loadFiles(); await settle(); told.push(textOf('.lt-own-say'));
        const [early, last] = named('models_files').slice(-2);
        boxes()[0].click(); boxes()[1].click(); state();
        const name = (text) => enter('.lt-own-name', text);
        name('mine'); boxes()[1].click(); boxes()[1].click(); state();
        name(''); boxes()[1].click(); boxes()[1].click(); state();
        last.answer({ files: [...all, file('w', 'vae')], words: '4 files.',
            adding: { name: '', seconds: 0, problem: '' } }); await settle();
        early.answer({ files: [], words: 'early', adding: { name: '', seconds: 0, problem: '' } });
        await settle();
        told.push(textOf('.lt-own-say')); state();
        boxes()[3].click(); state();
        name('mine'); find('.lt-own-base').value = 'm';
        find('.lt-own-form').requestSubmit(); find('.lt-own-form').requestSubmit(); await settle();
        told.push(named('models_add').map(({ sent }) => sent)); state();
        await settle(); await settle();
        for (let n = 0; n < 20 && named('models_files').at(-1).isOver; n += 1) await settle();
        await files([...all, file('w', 'vae')], { name: 'mine', seconds: 5 }); state();
        named('models_add')[0].refuse('It has no VAE.'); await settle();
        await files([...all, file('w', 'vae')], { problem: 'It has no VAE.' }); state();
        find('.lt-own-form').requestSubmit(); await settle(); named('models_add')[1].answer('');
        await settle();
        await list([model('m'), model('mine')]); await files(all); state();
        told.push(document.activeElement.textContent, find('.lt-own-base').value);
        boxes()[1].click(); state(); boxes()[1].click();
        loadFiles(true); await settle(); await files(all, { name: 'other', seconds: 3 }); state();
        const count = named('models_list').length;
        await later(1000); await files(all, { problem: 'It failed.' }); state();
        told.push(named('models_list').length - count);
        loadFiles(true); await settle(); await files(all, { name: 'other', seconds: 3 });
        await later(1000); await files(all); told.push(named('models_list').length - count);
        await list([model('other')]);
        told.push(document.activeElement.textContent);
        find('.lt-own-files details').open = true; await settle();
        await answer('models_inspect', {
            format: 'GGUF', model: 'Wan', variant: '', key_style: '', tensors: 3,
            dtypes: { bf16: 0.256, fp8: 0.744 },
            quantised: '', hints: ['One.'], problems: ['Two.'],
        });
        told.push([...document.querySelectorAll('.lt-own-files tr')].map((row) => row.textContent).join('|'));
        find('.lt-own-again').click(); await settle(); named('models_files').at(-1).lose(); await settle();
        told.push(textOf('.lt-own-say'));
    """


def test_files_of_ones_own_become_a_model(page: Any) -> None:
    told = models(page, ADD_FILES)
    checks = (
        "The names and shapes of all tensors of {} are being checked: {} s so far. You may close this tab."
    )
    assert told == [
        "3 files.", ",m", "Looking…", "1 1 0-/false/a//true/", "1 1 0-/false/mine//true/",
        "1 1 0-/false/a//true/",
        "4 files.", "1 1 0- 0/false/a//true/",
        "0 1 0- 1/false/a/w replaces v, since a model has one file for each part./true/",
        [{"model": "mine", "parts": {"transformer": "a", "vae": "w"}, "base": "m"}],
        "0- 1- 0- 1-/false/mine/w replaces v, since a model has one file for each part./true/true",
        f"0- 1- 0- 1-/false/mine/{checks.format('mine', 5)}/false/true",
        "0 1 0- 1/false/mine/It has no VAE./true/",
        "0 0 0-/true/mine//true/", "MINE", "", "0 1 0-/false/a//true/",
        f"0- 0- 0-/true/a/{checks.format('other', 3)}/false/true", "0 0 0-/true/a/It failed./true/", 0, 1,
        "OTHER",
        "FormatGGUF|ModelWan|Tensors3|Typesbf16 25.6 %, fp8 74.4 %|Quantisedno|RemarksOne. Two.", "3 files.",
    ]  # fmt: skip

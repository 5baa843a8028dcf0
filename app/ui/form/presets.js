// The presets: a button beside the form's end, and a dialog in which settings are saved, used and passed on.
import { call, upload } from '../calls/call.js';
import { make, onPress, onSubmit, setText } from '../elements.js';
import { restoreForm } from './fill.js';
import { keptSettings } from './keep.js';

const START = 'start'; // the preset with which the page begins

const titleOf = (name) => (name === START ? 'Default' : name);
const textButton = (label, spoken, act) => {
  const button = make('button', { type: 'button', textContent: label, ariaLabel: spoken });
  onPress(button, act);
  return button;
};

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  make('a', { href: address, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address));
}

/** The dialog with the presets. */
class Presets {
  #list = make('ul', { className: 'lt-preset-list' });
  #none = make('p', { className: 'lt-hint', textContent: 'There are no presets yet.', hidden: true });
  #said = make('p', { className: 'lt-hint', role: 'status' });
  #name = make('input', { type: 'text', maxLength: 50, required: true, ariaLabel: 'Name of the preset', placeholder: 'Name' });
  #file = make('input', { type: 'file', accept: '.json,.mp4,.png', hidden: true, ariaLabel: 'File with settings' });
  #dialog;
  /** The button that opens the dialog, and the dialog. */
  elements;

  constructor() {
    const open = textButton('Presets', 'Presets of settings', () => this.open());
    const form = make(
      'form', { className: 'lt-preset-save', method: 'dialog' },
      make('label', { textContent: 'Save the current settings, without picture and prompt, as' }),
      make('div', {}, this.#name, make('button', { type: 'submit', className: 'lt-main-button', textContent: 'Save' })),
    );
    onSubmit(form, () => this.#save());
    this.#file.addEventListener('change', () => this.#takeFile());
    const ends = make(
      'div', { className: 'lt-preset-ends' },
      textButton('Import a file…', 'Import a file with settings', () => this.#file.click()),
      textButton('Close', 'Close the presets', () => this.#dialog.close()),
    );
    const title = make('h2', { textContent: 'Presets', id: 'lt-presets-title' });
    this.#dialog = make('dialog', { className: 'lt-dialog' }, title, this.#none, this.#list, form, this.#file, ends, this.#said);
    this.#dialog.setAttribute('aria-labelledby', 'lt-presets-title');
    this.#dialog.addEventListener('click', ({ target }) => { if (target === this.#dialog) this.#dialog.close(); });
    open.className = 'lt-quiet-button';
    this.elements = [open, this.#dialog];
  }

  /** Open the dialog with the present list. */
  open() {
    this.#report('');
    this.#dialog.showModal();
    this.#name.focus();
    return this.#do(async () => this.#show(await call('preset_list')));
  }

  #report(words) {
    setText(this.#said, words);
  }

  async #do(act) {
    try {
      await act();
    } catch (error) {
      this.#report(error.message);
    }
  }

  #show(names) {
    this.#none.hidden = names.length > 0;
    const ordered = names.toSorted((one, other) => Number(other === START) - Number(one === START));
    this.#list.replaceChildren(...ordered.map((name) => this.#row(name)));
  }

  #row(name) {
    const title = titleOf(name);
    const act = (label, run) => textButton(label, `${label}: ${title}`, () => this.#do(run));
    return make(
      'li', {},
      make('b', { textContent: title }),
      act('Use', async () => {
        await restoreForm(await call('preset_load', name));
        this.#dialog.close();
      }),
      ...(name === START ? [] : [act('Make default', async () => {
        this.#show(await call('preset_default', name));
        this.#report(`New pages and “Reset to defaults” now use “${title}”.`);
      })]),
      act('Export', async () => download(name, await call('preset_export', name))),
      act('Remove', async () => {
        const text = await call('preset_export', name);
        this.#show(await call('preset_remove', name));
        this.#offerUndo(name, text);
      }),
    );
  }

  #offerUndo(name, text) {
    const undo = textButton('Undo', `Bring ${titleOf(name)} back`, () => this.#do(async () => {
      await this.#take(name, new File([text], `${name}.json`, { type: 'application/json' }));
      this.#report('The preset is back.');
    }));
    this.#said.replaceChildren(`“${titleOf(name)}” has been removed. `, undo);
    undo.focus();
  }

  #save() {
    const name = this.#name.value.trim();
    return this.#do(async () => {
      this.#show(await call('preset_save', name, keptSettings() || '{}'));
      this.#name.value = '';
      this.#report(`“${titleOf(name)}” is saved.`);
    });
  }

  #takeFile() {
    const [file] = this.#file.files;
    if (!file) return;
    this.#file.value = '';
    const name = file.name.replace(/\.[^.]*$/, '').slice(0, 50).trim();
    this.#do(async () => {
      await this.#take(name, file);
      this.#report(`“${name}” is saved.`);
    });
  }

  async #take(name, file) {
    const { path } = await upload(file);
    this.#show(await call('preset_import', name, { path }));
  }
}

/** Set up the presets. */
export function startPresets(element) {
  element.replaceChildren(...new Presets().elements);
}

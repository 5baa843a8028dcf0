// The user's own files below the models: what each of them is, and the form that makes a model of some of them.
import { call, callLong } from '../calls/call.js';
import { hasChanged, make, setText } from '../elements.js';
import { named } from './parts.js';

const MOST_LETTERS = 60; // of a model's name
const PAUSE = 1000; // milliseconds between two looks at a model that is being added
const percent = (share) => `${(100 * share).toFixed(1)} %`;
let ids = 0;

function factsTable(facts) {
  const rows = [
    ['Format', facts.format], ['Model', [facts.model, facts.variant].filter(Boolean).join(' ')],
    ['Names of tensors', facts.key_style], ['Tensors', facts.tensors],
    ['Types', Object.entries(facts.dtypes).map(([type, share]) => `${type} ${percent(share)}`).join(', ')],
    ['Quantised', facts.quantised || 'no'], ['Remarks', [...facts.hints, ...facts.problems].join(' ')],
  ].filter(([, value]) => value);
  return make('table', {}, make('tbody', {}, ...rows.map(([name, value]) => (
    make('tr', {}, make('th', { scope: 'row', textContent: name }), make('td', { className: 'lt-wide', textContent: value }))
  ))));
}

/** One file or folder of the list. */
class Row {
  element;
  file;
  box = make('input', { type: 'checkbox' });

  constructor(file, choose) {
    this.file = file;
    const { name, part, words, problem } = file;
    this.box.disabled = !part;
    this.box.addEventListener('change', () => choose(this));
    const inside = make('div', { className: 'lt-model-table', tabIndex: 0, role: 'region' });
    inside.setAttribute('aria-label', `Inside ${name}`);
    const summary = make('summary', { textContent: 'Inspect' });
    summary.setAttribute('aria-label', `Inspect ${name}`);
    const details = make('details', {}, summary, inside);
    details.addEventListener('toggle', () => { if (details.open) this.#inspect(inside); });
    ids += 1;
    const about = make(
      'div', { id: `lt-own-${ids}` }, make('p', { textContent: [part && named(part), words].filter(Boolean).join(': ') }),
      ...(problem ? [make('p', { className: 'lt-own-problem', textContent: problem })] : []),
    );
    this.box.setAttribute('aria-describedby', about.id);
    this.element = make('li', {}, make('label', {}, this.box, make('span', { textContent: name })), about, details);
  }

  async #inspect(inside) {
    try {
      inside.replaceChildren(factsTable(await call('models_inspect', this.file.name)));
    } catch (error) {
      inside.replaceChildren(make('p', { textContent: error.message }));
    }
  }
}

/** The list of the files, and the form. */
export class OwnFiles {
  #section;
  #added; // called with the name of a new model, and shows it
  #rows = [];
  #list = make('ul', { className: 'lt-own-files' });
  #say = make('p', { className: 'lt-models-say' });
  #name = make('input', { type: 'text', maxLength: MOST_LETTERS, autocomplete: 'off', spellcheck: false });
  #base = make('select', {});
  #add = make('button', { type: 'submit', className: 'lt-first', textContent: 'Add model' });
  #bar = make('progress', { hidden: true, ariaLabel: 'Check of the files' });
  #timer = 0;
  #awaited = ''; // the model that was being added at the last look
  #isSubmitting = false;
  #reported = make('p', { className: 'lt-own-reported' });
  #form;
  #isNamed = false; // whether the user has written a name
  #asked = 0; // the number of the last request, since only the last answer counts

  constructor(section, added) {
    this.#section = section;
    this.#added = added;
    this.#reported.setAttribute('role', 'status');
    this.#list.setAttribute('aria-label', 'Your own files');
    const again = make('button', { type: 'button', textContent: 'Look again', ariaLabel: 'Look again for your own files' });
    again.addEventListener('click', () => this.load());
    this.#form = make(
      'form', { className: 'lt-own-form', hidden: true },
      make('label', {}, 'Name', this.#name), make('label', {}, 'All other parts from', this.#base),
      make('div', { className: 'lt-model-actions' }, this.#add),
    );
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#name.addEventListener('input', () => { this.#isNamed = this.#name.value !== ''; });
    section.querySelector('header').append(this.#say, make('div', { className: 'lt-model-actions' }, again));
    section.append(this.#list, this.#form, this.#bar, this.#reported);
  }

  /** Offer these models as the source of all other parts. */
  offer(models) {
    const options = [['', 'Automatic'], ...models.map(({ model, title }) => [model, title])];
    if (!hasChanged(this.#base, options)) return;
    const before = this.#base.value;
    this.#base.replaceChildren(...options.map(([value, textContent]) => make('option', { value, textContent })));
    this.#base.value = options.some(([value]) => value === before) ? before : '';
  }

  /** Ask the server for the files. */
  async load({ isQuiet = false } = {}) {
    clearTimeout(this.#timer);
    this.#asked += 1;
    const asked = this.#asked;
    let said;
    try {
      if (!isQuiet) setText(this.#say, 'Looking…');
      const { folder, variable, files, more, adding } = await call('models_files');
      if (asked !== this.#asked) return;
      this.#show(files);
      this.#follow(adding);
      const other = `set the environment variable ${variable} to it and start Longtake again.`;
      said = files.length
        ? `Tick one file of the folder “${folder}” for each part of a new model. To use another folder, ${other}`
        : `Put files with weights into the folder “${folder}”. To use another one, such as ComfyUI's models, ${other}`;
      if (more) said += ` ${more} more files are not listed.`;
    } catch (error) {
      if (asked !== this.#asked) return;
      said = error.message;
    }
    setText(this.#say, said);
    this.#section.dataset.state = 'known';
  }

  // The check goes on if its page is closed, so any page may find a model that is being added.
  #follow({ name, seconds, problem }) {
    const awaited = this.#awaited;
    this.#awaited = name;
    if (name) {
      setText(this.#reported, `The names and shapes of all tensors of ${name} are being checked: ${seconds} s so far. You may close this tab.`);
      this.#timer = setTimeout(() => this.load({ isQuiet: true }), PAUSE);
    } else if (awaited && !this.#isSubmitting) {
      setText(this.#reported, problem);
      if (!problem) this.#added(awaited);
    }
    this.#bar.hidden = !name;
    if (!this.#isSubmitting) this.#isBusy = Boolean(name);
  }

  #show(files) {
    if (!hasChanged(this.#list, files)) return; // otherwise the rows stay, and with them the keyboard's place
    const chosen = this.#chosen.map(({ file }) => file.name);
    this.#rows = files.map((file) => new Row(file, (row) => this.#choose(row)));
    for (const row of this.#rows) row.box.checked = !row.box.disabled && chosen.includes(row.file.name);
    this.#list.replaceChildren(...this.#rows.map(({ element }) => element));
    this.#form.hidden = !this.#chosen.length;
  }

  get #chosen() { return this.#rows.filter(({ box }) => box.checked); }

  /** A part has one file, so another one for the same part takes the place of the former. */
  #choose(row) {
    const { name, part } = row.file;
    const former = row.box.checked && this.#chosen.find((other) => other !== row && other.file.part === part);
    if (former) former.box.checked = false;
    const chosen = this.#chosen;
    this.#form.hidden = !chosen.length;
    setText(this.#reported, former ? `${name} replaces ${former.file.name}, since a model has one file for each part.` : '');
    if (this.#isNamed || !chosen.length) return;
    const first = chosen.find(({ file }) => file.part === 'transformer') ?? chosen[0];
    this.#name.value = first.file.model;
  }

  /** While the server checks the files, the ticks stay as they are. */
  set #isBusy(isBusy) {
    this.#add.ariaDisabled = isBusy ? 'true' : null; // `disabled` would take the focus away
    for (const { box, file } of this.#rows) box.disabled = isBusy || !file.part;
  }

  async #submit() {
    if (this.#add.ariaDisabled === 'true') return;
    const name = this.#name.value.trim();
    const parts = Object.fromEntries(this.#chosen.map(({ file }) => [file.part, file.name]));
    this.#isBusy = this.#isSubmitting = true;
    this.#timer = setTimeout(() => this.load({ isQuiet: true }), PAUSE / 4);
    try {
      await callLong('models_add', name, parts, this.#base.value); // it takes its time, which stands here
      await this.#added(name); // the focus moves to the new card before the form goes
      for (const { box } of this.#chosen) box.checked = false;
      this.#isNamed = false;
      this.#base.value = '';
      this.#form.hidden = true;
      setText(this.#reported, '');
    } catch (error) {
      setText(this.#reported, error.message);
    } finally {
      this.#isBusy = this.#isSubmitting = false;
      this.load({ isQuiet: true }); // the next names to suggest
    }
  }
}

// The person's own files below the models: what each of them is, and the form that makes a model of some of them.
import { call } from '../calls/call.js';
import { hasChanged, make, setText } from '../elements.js';
import { named } from './parts.js';

const MOST_LETTERS = 60;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Return a name for a model that is made of a file. */
function nameFor(file) {
  const last = file.split('/').pop().replace(/\.index\.json$/, '').replace(/\.\w+$/, '');
  return last.toLowerCase().replace(/[^a-z0-9._-]+/g, '-').replace(/^[^a-z0-9]+/, '').slice(0, MOST_LETTERS);
}

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
    this.element = make(
      'li', {}, make('label', {}, this.box, make('span', { textContent: name })),
      make('p', { textContent: [part && named(part), words].filter(Boolean).join(': ') }),
      ...(problem ? [make('p', { className: 'lt-own-problem', textContent: problem })] : []), details,
    );
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
  #added; // called with the name of a new model
  #rows = [];
  #list = make('ul', { className: 'lt-own-files' });
  #say = make('p', { className: 'lt-models-say' });
  #name = make('input', { type: 'text', maxLength: MOST_LETTERS, autocomplete: 'off', spellcheck: false });
  #base = make('select', {});
  #add = make('button', { type: 'submit', className: 'lt-first', textContent: 'Add model' });
  #told = make('p', { className: 'lt-own-told' });
  #form;
  #isNamed = false; // whether the person has written a name

  constructor(section, added) {
    this.#section = section;
    this.#added = added;
    this.#told.setAttribute('role', 'status');
    this.#list.setAttribute('aria-label', 'Your own files');
    const again = make('button', { type: 'button', textContent: 'Look again', ariaLabel: 'Look again for your own files' });
    again.addEventListener('click', () => this.load());
    this.#form = make(
      'form', { className: 'lt-own-form', hidden: true },
      make('label', {}, 'Name', this.#name), make('label', {}, 'All other parts from', this.#base),
      make('div', { className: 'lt-model-actions' }, this.#add), this.#told,
    );
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#name.addEventListener('input', () => { this.#isNamed = this.#name.value !== ''; });
    section.querySelector('header').append(this.#say, make('div', { className: 'lt-model-actions' }, again));
    section.append(this.#list, this.#form);
  }

  /** Offer these models as the source of all other parts. */
  offer(models) {
    const options = [['', 'the model that fits the transformer'], ...models.map(({ model, title }) => [model, title])];
    if (!hasChanged(this.#base, options)) return;
    const before = this.#base.value;
    this.#base.replaceChildren(...options.map(([value, textContent]) => make('option', { value, textContent })));
    this.#base.value = options.some(([value]) => value === before) ? before : '';
  }

  /** Ask the server for the files. */
  async load() {
    let said;
    try {
      const { folder, variable, files, more } = await call('models_files');
      this.#show(files);
      const where = `the folder “${folder}”`;
      said = files.length
        ? `A model can be made of the files in ${where}. The environment variable ${variable} names another folder.`
        : `Put files with weights into ${where}, or set ${variable} to the folder that has them, such as ComfyUI's models.`;
      if (more) said += ` ${more} more files are not listed.`;
    } catch (error) {
      said = error.message;
    }
    setText(this.#say, said);
    this.#section.dataset.state = 'known';
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
    for (const other of this.#chosen) {
      if (other !== row && other.file.part === row.file.part) other.box.checked = false;
    }
    const chosen = this.#chosen;
    this.#form.hidden = !chosen.length;
    setText(this.#told, '');
    if (this.#isNamed || !chosen.length) return;
    const first = chosen.find(({ file }) => file.part === 'transformer') ?? chosen[0];
    this.#name.value = nameFor(first.file.name);
  }

  async #submit() {
    if (this.#add.ariaDisabled === 'true') return;
    const name = this.#name.value.trim();
    const parts = Object.fromEntries(this.#chosen.map(({ file }) => [file.part, file.name]));
    this.#add.ariaDisabled = 'true'; // `disabled` would take the focus away
    setText(this.#told, 'The names and shapes of all tensors are being checked, which takes some seconds…');
    try {
      await call('models_add', name, parts, this.#base.value, '');
      for (const { box } of this.#chosen) box.checked = false;
      this.#isNamed = false;
      this.#form.hidden = true;
      setText(this.#told, '');
      this.#added(name);
    } catch (error) {
      setText(this.#told, error.message);
    } finally {
      this.#add.ariaDisabled = null;
    }
  }
}

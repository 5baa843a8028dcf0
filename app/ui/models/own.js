// The user's own files below the models: what each of them is, and the form that makes a model of some of them.
import { call, callLong } from '../calls/call.js';
import { hasChanged, make, makeTable, onPress, onSubmit, setText } from '../elements.js';

const PAUSE = 1000; // milliseconds between two looks at a model that is being added
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function factsTable(facts) {
  const types = Object.entries(facts.dtypes).map(([type, share]) => `${type} ${percent(share)}`).join(', ');
  return makeTable([], [
    ['Format', facts.format], ['Model', [facts.model, facts.variant].filter(Boolean).join(' ')],
    ['Names of tensors', facts.key_style], ['Tensors', facts.tensors], ['Types', types],
    ['Quantised', facts.quantised || 'no'], ['Remarks', [...facts.hints, ...facts.problems].join(' ')],
  ].filter(([, value]) => value), 'lt-wide');
}

/** One file or folder of the list. */
class Row {
  element = document.querySelector('#own-file').content.firstElementChild.cloneNode(true);
  file;
  box = this.element.querySelector('input');

  constructor(file, choose) {
    this.file = file;
    const [words, problem] = this.element.querySelectorAll('p');
    const [summary, inside] = this.element.querySelector('details').children;
    this.box.disabled = !file.part;
    this.box.addEventListener('change', () => choose(this));
    this.element.querySelector('span').textContent = file.name;
    words.textContent = [file.title, file.words].filter(Boolean).join(': ');
    problem.textContent = file.problem;
    words.parentElement.id = `own: ${file.name}`.replaceAll(' ', '-');
    this.box.setAttribute('aria-describedby', words.parentElement.id);
    summary.ariaLabel = `Inspect ${file.name}`;
    inside.ariaLabel = `Inside ${file.name}`;
    summary.parentElement.addEventListener('toggle', () => { if (summary.parentElement.open) this.#inspect(inside); });
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
  #timer = 0;
  #awaited = ''; // the model that was being added at the last look
  #isSubmitting = false;
  #isNamed = false; // whether the user has written a name
  #asked = 0; // the number of the last request, since only the last answer counts
  #list;
  #form;
  #name;
  #base;
  #add;
  #reported;

  constructor(section, added) {
    this.#section = section;
    this.#added = added;
    const find = (name) => section.querySelector(`.lt-own-${name}`);
    [this.#list, this.#form, this.#name] = [find('files'), find('form'), find('name')];
    [this.#base, this.#add, this.#reported] = [find('base'), find('add'), find('reported')];
    onPress(find('again'), () => this.load());
    onSubmit(this.#form, () => this.#submit());
    this.#name.addEventListener('input', () => { this.#isNamed = this.#name.value !== ''; });
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
    const say = this.#section.querySelector('.lt-own-say');
    const before = say.textContent;
    try {
      if (!isQuiet) setText(say, 'Looking…');
      const { files, words, adding } = await call('models_files');
      if (asked !== this.#asked) return;
      this.#show(files);
      this.#follow(adding);
      setText(say, words);
    } catch (error) {
      if (asked !== this.#asked) return;
      setText(say, error.message || before); // the page says itself that the server is away
    }
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
    this.#section.querySelector('.lt-own-bar').hidden = !name;
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

// The card of one model: what it is, what happens to it, and what can be done with it.
import { call } from '../calls/call.js';
import { actionButton, actOnce, hasChanged, make, setText } from '../elements.js';
import { chooseModel } from '../form/fill.js';
import { convertQuestion } from './convert.js';
import { named } from './parts.js';
import { formatTable, planTable } from './plan.js';

/** The states in which something happens to a model. */
export const ACTIVE = ['getting', 'verifying', 'converting'];
const NEW = ['missing', 'incomplete']; // the states from which a download is asked about first
const STATES = {
  complete: 'On this machine', incomplete: 'Incomplete', missing: 'Not on this machine',
  getting: 'Downloading', verifying: 'Checking', converting: 'Converting', paused: 'Paused', failed: 'Download failed',
};
const PART_STATES = { complete: 'here', incomplete: 'incomplete', missing: 'missing' };
const listed = (parts) => parts.map((part) => named(part).toLowerCase()).join(', ');

/** Return what can be done with a model, as pairs of a name and a label. */
function actions({ state, is_hub: isHub, is_added: isAdded, removal, here_bytes: here, room, progress }) {
  if (state === 'getting') return [['pause', 'Pause'], ['cancel', 'Cancel']];
  if (state === 'verifying') return [['cancel', 'Stop checking']];
  if (state === 'converting') return [['cancel', 'Stop converting']];
  const found = state === 'complete' ? [['use', 'Make a video with it']] : [];
  if (state === 'complete' && progress.message) found.push(['cancel', 'Dismiss']);
  if (!isHub) return state === 'complete' ? [...found, ['convert', 'Convert…']] : found;
  if (!room) {
    if (state === 'paused') found.push(['get', 'Resume']);
    if (state === 'failed') found.push(['get', 'Try again']);
    if (state === 'missing') found.push(['get', 'Download']);
    if (state === 'incomplete') found.push(['get', 'Download the rest']);
  }
  if (['paused', 'failed'].includes(state)) found.push(['cancel', 'Cancel']);
  if (state === 'complete' && here) found.push(['verify', 'Verify'], ['convert', 'Convert…']);
  if (removal || isAdded) found.push(['remove', 'Remove…']);
  return found;
}

function tableOfParts(parts) {
  const head = make('tr', {}, ...['Part', 'State', 'Size', 'Folder'].map((textContent) => (
    make('th', { scope: 'col', textContent })
  )));
  const rows = parts.map(({ part, state, size, folder, source, shared_with: shared }) => {
    const also = shared.length ? make('small', { textContent: `also for ${shared.join(', ')}` }) : '';
    const where = make('td', {}, make('span', { textContent: folder }));
    if (source !== folder) where.append(make('small', { textContent: `from ${source}` }));
    return make(
      'tr', {}, make('th', { scope: 'row' }, make('span', { textContent: named(part) }), also),
      make('td', { textContent: PART_STATES[state] }), make('td', { textContent: size }), where,
    );
  });
  return make('table', {}, make('thead', {}, head), make('tbody', {}, ...rows));
}

function linksTo(sources) {
  return sources.map(({ name, address }) => (
    make('a', { href: address, target: '_blank', rel: 'noreferrer', textContent: name })
  ));
}

/** Return a closed box with a title, and what stands in it. */
function fold(title, ...content) {
  const box = make('div', { className: 'lt-model-table', tabIndex: 0, role: 'region' }, ...content);
  box.setAttribute('aria-label', title);
  return make('details', {}, make('summary', { textContent: title }), box);
}

/** Return what the removal of a downloaded model deletes and keeps. */
function lossWords(title, { size, parts, kept }) {
  const also = kept.length ? ` Another model uses these parts, so they are kept: ${listed(kept)}.` : '';
  return `This deletes ${size} of ${title}: ${listed(parts)}.${also}`;
}

/** A card. Its element stays the same, so that the focus stays where it is. */
export class Card {
  element;
  #models;
  #model = null;
  #types; // the types of weights, as pairs of a value and a label
  #parts;
  #asker = ''; // the action whose question is open
  #kind = null; // a function that returns the type that was chosen for a copy

  constructor(models, types) {
    this.#models = models;
    this.#types = types;
    const title = make('h3', { tabIndex: -1 });
    const state = make('span', { className: 'lt-model-state' });
    const facts = make('p', { className: 'lt-model-facts' });
    const bar = make('i');
    const meter = make('div', { className: 'lt-model-meter', hidden: true }, bar);
    meter.setAttribute('role', 'progressbar');
    const progress = make('p', { className: 'lt-model-progress' });
    const problem = make('p', { className: 'lt-model-problem', hidden: true });
    problem.setAttribute('role', 'alert');
    const checked = make('div', { className: 'lt-model-checked', hidden: true });
    checked.setAttribute('role', 'status');
    const needs = make('ul', { className: 'lt-model-needs' });
    const licence = make('p', { className: 'lt-model-licence' });
    const buttons = make('div', { className: 'lt-model-actions' });
    const question = make('div', { className: 'lt-model-question', hidden: true });
    question.setAttribute('role', 'alertdialog');
    const parts = make('div', { className: 'lt-model-table', tabIndex: 0, role: 'region', ariaLabel: 'Its parts' });
    const plan = fold('On cards of 8 to 24 GB');
    const kinds = make('select', {}, ...types.map(([value, textContent]) => make('option', { value, textContent })));
    kinds.value = 'default';
    plan.lastElementChild.before(make('label', { className: 'lt-model-kinds' }, 'Weight type', kinds));
    const formats = fold('With files in other formats');
    this.element = make(
      'li', { className: 'lt-model-card' }, make('div', { className: 'lt-model-head' }, title, state), facts,
      meter, progress, problem, checked, buttons, question,
      make(
        'details', {}, make('summary', { textContent: 'More about it' }),
        make('div', { className: 'lt-model-about' }, needs, licence, parts, plan, formats),
      ),
    );
    this.#parts = { title, state, facts, bar, meter, progress, problem, checked, needs, licence, buttons, question, parts, plan, kinds, formats };
    this.element.addEventListener('click', (event) => this.#takeClick(event));
    this.element.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.#closeQuestion(); });
    const showPlan = () => { if (plan.open) this.#loadTable(plan, 'models_plan', planTable, kinds.value); };
    plan.addEventListener('toggle', showPlan);
    kinds.addEventListener('change', showPlan);
    formats.addEventListener('toggle', () => { if (formats.open) this.#loadTable(formats, 'models_formats', formatTable); });
  }

  /** Move the focus to the card. */
  focus() { this.#parts.title.focus({ preventScroll: true }); }

  /** Show why something was refused, or nothing. */
  complain(words) {
    this.#parts.problem.dataset.refusal = words;
    this.#showProblem();
  }

  /** Show a model as the server describes it. */
  show(model) {
    const before = this.#model?.state;
    this.#model = model;
    const { title, state, facts, needs, licence, parts, plan, kinds, formats } = this.#parts;
    this.element.dataset.model = model.model;
    this.element.dataset.state = model.state;
    setText(title, model.title);
    kinds.setAttribute('aria-label', `Weight type: ${model.title}`);
    setText(state, STATES[model.state]);
    setText(facts, model.facts);
    if (hasChanged(needs, model.needs)) needs.replaceChildren(...model.needs.map((textContent) => make('li', { textContent })));
    if (hasChanged(licence, model.sources)) {
      licence.replaceChildren(...(model.sources.length ? [`${model.licence} Licences: see `, ...linksTo(model.sources)] : []));
    }
    if (hasChanged(parts, model.parts)) parts.replaceChildren(tableOfParts(model.parts));
    plan.hidden = formats.hidden = !model.is_hub;
    this.#showProgress(model);
    this.#showProblem();
    this.#showChecked(model);
    this.#showActions(model);
    if (before && before !== model.state) this.#models.report(`${model.title}: ${STATES[model.state]}.`);
  }

  #showProgress({ state, title, progress }) {
    const { meter, bar, progress: words, facts } = this.#parts;
    const isShown = ACTIVE.includes(state) || (['paused', 'failed'].includes(state) && progress.total_bytes > 0);
    meter.hidden = !isShown;
    words.hidden = !isShown;
    facts.hidden = isShown && !['verifying', 'converting'].includes(state);
    bar.style.transform = `scaleX(${progress.percent / 100})`;
    meter.setAttribute('aria-valuenow', String(Math.floor(progress.percent)));
    meter.setAttribute('aria-label', `${STATES[state]}: ${title}`);
    setText(words, progress.words || 'Starting…'); // the program for it starts, which takes seconds
  }

  #showProblem() {
    const { problem } = this.#parts;
    const { progress = {}, room = '' } = this.#model ?? {};
    const failed = [progress.message, progress.remedy].filter(Boolean).join(' ');
    const words = problem.dataset.refusal || failed || room;
    problem.hidden = !words;
    setText(problem, words);
  }

  #showChecked({ problems }) {
    const { checked } = this.#parts;
    checked.hidden = problems === null;
    if (problems === null || !hasChanged(checked, problems)) return;
    checked.dataset.whole = String(problems.length === 0);
    checked.replaceChildren(...(problems.length
      ? problems.map((textContent) => make('p', { textContent }))
      : [make('p', { textContent: 'All files are complete and their checksums are correct.' })]));
  }

  #showActions(model) {
    const { buttons, question } = this.#parts;
    const found = actions(model);
    if (!found.some(([name]) => name === this.#asker)) question.hidden = true;
    if (!hasChanged(buttons, found)) return;
    const focused = buttons.contains(document.activeElement);
    buttons.replaceChildren(...found.map(([name, label]) => (
      actionButton(name, label, { ariaLabel: `${label.replace('…', '')}: ${model.title}` })
    )));
    if (focused) (buttons.querySelector('button') ?? this.#parts.title).focus();
  }

  #takeClick(event) {
    const button = event.target.closest('[data-action]');
    if (!button || button.ariaDisabled === 'true') return;
    const { action } = button.dataset;
    if (action === 'use') chooseModel(this.#model.model);
    else if (action === 'remove') this.#ask();
    else if (action === 'get' && NEW.includes(this.#model.state)) this.#askGet();
    else if (action === 'convert') this.#askConvert();
    else if (action === 'keep') this.#closeQuestion();
    else {
      const asked = { sure: 'remove', start: 'convert', fetch: 'get' }[action] ?? action;
      const values = action === 'start' ? [this.#kind()] : [];
      this.#closeQuestion();
      const pressed = this.#parts.buttons.querySelector(`[data-action="${asked}"]`) ?? button; // a question is gone
      actOnce(pressed, () => this.#models.change(this, () => call(`models_${asked}`, this.#model.model, ...values)), () => {});
    }
  }

  #ask() {
    const { title, removal } = this.#model;
    const sure = actionButton('sure', removal ? `Remove ${removal.size}` : 'Remove from the list');
    const keep = actionButton('keep', 'Keep it');
    const words = removal ? lossWords(title, removal) : `This takes ${title} off the list. Its files stay where they are.`;
    this.#open('remove', `Remove ${title}?`, [make('p', {}, words), make('div', { className: 'lt-model-actions' }, sure, keep)], keep);
  }

  #askGet() {
    const { title, download } = this.#model;
    const fetch = actionButton('fetch', 'Download it', { className: 'lt-first' });
    const answers = make('div', { className: 'lt-model-actions' }, fetch, actionButton('keep', 'Not now'));
    this.#open('get', `Download ${title}?`, [make('p', {}, download), answers], fetch);
  }

  #askConvert() {
    const { content, first, type } = convertQuestion(this.#model, this.#types);
    this.#kind = type;
    this.#open('convert', `Convert ${this.#model.title}`, content, first);
  }

  #open(asker, name, content, first) {
    const { question } = this.#parts;
    this.#asker = asker;
    question.setAttribute('aria-label', name);
    question.replaceChildren(...content);
    question.hidden = false;
    first.focus();
  }

  #closeQuestion() {
    const { question, buttons } = this.#parts;
    if (question.hidden) return;
    question.hidden = true;
    (buttons.querySelector(`[data-action="${this.#asker}"]`) ?? this.#parts.title).focus();
  }

  async #loadTable(place, endpoint, tableFor, ...values) {
    const wanted = values.join();
    if (place.dataset.known === wanted) return;
    place.dataset.known = wanted;
    let table;
    try {
      table = tableFor(await call(endpoint, this.#model.model, ...values));
    } catch (error) {
      if (place.dataset.known === wanted) delete place.dataset.known;
      table = make('p', { textContent: error.message });
    }
    if ([wanted, undefined].includes(place.dataset.known)) place.lastElementChild.replaceChildren(table);
  }
}

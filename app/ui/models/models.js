// The Models tab: a card for each model, kept up to date while something happens to one of them.
import { actOnce, arrange, fillActions, fillRows, fromTemplate, hasChanged, make, makeItem, makeTable, render, setText } from '../elements.js';
import { chooseModel } from '../form/describe.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { post } from '../server.js';
import { place, whenShown } from '../tabs.js';
import { loadFiles, offerBases, prepareOwnFiles } from './own.js';

const PAUSE = 1000; // milliseconds between two looks while something is downloaded or checked
const section = document.querySelector('.lt-models');
const find = (selector) => section.querySelector(selector);
const cards = new Map(); // by name
let asked = 0; // the number of the last request, since only the last answer counts
let open = 0; // changes that the server has not answered yet
let timer = 0;
let revision = null; // that of the news at the last load
let wanted = ''; // the model that the address names, or that was added

const isShown = () => place()[0] === 'models' && !document.hidden;
const revisionNow = () => `${queueNow().revision} ${queueNow().models}`;
const complain = (words) => setText(find('.lt-models-problem'), words);
const report = (words) => setText(find('.lt-models-reported'), words);

const lines = (texts) => texts.map((textContent, index) => make(index ? 'small' : 'span', { textContent }));
const linkTo = ({ name, address }) => make('a', { href: address, target: '_blank', rel: 'noreferrer', textContent: name });

class Card {
  element = fromTemplate('model-card');
  #model = {};
  #asked = ''; // the action whose question is open, with the chosen type of weights
  #refusal = '';

  constructor() {
    this.element.addEventListener('click', (event) => this.#takeClick(event));
    this.element.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.#closeQuestion(); });
    this.#find('copies').addEventListener('change', () => this.#look());
  }

  #find(name) { return this.element.querySelector(`.lt-model-${name}`); }

  lead() {
    this.element.scrollIntoView({ block: 'start' });
    this.#find('title').focus({ preventScroll: true });
  }

  complain(words) {
    this.#refusal = words;
    setText(this.#find('problem'), words || (this.#model.problem ?? ''));
  }

  show(model) {
    const before = this.#model.state;
    this.#model = model;
    const { progress, label, title } = model;
    render(this.element, {
      ...model, ...progress, problem: this.#refusal || (model.problem ?? ''), whole: String(!model.problems?.length), copies: `Type of the copy: ${title}`, isResting: !progress.is_shown || !progress.is_download,
      done: `transform:scaleX(${progress.percent / 100})`, percent: Math.floor(progress.percent), meter: `${label}: ${title}`,
    });
    if (hasChanged(this.#find('about'), [model.needs, model.sources, model.parts])) this.#showAbout(model);
    const all = ['All files are complete and their checksums are correct.'];
    fillRows(this.#find('checked'), (model.problems?.length === 0 ? all : model.problems) ?? [], (textContent) => make('p', { textContent }));
    this.#showActions(model);
    if (before && before !== model.state) report(`${model.title}: ${model.label}.`);
  }

  #showAbout({ needs, sources, licence, parts }) {
    this.#find('needs').replaceChildren(...needs.map(makeItem));
    this.#find('licence').replaceChildren(...(sources.length ? [`${licence} Licences: see `, ...sources.map(linkTo)] : []));
    const rows = parts.map((part) => [lines([part.title, ...part.shared]), part.state, part.size, lines(part.place)]);
    this.#find('parts').replaceChildren(makeTable(['Part', 'State', 'Size', 'Folder'], rows));
  }

  #showActions({ actions, title }) {
    const buttons = this.#find('buttons');
    if (!actions.some(([name]) => name === this.#asked)) this.#find('question').hidden = true;
    const hadFocus = buttons.contains(document.activeElement);
    fillActions(buttons, actions, title);
    if (hadFocus && !buttons.childElementCount) this.#find('title').focus();
  }

  #takeClick({ target }) {
    const button = target.closest('[data-action]');
    if (!button || button.ariaDisabled === 'true') return;
    const { action } = button.dataset;
    if (action === 'use') chooseModel(this.#model.model);
    else if (action === 'keep') this.#closeQuestion();
    else if (action in this.#model.asks) this.#ask(action);
    else {
      const name = action === 'sure' ? this.#asked : action;
      const message = { model: this.#model.model, ...(name === 'convert' && { weight_dtype: this.#find('copies').value }) };
      this.#closeQuestion();
      const pressed = this.#find('buttons').querySelector(`[data-action="${name}"]`) ?? button; // a question is gone
      actOnce(pressed, () => change(this, () => post(`models_${name}`, message)));
    }
  }

  #ask(action) {
    const { title, words, sure } = this.#model.asks[action];
    const question = this.#find('question');
    const [yes, no] = question.querySelectorAll('button');
    this.#asked = question.dataset.asks = action;
    question.ariaLabel = title;
    setText(question.querySelector('p'), words);
    setText(yes, sure);
    yes.ariaDisabled = null;
    question.hidden = false;
    if (action === 'convert') this.#look();
    ({ convert: this.#find('copies'), remove: no }[action] ?? yes).focus();
  }

  /** Say what a copy of the chosen type needs; it can be made once the server has answered that there is room. */
  async #look() {
    const { value } = this.#find('copies');
    const [words, sure] = this.#find('question').querySelectorAll('p, [data-action="sure"]');
    sure.ariaDisabled = 'true'; // `disabled` would take the focus away
    const offer = await post('models_copy', { model: this.#model.model, weight_dtype: value }).catch((error) => ({ refusal: error.message }));
    if (this.#find('copies').value !== value || this.#asked !== 'convert') return;
    setText(words, offer.refusal || offer.words);
    sure.ariaDisabled = offer.words ? null : 'true';
  }

  #closeQuestion() {
    const question = this.#find('question');
    if (question.hidden) return;
    question.hidden = true;
    (this.#find('buttons').querySelector(`[data-action="${this.#asked}"]`) ?? this.#find('title')).focus();
  }
}

function draw(models, disk) {
  const names = models.map(({ model }) => model);
  for (const [name, card] of cards) {
    if (names.includes(name)) continue;
    if (card.element.contains(document.activeElement)) document.querySelector('#tab-models').focus();
    cards.delete(name);
  }
  for (const model of models) {
    if (!cards.has(model.model)) cards.set(model.model, new Card());
    cards.get(model.model).show(model);
  }
  arrange(find('.lt-model-cards'), names.map((name) => cards.get(name).element));
  offerBases(models);
  setText(find('.lt-models-say'), disk);
  section.dataset.state = 'known';
  cards.get(wanted)?.lead();
  wanted = '';
}

async function load() {
  clearTimeout(timer);
  asked += 1;
  const own = asked;
  revision = revisionNow();
  let isActive = false;
  try {
    const { models, disk, is_busy: isBusy } = await post('models_list');
    if (own !== asked || open) return;
    draw(models, disk);
    isActive = isBusy;
    complain('');
  } catch (error) {
    if (own !== asked) return;
    // The page says itself that it has lost the server, so that only a first look complains here.
    if (section.dataset.state === 'unknown') complain(error.message);
    isActive = true;
  }
  if (isActive && isShown()) timer = setTimeout(load, PAUSE);
}

async function change(card, act) {
  open += 1;
  card.complain('');
  try {
    await act();
  } catch (error) {
    card.complain(error.message);
  } finally {
    open -= 1;
  }
  await load();
}

function leadTo(name) {
  wanted = name;
  return load();
}

export default function startModels() {
  prepareOwnFiles(leadTo);
  whenShown('models', (name) => {
    leadTo(name);
    loadFiles();
  });
  onJobsReported(() => { if (isShown() && revisionNow() !== revision) load(); });
  document.addEventListener('visibilitychange', () => { if (isShown()) load(); });
}

// The card of one model: what it is, what happens to it, and what can be done with it.
import { actOnce, fillActions, fillRows, fromTemplate, hasChanged, make, makeItem, makeTable, render, setText } from '../elements.js';
import { chooseModel } from '../form/describe.js';
import { post } from '../server.js';

const lines = (texts) => texts.map((textContent, index) => make(index ? 'small' : 'span', { textContent }));
const linkTo = ({ name, address }) => make('a', { href: address, target: '_blank', rel: 'noreferrer', textContent: name });

export class Card {
  element = fromTemplate('model-card');
  #change;
  #report;
  #model = {};
  #asked = ''; // the action whose question is open, with the chosen type of weights

  /** `change` does something with a card's model, and `report` says something to screen readers. */
  constructor(change, report) {
    [this.#change, this.#report] = [change, report];
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
    this.#find('problem').dataset.refusal = words;
    this.#showProblem();
  }

  show(model) {
    const before = this.#model.state;
    this.#model = model;
    const { progress, label, title } = model;
    render(this.element, {
      ...model, ...progress, copies: `Type of the copy: ${title}`, isResting: !progress.is_shown || !progress.is_download,
      done: `transform:scaleX(${progress.percent / 100})`, whole: Math.floor(progress.percent), meter: `${label}: ${title}`,
    });
    if (hasChanged(this.#find('about'), [model.needs, model.sources, model.parts])) this.#showAbout(model);
    this.#showProblem();
    this.#showChecked(model);
    this.#showActions(model);
    if (before && before !== model.state) this.#report(`${model.title}: ${model.label}.`);
  }

  #showAbout({ needs, sources, licence, parts }) {
    this.#find('needs').replaceChildren(...needs.map(makeItem));
    this.#find('licence').replaceChildren(...(sources.length ? [`${licence} Licences: see `, ...sources.map(linkTo)] : []));
    const rows = parts.map(({ title, shared, state, size, place }) => [lines([title, ...shared]), state, size, lines(place)]);
    this.#find('parts').replaceChildren(makeTable(['Part', 'State', 'Size', 'Folder'], rows));
  }

  #showProblem() { setText(this.#find('problem'), this.#find('problem').dataset.refusal || (this.#model.problem ?? '')); }

  #showChecked({ problems }) {
    const checked = this.#find('checked');
    checked.hidden = problems === null;
    if (!problems) return;
    checked.dataset.whole = String(!problems.length);
    const words = problems.length ? problems : ['All files are complete and their checksums are correct.'];
    fillRows(checked, words, (textContent) => make('p', { textContent }));
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
      actOnce(pressed, () => this.#change(this, () => post(`models_${name}`, message)));
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

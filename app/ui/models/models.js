// The Models tab: a card for each model, kept up to date while something happens to one of them.
import { call } from '../calls/call.js';
import { arrange, setText } from '../elements.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { place, whenShown } from '../tabs.js';
import { Card } from './card.js';
import { OwnFiles } from './own.js';

const PAUSE = 1000; // milliseconds between two looks while something is downloaded or checked

const revisionNow = () => `${queueNow().revision} ${queueNow().models}`;

/** The list of the models. */
class Models {
  #parts;
  #cards = new Map(); // by name
  #asked = 0; // the number of the last request, since only the last answer counts
  #open = 0; // changes that the server has not answered yet
  #timer = 0;
  #revision = null; // that of the news at the last load
  #wanted = ''; // the model that the address names, or that was added
  #own;

  constructor(section) {
    const find = (selector) => section.querySelector(selector);
    this.#parts = {
      section, list: find('.lt-model-cards'), say: find('.lt-models-say'),
      problem: find('.lt-models-problem'), reported: find('.lt-models-reported'),
    };
    this.#own = new OwnFiles(find('.lt-own'), (name) => {
      this.#wanted = name;
      return this.load();
    });
    whenShown('models', (rest) => {
      this.#wanted = rest;
      this.load();
      this.#own.load();
    });
    onJobsReported(() => {
      if (this.#isShown && revisionNow() !== this.#revision) this.load();
    });
    document.addEventListener('visibilitychange', () => { if (this.#isShown) this.load(); });
  }

  get #isShown() { return place()[0] === 'models' && !document.hidden; }

  /** Say something to screen readers. */
  report(words) { setText(this.#parts.reported, words); }

  /** Ask the server for all models, and again soon if something happens to one of them. */
  async load() {
    clearTimeout(this.#timer);
    this.#asked += 1;
    const asked = this.#asked;
    this.#revision = revisionNow();
    let isActive = false;
    try {
      const { models, disk, is_busy: isBusy } = await call('models_list');
      if (asked !== this.#asked || this.#open) return;
      this.#draw(models, disk);
      isActive = isBusy;
      this.#complain(null);
    } catch (error) {
      if (asked !== this.#asked) return;
      // The page says itself that it has lost the server, so that only a first look complains here.
      if (this.#parts.section.dataset.state === 'unknown') this.#complain(error);
      isActive = true;
    }
    if (isActive && this.#isShown) this.#timer = setTimeout(() => this.load(), PAUSE);
  }

  /** Do something with a model, and show what became of it; a refusal stands on the card. */
  async change(card, act) {
    this.#open += 1;
    card.complain('');
    try {
      await act();
    } catch (error) {
      card.complain(error.message);
    } finally {
      this.#open -= 1;
    }
    await this.load();
  }

  #draw(models, disk) {
    const { list, section, say } = this.#parts;
    const names = models.map(({ model }) => model);
    for (const [name, card] of this.#cards) if (!names.includes(name)) this.#forget(name, card);
    for (const model of models) {
      if (!this.#cards.has(model.model)) this.#cards.set(model.model, new Card(this));
      this.#cards.get(model.model).show(model);
    }
    arrange(list, names.map((name) => this.#cards.get(name).element));
    this.#own.offer(models);
    setText(say, disk);
    section.dataset.state = 'known';
    this.#lead();
  }

  #forget(name, card) {
    if (card.element.contains(document.activeElement)) document.querySelector('#tab-models').focus();
    this.#cards.delete(name);
  }

  /** Lead to the model that the address names. */
  #lead() {
    const card = this.#cards.get(this.#wanted);
    this.#wanted = '';
    if (!card) return;
    card.element.scrollIntoView({ block: 'start' });
    card.focus();
  }

  #complain(error) {
    this.#parts.problem.hidden = !error?.message;
    setText(this.#parts.problem, error?.message ?? '');
  }
}

/** Bring the panel to life. */
export default function startModels({ element }) {
  return new Models(element.querySelector('.lt-models'));
}

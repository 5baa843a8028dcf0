// The gallery: all videos of the outputs folder as cards, with a search, filters, and further pages.
import { call } from '../calls/call.js';
import { arrange, hasChanged, make, setText } from '../elements.js';
import { Card } from './card.js';

const PAGE = 24;
const MOST = 200; // the most that an endpoint returns
const TYPING = 200; // milliseconds without a key before a search

const count = (number) => (number === 1 ? '1 video' : `${number.toLocaleString('en-GB')} videos`);

/** The list of cards with its search. */
export class Gallery {
  note = ''; // a sentence before the number of videos
  isStale = false; // whether the server had no answer
  #find;
  #cards = new Map(); // by job
  #next = '';
  #asked = 0; // the number of the last request, since only the last answer counts
  #typing = 0;
  #end; // watches for the end of the list

  constructor(root) {
    this.#find = (selector) => root.querySelector(selector);
    this.#listen();
  }

  #listen() {
    const find = this.#find;
    find('.lt-find').addEventListener('submit', (event) => event.preventDefault()); // the search follows what is typed
    find('.lt-find-text').addEventListener('input', () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.load(), TYPING);
    });
    for (const name of ['state', 'length', 'model']) find(`.lt-find-${name}`).addEventListener('change', () => this.load());
    const favourites = find('.lt-find-favourites');
    favourites.addEventListener('click', () => {
      favourites.setAttribute('aria-pressed', String(favourites.getAttribute('aria-pressed') !== 'true'));
      this.load();
    });
    find('.lt-more').addEventListener('click', () => this.#more());
    // The next page is loaded before the end of this one is reached.
    this.#end = new IntersectionObserver(([end]) => { if (end.isIntersecting) this.#more(); }, { rootMargin: '600px' });
    find('.lt-videos').addEventListener('keydown', (event) => this.#takeKey(event));
  }

  /** Load the first page of the current search. */
  async load() {
    clearTimeout(this.#typing);
    await this.#ask('', PAGE);
  }

  /** Update the cards in place. */
  async refresh() {
    const pages = Math.max(1, Math.ceil(this.#cards.size / PAGE));
    await this.#ask('', Math.min(MOST, pages * PAGE));
  }

  /** Return the card of a job, if it is shown. */
  card(job) {
    return this.#cards.get(job);
  }

  async #more() {
    if (this.#next && this.#find('.lt-more').getAttribute('aria-busy') !== 'true') await this.#ask(this.#next, PAGE);
  }

  async #ask(before, limit) {
    this.#asked += 1;
    const asked = this.#asked;
    const more = this.#find('.lt-more');
    more.setAttribute('aria-busy', 'true');
    try {
      const found = await call('history_search', ...this.#wanted(), before, limit);
      if (asked === this.#asked) this.#show(found, before);
    } catch (error) {
      this.isStale = error.isAway ?? false;
      if (asked === this.#asked && !this.isStale) this.report(error.message);
    } finally {
      if (asked === this.#asked) more.removeAttribute('aria-busy');
    }
  }

  /** Show a sentence beside the title. */
  report(words) {
    setText(this.#find('.lt-gallery-count'), words);
  }

  #wanted() {
    const chosen = (name) => this.#find(`.lt-find-${name}`).value;
    const states = chosen('state').split(' ');
    const [least, most] = chosen('length').split('-').map((bound) => (bound ? Number(bound) : null));
    const model = chosen('model');
    const favourites = this.#find('.lt-find-favourites').getAttribute('aria-pressed') === 'true';
    return [this.#find('.lt-find-text').value, states, model, least, most, favourites];
  }

  get #isNarrowed() {
    const [text, , model, least, most, favourites] = this.#wanted();
    return Boolean(text.trim() || this.#find('.lt-find-state').selectedIndex || model || least || most || favourites);
  }

  #show({ cards, next, total, models }, before) {
    this.isStale = false;
    const list = this.#find('.lt-videos');
    const kept = before ? [...this.#cards.values()] : [];
    const shown = cards.map((data) => this.#card(data));
    const wanted = [...new Set([...kept, ...shown])];
    this.#cards = new Map(wanted.map((card) => [card.data.job, card]));
    arrange(list, wanted.map((card) => card.element));
    this.#next = next;
    this.#watchEnd(Boolean(next));
    this.report([this.note, total ? count(total) : ''].filter(Boolean).join(' '));
    this.#reportNone(total);
    this.#offerModels(models);
    this.#find('.lt-videos').dataset.shown = wanted.length;
  }

  // An observer also reports when it begins, so it sees an end that has stayed in sight.
  #watchEnd(isMore) {
    const more = this.#find('.lt-more');
    more.hidden = !isMore;
    this.#end.unobserve(more);
    if (isMore) requestAnimationFrame(() => this.#end.observe(more));
  }

  #card(data) {
    const card = this.#cards.get(data.job);
    if (!card) return new Card(data, (words) => this.report(words));
    card.show(data);
    return card;
  }

  #reportNone(total) {
    const none = this.#find('.lt-gallery-none');
    none.hidden = total > 0;
    setText(none, this.#isNarrowed ? 'No video matches this search.' : 'There is no video yet. Make one in the Create tab, and it appears here.');
  }

  #offerModels(models) {
    const select = this.#find('.lt-find-model');
    if (!hasChanged(select, models)) return;
    const { value } = select;
    const options = [['', 'Any model'], ...models.map((one) => [one, one])];
    select.replaceChildren(...options.map(([name, textContent]) => make('option', { value: name, textContent })));
    select.value = models.includes(value) ? value : '';
    select.hidden = models.length < 2;
  }

  // The arrow keys go from card to card; Tab reaches all of them as well.
  #takeKey(event) {
    const cards = [...this.#cards.values()];
    const from = cards.findIndex((card) => card.element.contains(document.activeElement));
    if (from < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const top = cards[0].element.offsetTop;
    const columns = cards.findIndex((card) => card.element.offsetTop > top);
    const row = columns < 0 ? cards.length : columns;
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, ArrowUp: from - row, ArrowDown: from + row, Home: 0, End: cards.length - 1,
    }[event.key];
    if (!cards[to]) return;
    event.preventDefault();
    cards[to].focus();
  }
}

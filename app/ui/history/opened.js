// One video of the history: the card, its settings, its records, and the actions on it.
import { call } from '../calls/call.js';
import { fillList, hasChanged, make, setText } from '../elements.js';
import { showFigures } from '../live/figures.js';
import { Log } from '../live/log.js';
import { Player } from '../live/player.js';
import { Strip } from '../live/strip.js';
import { Actions } from './actions.js';
import { Branch } from './branch.js';
import { Card, lengthOf, showStar } from './card.js';
import { layOut } from './layout.js';
import { exactly, when } from './words.js';

const TICK = 500; // milliseconds
const NOTHING = { job: '', poster: null, crop: 0.5, ratio: null, video: null };

const stateRow = ({ label, time, reason }) => make(
  'li', {},
  make('b', { textContent: label }),
  make('time', { textContent: time ? exactly(time) : '' }),
  make('span', { textContent: reason }),
);

function fileRow({ name, size, url }) {
  const title = url ? make('a', { href: url, textContent: name, target: '_blank', rel: 'noopener' }) : make('span', { textContent: name });
  return make('li', {}, title, make('span', { textContent: size }));
}

/** The view of one video, which is reused for the next one. */
export class Opened {
  #root;
  #parts;
  #player;
  #strip;
  #log;
  #actions;
  #branch;
  #job = '';
  #miss;
  #video = null; // the endpoint's last answer

  /** `remove` is called with the card of a video that is to be removed, and `miss` if there is no such video. */
  constructor(root, remove, miss) {
    this.#root = root;
    this.#miss = miss;
    this.#parts = layOut(root);
    this.#strip = new Strip(this.#parts.strip, (at) => this.#player.jump(at));
    this.#player = new Player(this.#parts.stage, (at) => this.#strip.mark(at));
    this.#log = new Log(this.#parts.log);
    const report = (words, job) => this.report(words, job);
    this.#actions = new Actions(this.#parts, report, () => remove(this.#video.card));
    this.#branch = new Branch(this.#parts.branch, this.#parts.longer, report);
    this.#parts.star.addEventListener('click', () => this.#toggleFavourite());
    setInterval(() => { if (this.#job) this.#log.tick(); }, TICK);
  }

  /** Open a video. */
  async open(job) {
    this.#job = job;
    this.#root.dataset.job = '';
    this.#parts.body.hidden = true;
    this.report('');
    this.#clear();
    await this.refresh();
    if (this.#job === job) this.#parts.back.focus({ preventScroll: true });
  }

  /** Update the view. */
  async refresh() {
    const job = this.#job;
    try {
      const video = await call('history_open', job);
      if (job === this.#job) this.#show(video);
    } catch (error) {
      if (job !== this.#job) return;
      if (error.isRefusal) this.#miss();
      else this.report(error.message);
    }
  }

  /** Stop playback. */
  close() {
    this.#job = '';
    this.#clear();
  }

  /** Show a text, with a link to a job if one is given. */
  report(words, job = '') {
    const link = make('a', { href: `#history/${encodeURIComponent(job)}`, textContent: 'Show it' });
    this.#parts.say.replaceChildren(words, ...(job ? [' ', link] : []));
    this.#parts.say.hidden = !words;
  }

  #clear() {
    this.#player.show(NOTHING);
    this.#log.show({ log: '' });
  }

  async #toggleFavourite() {
    const { card } = this.#video;
    try {
      const [job] = await call('jobs_favourite', [card.job], !card.favourite);
      this.#video.card = { ...card, favourite: job.favourite };
      showStar(this.#parts.star, this.#video.card);
    } catch (error) {
      this.report(error.message);
    }
  }

  #show(video) {
    const parts = this.#parts;
    this.#video = video;
    parts.body.hidden = false;
    parts.view.dataset.state = video.state;
    // The video plays at once and in a loop, as it does while it is being made.
    this.#player.show({ ...video, isRunning: true });
    this.#strip.show(video);
    parts.strip.hidden = video.cells.length < 2;
    this.#showHead(video);
    this.#showFailure(video.failure);
    showFigures(parts.spent, video);
    fillList(parts.settings, video.settings);
    this.#showLists(video);
    this.#log.show(video);
    this.#actions.show(video);
    this.#branch.show(video);
    this.#root.dataset.job = video.job; // shows that the view is complete
  }

  #showHead({ card, label, note }) {
    const parts = this.#parts;
    setText(parts.title, card.words || 'No prompt');
    setText(parts.facts, [label, when(card.created), lengthOf(card), card.model].filter(Boolean).join(' · '));
    setText(parts.remark, note);
    showStar(parts.star, card);
  }

  #showFailure(failure) {
    const parts = this.#parts;
    parts.failure.hidden = !failure;
    setText(parts.failureText, failure ? `${failure.message} ${failure.remedy}` : '');
    setText(parts.report, failure?.report ?? '');
  }

  #showLists({ states, files, parent, children }) {
    const parts = this.#parts;
    if (hasChanged(parts.states, states)) parts.states.replaceChildren(...states.map(stateRow));
    if (hasChanged(parts.files, files)) parts.files.replaceChildren(...files.map(fileRow));
    if (!hasChanged(parts.family, [parent, children])) return;
    parts.family.hidden = !parent && !children.length;
    this.#showCards(parts.parent, parent ? [parent] : []);
    this.#showCards(parts.children, children);
  }

  #showCards(group, cards) {
    group.hidden = !cards.length;
    group.querySelector('ul').replaceChildren(...cards.map((data) => new Card(data, (words) => this.report(words)).element));
  }
}

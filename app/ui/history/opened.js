// One video of the history, with its records and the actions on it.
import { call } from '../calls/call.js';
import { actOnce, hasChanged, make, offerCopy, setText } from '../elements.js';
import { restoreForm } from '../form/fill.js';
import { Film } from '../live/film.js';
import { goTo } from '../tabs.js';
import { exactly, when } from '../text.js';
import { showTree } from './tree.js';

const TICK = 500; // milliseconds

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
  #film;
  #job = '';
  #miss;
  #video = null; // the endpoint's last answer
  isStale = false; // whether the server had no answer

  /** `remove` is called with the card of a video that is to be removed, and `miss` if there is no such video. */
  constructor(root, parts, remove, miss) {
    this.#root = root;
    this.#miss = miss;
    this.#parts = parts;
    this.#film = new Film(parts.view, (job) => goTo('history', job));
    const on = (button, act) => button.addEventListener('click', () => actOnce(button, act, (words) => this.#film.report(words)));
    on(parts.use, async () => restoreForm(await call('history_settings', this.#job)));
    on(parts.remove, () => remove(this.#video.card));
    offerCopy(parts.copy, parts.address);
    setInterval(() => { if (this.#job) this.#film.tick(); }, TICK);
  }

  /** Open a video. */
  async open(job) {
    this.#job = job;
    this.#root.dataset.job = '';
    this.#parts.body.hidden = true;
    this.report('');
    this.#film.report('');
    this.#film.clear();
    await this.refresh();
    if (this.#job === job) this.#parts.back.focus({ preventScroll: true });
  }

  /** Update the view. */
  async refresh() {
    const job = this.#job;
    try {
      const video = await call('history_open', job);
      this.isStale = false;
      if (job === this.#job) this.#show(video);
    } catch (error) {
      this.isStale = error.isAway ?? false;
      if (job !== this.#job) return;
      if (error.isRefusal) this.#miss();
      else this.report(error.message);
    }
  }

  /** Stop playback. */
  close() {
    this.#job = '';
    this.#film.clear();
  }

  /** Show a text in place of a video, or above it. */
  report(words) { setText(this.#parts.say, words); }

  #show(video) {
    const { body, made, remove, address } = this.#parts;
    this.#video = video;
    body.hidden = false;
    this.#film.show(video);
    setText(made, `${when(video.card.created)} · ${video.card.model}`);
    setText(address, new URL(`#history/${encodeURIComponent(video.job)}`, document.baseURI).href);
    remove.hidden = !video.actions.includes('remove');
    this.#showLists(video);
    this.#root.dataset.job = video.job; // shows that the view is complete
  }

  #showLists({ states, files, tree }) {
    const parts = this.#parts;
    if (hasChanged(parts.states, states)) parts.states.replaceChildren(...states.map(stateRow));
    if (hasChanged(parts.files, files)) parts.files.replaceChildren(...files.map(fileRow));
    parts.family.hidden = !tree;
    showTree(parts.tree, tree);
  }
}

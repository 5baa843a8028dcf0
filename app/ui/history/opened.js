// One video of the history, with its records and the actions on it.
import { call } from '../calls/call.js';
import { hasChanged, make, offerCopy, onPress, setText } from '../elements.js';
import { restoreForm } from '../form/fill.js';
import { makeFilm } from '../live/film.js';
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
  #find;
  #film;
  #job = '';
  #miss;
  #video = null; // the endpoint's last answer
  isStale = false; // whether the server had no answer

  /** `remove` is called with the card of a video that is to be removed, and `miss` if there is no such video. */
  constructor(root, remove, miss) {
    const find = (name) => root.querySelector(`.lt-${name}`);
    this.#root = root;
    this.#miss = miss;
    this.#find = find;
    this.#film = makeFilm(find('view'), (job) => goTo('history', job));
    find('status').ariaLabel = 'This video';
    onPress(find('settings-use'), async () => restoreForm(await call('history_settings', this.#job)), (words) => this.#film.report(words));
    onPress(find('remove'), () => remove(this.#video.card));
    offerCopy(find('copy-link'), find('address'));
    setInterval(() => { if (this.#job) this.#film.tick(); }, TICK);
  }

  /** Open a video. */
  async open(job) {
    this.#job = job;
    this.#root.dataset.job = '';
    this.report('');
    this.#film.report('');
    this.#film.clear();
    await this.refresh();
    if (this.#job === job) this.#find('back').focus({ preventScroll: true });
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
  report(words) { setText(this.#find('past-say'), words); }

  #show(video) {
    const find = this.#find;
    this.#video = video;
    this.#film.show(video);
    setText(find('made'), `${when(video.card.created)} · ${video.card.model}`);
    setText(find('address'), new URL(`#history/${encodeURIComponent(video.job)}`, document.baseURI).href);
    find('remove').hidden = !video.actions.includes('remove');
    if (hasChanged(find('states'), video.states)) find('states').replaceChildren(...video.states.map(stateRow));
    if (hasChanged(find('files'), video.files)) find('files').replaceChildren(...video.files.map(fileRow));
    find('family').hidden = !video.tree;
    showTree(find('tree'), video.tree);
    this.#root.dataset.job = video.job; // shows that the view is complete
  }
}

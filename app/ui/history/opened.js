// One video of the history, with its records, the tree of its branches, and the actions on it.
import { call } from '../calls/call.js';
import { fillRows, hasChanged, make, offerCopy, onPress, setText } from '../elements.js';
import { restoreForm } from '../form/describe.js';
import { makeFilm } from '../live/film.js';
import { goTo } from '../tabs.js';
import { exactly, when } from '../text.js';

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

/** Return the row of a video in the tree, which begins beneath the section that it follows. */
function treeRow({ job, begin, cells, words, spoken, isOpened }, index) {
  const strip = make('span', {}, ...cells.map((src) => (src ? make('img', { src, alt: '', loading: 'lazy' }) : make('i'))));
  const link = make('a', { href: `#history/${encodeURIComponent(job)}`, ariaLabel: spoken }, strip, make('small', { textContent: words }));
  if (isOpened) link.setAttribute('aria-current', 'page');
  return make('li', { style: `grid-row: ${index + 1}; grid-column: ${begin} / -1` }, link);
}

/** Return the line that leads from a row's parent to the row. */
const treeLine = ({ parent, begin }, index) => (
  make('li', { className: 'lt-tree-line', ariaHidden: 'true', style: `grid-row: ${parent + 1} / ${index + 3}; grid-column: ${begin}` })
);

function showTree(list, tree) {
  if (!hasChanged(list, tree) || !tree) return;
  const { href } = list.contains(document.activeElement) ? document.activeElement : {};
  list.style.setProperty('--columns', tree.columns);
  list.dataset.inverted = tree.isInverted;
  list.replaceChildren(...tree.rows.map(treeRow), ...tree.rows.slice(1).map(treeLine));
  if (href) [...list.querySelectorAll('a')].find((one) => one.href === href)?.focus();
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
    [this.#root, this.#miss, this.#find] = [root, miss, find];
    this.#film = makeFilm(find('view'), (job) => goTo('history', job));
    find('status').ariaLabel = 'This video';
    onPress(find('settings-use'), async () => restoreForm(await call('history_settings', this.#job)), this.#film.report);
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
    fillRows(find('states'), video.states, stateRow);
    fillRows(find('files'), video.files, fileRow);
    find('family').hidden = !video.tree;
    showTree(find('tree'), video.tree);
    this.#root.dataset.job = video.job; // shows that the view is complete
  }
}

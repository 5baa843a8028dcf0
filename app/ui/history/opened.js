// One video of the history, with its records, the tree of its branches, and the actions on it.
import { call } from '../calls/call.js';
import { fillRows, hasChanged, make, offerCopy, onPress, setText } from '../elements.js';
import { restoreForm } from '../form/describe.js';
import { makeFilm, pastView } from '../live/film.js';
import { goTo } from '../tabs.js';
import { exactly, when } from '../text.js';

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
  const link = make('a', { href: `#history/${job}`, ariaLabel: spoken }, strip, make('small', { textContent: words }));
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

/**
 * Return the view of one video, which is reused for the next one. `remove` is called with the card of a video that is to
 * be removed, `lookAgain` if the server had no answer, and `miss` if there is no such video.
 */
export function makeOpened(root, remove, lookAgain, miss) {
  root.replaceChildren(pastView);
  const find = (name) => root.querySelector(`.lt-${name}`);
  const film = makeFilm(find('view'), (job) => goTo('history', job));
  let open = ''; // the job of the video
  let card = null;

  function show(video) {
    card = video.card;
    film.show(video);
    setText(find('made'), `${when(card.created)} · ${card.model}`);
    setText(find('address'), new URL(`#history/${video.job}`, document.baseURI).href);
    find('remove').hidden = !video.actions.includes('remove');
    fillRows(find('states'), video.states, stateRow);
    fillRows(find('files'), video.files, fileRow);
    find('family').hidden = !video.tree;
    showTree(find('tree'), video.tree);
    root.dataset.job = video.job; // shows that the view is complete
  }

  find('status').ariaLabel = 'This video';
  onPress(find('settings-use'), async () => restoreForm(await call('history_settings', open)), film.report);
  onPress(find('remove'), () => remove(card));
  offerCopy(find('copy-link'), find('address'));
  const view = {
    /** Show a text in place of a video, or above it. */
    report: (words) => setText(find('past-say'), words),
    async open(job) {
      open = job;
      root.dataset.job = '';
      view.report('');
      film.report('');
      film.clear();
      await view.refresh();
      if (open === job) find('back').focus({ preventScroll: true });
    },
    /** Update the view. */
    async refresh() {
      const job = open;
      try {
        const video = await call('history_open', job);
        if (job === open) show(video);
      } catch (error) {
        if (error.isAway) lookAgain();
        if (job !== open) return;
        if (error.isRefusal) miss();
        else view.report(error.message);
      }
    },
    /** Stop playback. */
    close() {
      open = '';
      film.clear();
    },
  };
  return view;
}

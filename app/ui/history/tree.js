// The tree of a video's branches: a row for each video, which begins beneath the section that it follows.
import { hasChanged, make } from '../elements.js';

function thumb(src) {
  return make(src ? 'img' : 'i', src ? { src, alt: '', loading: 'lazy' } : {});
}

function row({ job, begin, cells, words, spoken, isOpened }, index) {
  const strip = make('span', {}, ...cells.map(thumb));
  const link = make('a', { href: `#history/${encodeURIComponent(job)}`, ariaLabel: spoken }, strip, make('small', { textContent: words }));
  if (isOpened) link.setAttribute('aria-current', 'page');
  const item = make('li', {}, link);
  Object.assign(item.style, { gridRow: index + 1, gridColumn: `${begin} / -1` });
  return item;
}

/** Return the line that leads from a row's parent to the row. */
function line({ parent, begin }, index) {
  const drawn = make('li', { className: 'lt-tree-line', ariaHidden: 'true' });
  Object.assign(drawn.style, { gridRow: `${parent + 1} / ${index + 2}`, gridColumn: begin });
  return drawn;
}

/** Show a tree in a list; null for none. */
export function showTree(list, tree) {
  if (!hasChanged(list, tree) || !tree) return;
  const { href } = list.contains(document.activeElement) ? document.activeElement : {};
  list.style.setProperty('--columns', tree.columns);
  list.dataset.inverted = tree.isInverted;
  list.replaceChildren(...tree.rows.map(row), ...tree.rows.slice(1).map((one, index) => line(one, index + 1)));
  if (href) [...list.querySelectorAll('a')].find((one) => one.href === href)?.focus();
}

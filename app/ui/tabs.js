// The tabs in the header. The address names the tab that is shown, so a reload and Back keep the place.
import { queueNow, onJobsReported } from './jobs.js';
import { setText } from './elements.js';

const NAMES = ['create', 'queue', 'history', 'models'];
const KEYS = { ArrowLeft: -1, ArrowRight: 1 };
const listeners = [];

const tabOf = (name) => document.querySelector(`#tab-${name}`);

/** The tab that the address names, and what follows the name, as in `#history/ID`. */
export function place() {
  const [name, rest = ''] = window.location.hash.slice(1).split('/');
  return NAMES.includes(name) ? [name, rest] : ['create', ''];
}

export function goTo(name, rest = '') {
  window.location.hash = rest ? `${name}/${rest}` : name;
}

/** Call the listener with the rest of the address, now and whenever the address changes, while the tab is shown. */
export function whenShown(name, listener) {
  const report = () => {
    const [shown, rest] = place();
    if (shown === name) listener(rest);
  };
  listeners.push(report);
  report();
}

function show() {
  const [shown] = place();
  document.documentElement.dataset.tab = shown;
  for (const name of NAMES) {
    tabOf(name).setAttribute('aria-selected', String(name === shown));
    tabOf(name).tabIndex = name === shown ? 0 : -1;
  }
  window.scrollTo(0, 0);
  for (const listener of listeners) listener();
}

function showCount(name, title, count, more) {
  setText(tabOf(name).querySelector('.lt-tab-count'), String(count || ''));
  tabOf(name).setAttribute('aria-label', count ? `${title}, ${count}${more}` : title);
}

function showCounts() {
  showCount('queue', 'Queue', queueNow().waiting, ' waiting');
  showCount('models', 'Models', queueNow().download, ' downloaded');
}

function takeKey(event) {
  const now = NAMES.findIndex((name) => tabOf(name) === document.activeElement);
  const to = { ...KEYS, Home: -now, End: NAMES.length - 1 - now }[event.key];
  if (event.key === ' ') goTo(NAMES[now]);
  else if (to === undefined) return;
  else {
    const next = NAMES[(now + to + NAMES.length) % NAMES.length];
    goTo(next);
    tabOf(next).focus();
  }
  event.preventDefault();
}

export default function startTabs(element) {
  element.addEventListener('keydown', takeKey);
  window.addEventListener('hashchange', show);
  onJobsReported(showCounts);
  show();
}

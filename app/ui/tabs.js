// The tabs in the header. The address names the tab that is shown, so a reload and Back keep the place.
import { queueNow, onJobsReported } from './jobs.js';
import { roam, setText } from './elements.js';

const NAMES = ['create', 'queue', 'history', 'models'];
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

function showCount(name, title, count, label) {
  setText(tabOf(name).querySelector('.lt-tab-count'), String(count || ''));
  tabOf(name).setAttribute('aria-label', count ? label : title);
}

export default function startTabs(element) {
  roam(element, () => NAMES.map(tabOf), (tab) => tab.click());
  element.addEventListener('keydown', (event) => {
    if (event.key !== ' ') return;
    event.preventDefault();
    event.target.click();
  });
  window.addEventListener('hashchange', show);
  onJobsReported(() => {
    const { waiting, download } = queueNow();
    showCount('queue', 'Queue', waiting, `Queue, ${waiting} waiting`);
    showCount('models', 'Models', download, `Models, ${download} downloaded`);
  });
  show();
}

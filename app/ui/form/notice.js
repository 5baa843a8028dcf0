// The notice beside the buttons, which answers a press. It disappears when its setting changes, its job moves up or
// ends, or its time is over.
import { make } from '../elements.js';
import { sceneNow, onJobsReported } from '../jobs.js';
import { values } from './values.js';

let judged = {}; // the settings that the server checked last, as text
let place = -1; // where the notice's job was among the open ones when the page first heard of it
let marked = null; // the control that was refused

const notice = document.querySelector('#notice');
const box = () => notice.querySelector('.lt-box');
const asTexts = () => Object.fromEntries(Object.entries(values()).map(([name, value]) => [name, JSON.stringify(value?.path ?? value ?? '')]));

// The page is told of a job a moment after the answer about it. Jobs of other programs may be ahead of it.
function isInItsPlace(job, before, since) {
  const { beat = 0, open = [] } = sceneNow(); // the server's time, and the jobs in the order of the queue
  if (place < 0 && beat <= since) return true;
  if (place < 0) place = open.indexOf(job);
  return place >= before && open.indexOf(job) === place;
}

function isTrue({ setting, refused, job, before, since }) {
  const settings = asTexts();
  const isAsJudged = (name) => settings[name] === judged[name];
  if (setting in settings) return isAsJudged(setting);
  if (refused !== undefined) return Object.keys(settings).every(isAsJudged);
  return !job || isInItsPlace(job, Number(before), Number(since));
}

export function check() {
  if (box() && !isTrue(box().dataset)) showNotice('');
}

export function showNotice(markup) {
  notice.innerHTML = markup;
  marked?.removeAttribute('aria-invalid');
  marked = null;
  place = -1;
  const shown = box();
  if (!shown) return;
  const { setting, seconds } = shown.dataset;
  if (seconds) setTimeout(() => { if (box() === shown) showNotice(''); }, 1000 * seconds);
  const answer = shown.querySelector('[data-answer="no"]:not(.lt-withdraw)') && shown.querySelector('[data-answer]');
  if (answer) answer.focus();
  else if (setting) lead(setting);
  check();
}

export function refuse(sentence) {
  if (!sentence) return;
  const shown = make('div', { className: 'lt-box lt-error', role: 'alert', textContent: sentence });
  shown.dataset.refused = '';
  showNotice(shown.outerHTML);
}

/** Note that the server has checked the form's present settings, or is about to. */
export function judge() {
  judged = asTexts();
}

function lead(setting) {
  const block = document.querySelector(`#set-${setting}`);
  marked = block?.querySelector('textarea, select, input:not([type="file"], [type="hidden"]), button');
  if (!marked) return;
  for (let fold = block.closest('details'); fold; fold = fold.parentElement.closest('details')) fold.open = true;
  marked.setAttribute('aria-invalid', 'true');
  marked.focus();
  block.scrollIntoView({ block: 'nearest' });
}

notice.addEventListener('click', ({ target }) => { if (target.closest('[data-answer]')) showNotice(''); });
onJobsReported(check);

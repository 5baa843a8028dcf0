// The notice beside the buttons, which answers a press. It disappears when its setting changes, its job moves up or
// ends, or its time is over.
import { make } from '../elements.js';
import { isHeardAfter, placeOf, onJobsReported } from '../jobs.js';
import { openFoldOf } from './folds.js';

let notice = null; // the component
let given = {}; // the form's settings now, by name
let settings = {}; // the same as text
let judged = {}; // the settings that the server checked last
let place = -1; // where the notice's job was among the open ones when the page first heard of it
let told = null; // the notice that is in the page, as far as it is known
let marked = null; // the control that was refused

let saved = () => {}; // is called when a notice says that changes are saved
let answered = () => {}; // is called with the answer to a notice's question

const box = () => notice?.element.querySelector('.lt-box');
const asText = (value) => JSON.stringify(value?.path ?? value ?? '');
const isAsJudged = (name) => settings[name] === judged[name];

// The page is reported of a job a moment after the answer about it. Jobs of other programs may be ahead of it.
function isInItsPlace(job, before, since) {
  if (place < 0 && !isHeardAfter(since)) return true;
  if (place < 0) place = placeOf(job);
  return place >= before && placeOf(job) === place;
}

/** Return whether a notice still applies. */
function isTrue({ setting, refused, job, before, since }) {
  if (setting in settings) return isAsJudged(setting);
  if (refused !== undefined) return Object.keys(settings).every(isAsJudged);
  return !job || isInItsPlace(job, Number(before), Number(since));
}

/** Show a notice, as markup; "" for none. */
export function showNotice(markup) {
  if (!notice) return;
  notice.props.value = markup;
  setTimeout(show); // by then it is in the page
}

const clear = () => showNotice('');

/** Show a sentence as a refusal. */
export function refuse(sentence) {
  const shown = make('div', { className: 'lt-box lt-error', role: 'alert', textContent: sentence });
  shown.dataset.refused = '';
  showNotice(shown.outerHTML);
}

function check() {
  if (box() && !isTrue(box().dataset)) clear();
}

/** Return the form's present settings, by name; pictures are paths among the uploads. */
export const formNow = () => Object.fromEntries(Object.entries(settings).map(([name, text]) => [name, JSON.parse(text)]));

/** Take the form's present settings. */
export function seeSettings(names, ...values) {
  given = Object.fromEntries(names.map((name, index) => [name, values[index]]));
  settings = Object.fromEntries(names.map((name) => [name, asText(given[name])]));
  check();
}

/** Return the form's settings by name, and note that the server is about to check them. */
export function judge() {
  clear();
  judged = settings;
  return given;
}

/** Note that the form now has settings that the server has already checked. */
export function takeAsJudged(names, ...values) {
  judged = Object.fromEntries(names.map((name, index) => [name, asText(values[index])]));
  seeSettings(names, ...values);
}

/** Call the listener with "yes" or "no" when a question is answered. */
export function whenAnswered(listener) {
  answered = listener;
}

/** Call the listener when the changes of a job that is edited are saved. */
export function whenSaved(listener) {
  saved = listener;
}

function lead(setting) {
  const block = document.querySelector(`#set-${setting}`);
  marked = block?.querySelector('textarea, input[type="number"], input:not([type="file"]), button');
  marked?.setAttribute('aria-invalid', 'true');
  marked?.focus();
  block?.scrollIntoView({ block: 'nearest' });
}

function show() {
  const shown = box();
  if (shown === told) return;
  told = shown;
  marked?.removeAttribute('aria-invalid');
  marked = null;
  place = -1;
  if (!shown) return;
  const { setting, seconds } = shown.dataset;
  if (seconds) setTimeout(() => { if (box() === shown) clear(); }, 1000 * seconds);
  if (shown.dataset.saved !== undefined) saved();
  const answer = shown.querySelector('[data-answer="no"]:not(.lt-withdraw)') && shown.querySelector('[data-answer]');
  if (answer) answer.focus();
  else if (setting) {
    openFoldOf(setting);
    requestAnimationFrame(() => requestAnimationFrame(() => { if (box() === shown) lead(setting); }));
  }
  check();
}

/** Set up the notice. */
export default function startNotice(component) {
  notice = component;
  component.watch('value', () => setTimeout(show));
  component.element.addEventListener('click', ({ target }) => {
    const answer = target.closest('[data-answer]')?.dataset.answer;
    if (answer) clear();
    if (answer) answered(answer);
  });
  onJobsReported(check);
}

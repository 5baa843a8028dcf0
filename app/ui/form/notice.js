// The notice beside the buttons, which answers a press. It disappears when its setting changes, its job moves up or
// ends, or its time is over.
import { isHeardAfter, placeOf, onJobsReported } from '../jobs.js';
import { expectStage } from '../live/live.js';
import { openFoldOf } from './folds.js';

let notice = null; // the component
let settings = {}; // the form's settings now, by name, as text
let judged = {}; // the settings that the server checked last
let place = -1; // where the notice's job was among the open ones when the page first heard of it
let marked = null; // the control that was refused

let saved = () => {}; // is called when a notice says that changes are saved

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

function clear() {
  if (notice) notice.props.value = '';
}

function check() {
  if (box() && !isTrue(box().dataset)) clear();
}

/** Return the form's present settings, by name; pictures are paths among the uploads. */
export const formNow = () => Object.fromEntries(Object.entries(settings).map(([name, text]) => [name, JSON.parse(text)]));

/** Take the form's present settings. */
export function seeSettings(names, ...values) {
  settings = Object.fromEntries(names.map((name, index) => [name, asText(values[index])]));
  check();
}

/** Note which settings the server is about to check, and return them. */
export function judge(names, ...values) {
  clear();
  expectStage();
  seeSettings(names, ...values);
  judged = settings;
  return values;
}

/** Note that the form now has settings that the server has already checked. */
export function takeAsJudged(names, ...values) {
  judged = Object.fromEntries(names.map((name, index) => [name, asText(values[index])]));
  seeSettings(names, ...values);
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
  marked?.removeAttribute('aria-invalid');
  marked = null;
  place = -1;
  const shown = box();
  if (!shown) return;
  const { setting, seconds } = shown.dataset;
  if (seconds) setTimeout(() => { if (box() === shown) clear(); }, 1000 * seconds);
  if (shown.dataset.saved !== undefined) saved();
  const answer = shown.querySelector('[data-answer]');
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
  component.watch('value', show);
  // A click anywhere on the component would count as its event, but only one button means it.
  component.element.addEventListener('click', ({ target }) => {
    const answer = target.closest('[data-answer]')?.dataset.answer;
    if (answer === 'yes') component.trigger('click');
    if (answer) clear();
  });
  onJobsReported(check);
}

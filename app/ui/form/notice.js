// The notice beside the buttons, which answers a press. It disappears when its setting changes, or its time is over.
import { make } from '../elements.js';
import { values } from './values.js';

let judged = {}; // the settings that the server checked last, as text
let marked = null; // the control that was refused

const notice = document.querySelector('#notice');
const box = () => notice.querySelector('.lt-box');
const asTexts = () => Object.fromEntries(Object.entries(values()).map(([name, value]) => [name, JSON.stringify(value?.path ?? value ?? '')]));

function isTrue({ setting, refused }) {
  const settings = asTexts();
  const isAsJudged = (name) => settings[name] === judged[name];
  if (setting in settings) return isAsJudged(setting);
  return refused === undefined || Object.keys(settings).every(isAsJudged);
}

export function check() {
  if (box() && !isTrue(box().dataset)) showNotice('');
}

export function showNotice(markup) {
  notice.innerHTML = markup;
  marked?.removeAttribute('aria-invalid');
  marked = null;
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

// The notice beside the buttons, which answers a press. It disappears when its time is over, and a
// refusal when a setting changes.
import { make } from '../elements.js';

let marked = null; // the control that was refused

const notice = document.querySelector('#notice');
const box = () => notice.querySelector('.lt-box');

export const dropRefusal = () => { if (box()?.dataset.refused !== undefined) showNotice(''); };

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
}

export function refuse(sentence, setting = '') {
  if (!sentence) return;
  const shown = make('div', { className: 'lt-box lt-error', role: 'alert', textContent: sentence });
  Object.assign(shown.dataset, { refused: '', setting });
  showNotice(shown.outerHTML);
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

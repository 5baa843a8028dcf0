// The number fields. One that is left empty gets its value back, and a hint says how an unusable entry was changed.
import { make } from '../elements.js';

const TOLD_FOR = 8000; // milliseconds
const before = new WeakMap(); // the value of a field when it was entered
const word = make('p', { className: 'lt-hint lt-kept', role: 'status' });
let leaving = 0;

const isNumber = (target) => target.matches?.('.lt-request input[type="number"]');

function report(field, text) {
  field.closest('.block').append(word);
  word.textContent = text;
  clearTimeout(leaving);
  leaving = setTimeout(() => word.remove(), TOLD_FOR);
}

/** Give a field that was emptied its value back. */
export function refill(field) {
  if (!isNumber(field) || field.value || !before.get(field)) return;
  field.value = before.get(field);
  field.dispatchEvent(new Event('input', { bubbles: true }));
  report(field, `A number is needed here, so ${field.value} stays.`);
}

function leave(field) {
  refill(field);
  const given = field.value;
  // Gradio moves a number outside the range to the nearer end.
  requestAnimationFrame(() => {
    if (given && Number(field.value) !== Number(given)) report(field, `${given} is not possible, so it was changed to ${field.value}.`);
  });
}

/** Watch all number fields of the form. */
export function watchNumbers() {
  document.addEventListener('focus', ({ target }) => { if (isNumber(target)) before.set(target, target.value); }, true);
  document.addEventListener('blur', ({ target }) => { if (isNumber(target)) leave(target); }, true);
  document.addEventListener('input', ({ target }) => { if (isNumber(target) && target.value) word.remove(); }, true);
}

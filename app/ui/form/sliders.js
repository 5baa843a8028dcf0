// The number fields and their sliders. One that is left empty gets its value back, and a hint says how an unusable
// entry was changed. Most of the slider of the video's length is for short videos.
import { make } from '../elements.js';
import { onWritten } from './values.js';

const FINE_END = 20; // seconds
const FINE_SHARE = 0.6; // of the slider, for the lengths up to that one
const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
const TOLD_FOR = 8000; // milliseconds
const before = new WeakMap(); // the value of a field when it was entered
const word = make('p', { className: 'lt-hint lt-kept', role: 'status' });
let leaving = 0;

const stepAt = (seconds) => (seconds < FINE_END ? 0.1 : 1);
const rounded = (seconds) => Number((Math.round(seconds / stepAt(seconds)) * stepAt(seconds)).toFixed(1));
const within = (value, low, high) => Math.min(high, Math.max(low, value));

export function shareOf(seconds, low, high) {
  if (seconds <= FINE_END) return (FINE_SHARE * (seconds - low)) / (FINE_END - low);
  return FINE_SHARE + ((1 - FINE_SHARE) * (seconds - FINE_END)) / (high - FINE_END);
}

export function lengthAt(share, low, high) {
  if (share <= FINE_SHARE) return rounded(low + (share / FINE_SHARE) * (FINE_END - low));
  return rounded(FINE_END + ((share - FINE_SHARE) / (1 - FINE_SHARE)) * (high - FINE_END));
}

function report(field, text) {
  field.closest('.lt-field').append(word);
  word.textContent = text;
  clearTimeout(leaving);
  leaving = setTimeout(() => word.remove(), TOLD_FOR);
}

/** A number field with its slider. `choose` is called when a key on the slider has changed it. */
function makeSlider(block, choose) {
  const field = block.querySelector('[type="number"]');
  const range = block.querySelector('[type="range"]');
  const [low, high, isLength] = [Number(field.min), Number(field.max), field.name === 'seconds'];

  function show() {
    const value = within(Number(field.value) || low, low, high);
    range.value = isLength ? shareOf(value, low, high) : value;
    const share = isLength ? Number(range.value) : (value - low) / (high - low || 1);
    range.style.setProperty('--share', `${100 * share}%`);
    if (isLength) range.setAttribute('aria-valuetext', `${value} seconds`);
  }

  function set(value) {
    field.value = within(value, low, high);
    show();
  }

  function takeKey(event) {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const now = Number(field.value) || low;
    const isDownFromEnd = STEPS[event.key] < 0 && now <= FINE_END;
    set(rounded(now + STEPS[event.key] * (isDownFromEnd ? 0.1 : stepAt(now))));
    choose();
  }

  if (isLength) {
    Object.assign(range, { min: 0, max: 1, step: 'any' });
    range.addEventListener('keydown', takeKey);
  }
  range.addEventListener('input', () => set(isLength ? lengthAt(Number(range.value), low, high) : Number(range.value)));
  field.addEventListener('input', show);
  show();
  return {
    show,
    /** Move a number outside the range to the nearer end; false if it was inside. */
    settle() {
      const given = field.value;
      if (given === '' || Number(given) === within(Number(given), low, high)) return false;
      set(Number(given));
      report(field, `${given} is not possible, so it was changed to ${field.value}.`);
      return true;
    },
  };
}

/** Give a field that was emptied its value back; false if it has one. */
export function refill(field) {
  if (field.type !== 'number' || field.value || !before.get(field)) return false;
  field.value = before.get(field);
  report(field, `A number is needed here, so ${field.value} stays.`);
  return true;
}

/** Set up all number fields of the form; `changed` is called when one of them changes by itself. */
export function prepareSliders(changed) {
  const form = document.querySelector('#form');
  const blocks = [...form.querySelectorAll('.lt-slider')];
  const sliders = new Map(blocks.map((block) => [block.querySelector('[type="number"]').name, makeSlider(block, changed)]));
  onWritten((name) => sliders.get(name)?.show());
  form.addEventListener('focusin', ({ target }) => { if (target.type === 'number') before.set(target, target.value); });
  form.addEventListener('focusout', ({ target }) => {
    const isRefilled = refill(target);
    sliders.get(target.name)?.show();
    if (sliders.get(target.name)?.settle() || isRefilled) changed();
  });
  form.addEventListener('input', ({ target }) => { if (target.type === 'number' && target.value) word.remove(); });
}

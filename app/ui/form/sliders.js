// The number fields, which say how an entry of no use was changed, and their sliders.
import { make } from '../elements.js';
import { onWritten } from './describe.js';

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

function shareOf(seconds, low, high) {
  if (seconds <= FINE_END) return (FINE_SHARE * (seconds - low)) / (FINE_END - low);
  return FINE_SHARE + ((1 - FINE_SHARE) * (seconds - FINE_END)) / (high - FINE_END);
}

function lengthAt(share, low, high) {
  if (share <= FINE_SHARE) return rounded(low + (share / FINE_SHARE) * (FINE_END - low));
  return rounded(FINE_END + ((share - FINE_SHARE) / (1 - FINE_SHARE)) * (high - FINE_END));
}

function report(field, text) {
  field.closest('.lt-field, li, label, div').append(word);
  word.textContent = text;
  clearTimeout(leaving);
  leaving = setTimeout(() => word.remove(), TOLD_FOR);
}

/** A number field with its slider. `choose` is called when a key on the slider has changed it. The result shows its value. */
function makeSlider(block, choose) {
  const field = block.querySelector('[type="number"]');
  const range = block.querySelector('[type="range"]');
  const [low, high, isLength] = [Number(field.min), Number(field.max), field.name === 'seconds'];

  function show() {
    const value = within(Number(field.value) || low, low, high);
    range.value = isLength ? shareOf(value, low, high) : value;
    const share = isLength ? Number(range.value) : (value - low) / (high - low || 1);
    range.style.setProperty('--share', `${100 * share}%`);
    if (isLength) range.setAttribute('aria-valuetext', `${value} seconds of video`);
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
  return show;
}

/** Give a field that was emptied its value back, and move a slider's number to the nearer end of its range; false for any other. */
export function settle(field) {
  const given = field.value;
  if (field.type !== 'number' || (!given && !before.get(field))) return false;
  const { min = -Infinity, max = Infinity } = field.closest('.lt-slider') ? field : {};
  const value = given ? within(Number(given), Number(min), Number(max)) : before.get(field);
  if (given && Number(given) === value) return false;
  field.value = value;
  report(field, given ? `${given} is not possible, so it was changed to ${value}.` : `A number is needed here, so ${value} stays.`);
  return true;
}

export function prepareSliders(changed) {
  const form = document.querySelector('#form');
  const blocks = [...form.querySelectorAll('.lt-slider')];
  const sliders = new Map(blocks.map((block) => [block.querySelector('[type="number"]').name, makeSlider(block, changed)]));
  onWritten((name) => sliders.get(name)?.());
  form.addEventListener('focusin', ({ target }) => { if (target.type === 'number') before.set(target, target.value); });
  form.addEventListener('focusout', ({ target }) => {
    const isSettled = settle(target);
    sliders.get(target.name)?.();
    if (isSettled) changed();
  });
  document.addEventListener('input', ({ target }) => {
    if (target.value?.length === target.maxLength) report(target, `At most ${target.maxLength} letters fit in here.`);
    else if (target.value) word.remove();
  });
}

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

/** Return the position of a length on its slider, from 0 to 1. */
export function shareOf(seconds, low, high) {
  if (seconds <= FINE_END) return (FINE_SHARE * (seconds - low)) / (FINE_END - low);
  return FINE_SHARE + ((1 - FINE_SHARE) * (seconds - FINE_END)) / (high - FINE_END);
}

/** Return the length at a position on its slider. */
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

/** A number field with a slider. */
class Slider {
  #field;
  #range;
  #low;
  #high;
  #isLength;

  constructor(block, choose) {
    this.#field = block.querySelector('[type="number"]');
    this.#range = block.querySelector('[type="range"]');
    [this.#low, this.#high] = [Number(this.#field.min), Number(this.#field.max)];
    this.#isLength = this.#field.name === 'seconds';
    if (this.#isLength) {
      Object.assign(this.#range, { min: 0, max: 1, step: 'any' });
      this.#range.addEventListener('keydown', (event) => this.#takeKey(event, choose));
    }
    this.#range.addEventListener('input', () => {
      const at = Number(this.#range.value);
      this.#choose(this.#isLength ? lengthAt(at, this.#low, this.#high) : at);
    });
    this.#field.addEventListener('input', () => this.show());
    this.show();
  }

  show() {
    const value = within(Number(this.#field.value) || this.#low, this.#low, this.#high);
    this.#range.value = this.#isLength ? shareOf(value, this.#low, this.#high) : value;
    const share = this.#isLength ? Number(this.#range.value) : (value - this.#low) / (this.#high - this.#low || 1);
    this.#range.style.setProperty('--share', `${100 * share}%`);
    if (this.#isLength) this.#range.setAttribute('aria-valuetext', `${value} seconds`);
  }

  #choose(value) {
    this.#field.value = within(value, this.#low, this.#high);
    this.show();
  }

  #takeKey(event, choose) {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const now = Number(this.#field.value) || this.#low;
    const isDownFromEnd = STEPS[event.key] < 0 && now <= FINE_END;
    this.#choose(rounded(now + STEPS[event.key] * (isDownFromEnd ? 0.1 : stepAt(now))));
    choose();
  }

  /** Move a number outside the range to the nearer end. */
  settle() {
    const given = this.#field.value;
    if (given === '' || Number(given) === within(Number(given), this.#low, this.#high)) return false;
    this.#choose(Number(given));
    report(this.#field, `${given} is not possible, so it was changed to ${this.#field.value}.`);
    return true;
  }
}

/** Give a field that was emptied its value back, and return whether it was one. */
export function refill(field) {
  if (field.type !== 'number' || field.value || !before.get(field)) return false;
  field.value = before.get(field);
  report(field, `A number is needed here, so ${field.value} stays.`);
  return true;
}

/** Set up all number fields of the form; `changed` is called when one of them changes by itself. */
export function prepareSliders(changed) {
  const form = document.querySelector('#form');
  const sliders = new Map();
  for (const block of form.querySelectorAll('.lt-slider')) {
    sliders.set(block.querySelector('[type="number"]').name, new Slider(block, changed));
  }
  onWritten((name) => sliders.get(name)?.show());
  form.addEventListener('focusin', ({ target }) => { if (target.type === 'number') before.set(target, target.value); });
  form.addEventListener('focusout', ({ target }) => {
    const isRefilled = refill(target);
    sliders.get(target.name)?.show();
    if (sliders.get(target.name)?.settle() || isRefilled) changed();
  });
  form.addEventListener('input', ({ target }) => { if (target.type === 'number' && target.value) word.remove(); });
}

// The fields for the settings of a branch that few people change.
import { make } from '../elements.js';

function control({ value, choices, low, high, step }) {
  if (choices.length) {
    const options = choices.map(([name, label]) => make('option', { value: name, textContent: label }));
    const select = make('select', {}, ...options);
    select.value = value;
    return select;
  }
  const isNumber = typeof value === 'number';
  return make('input', isNumber ? { type: 'number', min: low, max: high, step, value, required: true } : { type: 'text', value });
}

/** A fold with a field per setting. */
export class Further {
  element = make('details', {}, make('summary', { textContent: 'Further settings for the new sections' }));
  #fields = []; // pairs of a setting and its element

  /** Make fields for these settings, with the video's own values. */
  fill(settings) {
    this.element.open = false;
    this.#fields = settings.map((setting) => [setting, control(setting)]);
    const labels = this.#fields.map(([{ label }, field]) => make('label', {}, make('span', { textContent: label }), field));
    this.element.replaceChildren(this.element.firstElementChild, make('div', { className: 'lt-further' }, ...labels));
  }

  /** Return the settings that differ from the video's own, by name. */
  get changes() {
    const read = ([{ name, value }, field]) => [name, typeof value === 'number' ? Number(field.value) : field.value];
    return Object.fromEntries(this.#fields.filter(([{ value }, field]) => field.value !== String(value)).map(read));
  }
}

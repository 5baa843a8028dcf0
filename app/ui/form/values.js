// The values of the form's fields, by the names of settings.

const MOST_SEEDS = 2 ** 31;
const form = document.querySelector('#form');
const listeners = [];

const READ = {
  checkbox: (one) => one.checked,
  number: (one) => (one.value === '' ? null : Number(one.value)),
  picture: (one) => JSON.parse(one.value),
};

export function read(name) {
  const one = form.elements[name]; // several radio buttons are a list with the value of the chosen one
  return (READ[one.dataset?.kind ?? one.type] ?? (() => one.value))(one);
}

/** Return all values. Pictures are `{ path, orig_name }`. */
export function values() {
  const names = new Set([...form.elements].map((one) => one.name).filter(Boolean));
  return Object.fromEntries([...names].map((name) => [name, read(name)]));
}

export const pictureNames = () => [...form.querySelectorAll('[data-kind="picture"]')].map((one) => one.name);

/** Set the value of a setting, if the form has it. */
export function write(name, value) {
  for (const one of [...form.elements].filter((field) => field.name === name)) {
    if (one.type === 'radio') one.checked = one.value === value;
    else if (one.type === 'checkbox') one.checked = value;
    else one.value = one.dataset.kind === 'picture' ? JSON.stringify(value) : value ?? '';
  }
  for (const listener of listeners) listener(name);
}

/** Call the listener with the name of each setting that a script has set. */
export function onWritten(listener) {
  listeners.push(listener);
}

export const newSeed = () => Math.floor(Math.random() * MOST_SEEDS);

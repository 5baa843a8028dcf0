// The values of the form's fields, by the names of settings.

const MOST_SEEDS = 2 ** 31;
const form = document.querySelector('#form');
const listeners = [];

const READ = {
  checkbox: (field) => field.checked,
  number: (field) => (field.value === '' ? null : Number(field.value)),
  picture: (field) => JSON.parse(field.value),
};

export function read(name) {
  const field = form.elements[name]; // several radio buttons are a list with the value of the chosen one
  return (READ[field.dataset?.kind ?? field.type] ?? (() => field.value))(field);
}

/** All values. Pictures are `{ path, orig_name }`. */
export function values() {
  const names = new Set([...form.elements].map((field) => field.name).filter(Boolean));
  return Object.fromEntries([...names].map((name) => [name, read(name)]));
}

export const pictureNames = () => [...form.querySelectorAll('[data-kind="picture"]')].map((field) => field.name);

export function write(name, value) {
  for (const field of [...form.elements].filter((element) => element.name === name)) {
    if (field.type === 'radio') field.checked = field.value === value;
    else if (field.type === 'checkbox') field.checked = value;
    else field.value = field.dataset.kind === 'picture' ? JSON.stringify(value) : value ?? '';
  }
  for (const listener of listeners) listener(name);
}

export function onWritten(listener) {
  listeners.push(listener);
}

export const newSeed = () => Math.floor(Math.random() * MOST_SEEDS);

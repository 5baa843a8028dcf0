// The values of the form's fields by the names of settings, what the server says about them after each change, and the notice
// beside the buttons.
import { hasChanged, make } from '../elements.js';
import { onJobsReported } from '../jobs.js';
import { post, postUntil } from '../server.js';
import { keep, recall } from '../storage.js';
import { goTo, place } from '../tabs.js';

const MOST_SEEDS = 2 ** 31;
const form = document.querySelector('#form');
const onWrites = [];

const READ = {
  checkbox: (field) => field.checked,
  number: (field) => (field.value === '' ? null : Number(field.value)),
  picture: (field) => JSON.parse(field.value),
};

export function read(name) {
  const field = form.elements[name]; // several radio buttons are a list with the value of the chosen one
  return (READ[field.dataset?.kind ?? field.type] ?? (() => field.value))(field);
}

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
  for (const listener of onWrites) listener(name);
}

export function onWritten(listener) {
  onWrites.push(listener);
}

export const newSeed = () => Math.floor(Math.random() * MOST_SEEDS);

let said = {}; // the last facts
let isAsking = false;
let isStale = false; // whether the form has changed since it was sent, or the server did not answer
let mayKeep = false; // true once the kept settings are back; before, the defaults would overwrite them
let marked = null; // the control that was refused
const listeners = [];
const noticed = document.querySelector('#notice');
const box = () => noticed.querySelector('.lt-box');
const dropRefusal = () => { if (box()?.dataset.refused !== undefined) showNotice(''); };

export function showNotice(markup) {
  noticed.innerHTML = markup;
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

noticed.addEventListener('click', ({ target }) => { if (target.closest('[data-answer]')) showNotice(''); });

export const facts = () => said;

export function onDescribed(listener) {
  listeners.push(listener);
}

// What the user has opened stays open, since each move of a slider replaces the plan.
function draw(id, markup) {
  const part = document.getElementById(id);
  if (!hasChanged(part, markup)) return;
  const folds = [...part.querySelectorAll('details')].map((details) => details.open);
  const { value } = part;
  part.innerHTML = markup;
  // What was chosen while the answer was on its way stays chosen.
  if ([...part.options ?? []].some((option) => option.value === value)) part.value = value;
  part.querySelectorAll('details').forEach((details, index) => { details.open = folds[index] ?? false; });
}

export function take({ markup = {}, values: given = {}, facts: found, notice }) {
  for (const [id, text] of Object.entries(markup)) draw(id, text);
  for (const [name, value] of Object.entries(given)) write(name, value);
  if (notice !== undefined) showNotice(notice);
  if (!found) return;
  said = found;
  form.dataset.unused = found.unused.join(' ');
  for (const field of document.querySelectorAll('.lt-field[id^="set-"]')) {
    field.toggleAttribute('data-ignored', found.unused.includes(field.id.slice(4)));
  }
  for (const { parentElement: label, name, value, checked } of document.querySelectorAll('#options-step_cache input')) {
    label.toggleAttribute('data-ignored', !checked && found.unused.includes(`${name}=${value}`));
  }
  for (const listener of listeners) listener();
}

export async function describe() {
  isStale = true;
  if (isAsking) return;
  isAsking = true;
  try {
    while (isStale) {
      isStale = false;
      // Nobody waits for it. A failure concerns these values only; another change may have come.
      await postUntil(null, 'form_describe', { settings: values() }).then(take, (error) => { if (error.isAway) throw error; });
    }
  } catch (error) {
    isStale ||= error.isAway ?? false;
  } finally {
    isAsking = false;
  }
}

export const keptSettings = () => recall('form') ?? '';

export function restored() {
  mayKeep = true;
}

export function changed() {
  // This machine's own values are not kept, since another machine or card has others.
  const own = Object.entries(values()).filter(([name, value]) => value !== said.defaults?.[name]);
  if (mayKeep) keep('form', JSON.stringify(Object.fromEntries(own)));
  dropRefusal();
  describe();
}

export function fill({ notice, ...answer }) {
  take(answer);
  changed();
  take({ notice });
}

export function put(name, value) {
  write(name, value);
  changed();
}

/** Take a user's picture. Another start picture ends the continuation of a video, whose last frame it replaces. */
export function putPicture(name, picture) {
  if (name === 'image' && said.continues) write('extras', '');
  put(name, picture);
}

/** Show the form with an endpoint's answer: settings as text, and the paths of pictures by setting. */
export async function restoreForm({ text, pictures = {} }) {
  if (place()[0] !== 'create') goTo('create');
  // Settings that say nothing of a start picture leave the form's. Another picture belongs to one video.
  const isWhole = JSON.parse(text).is_whole;
  for (const name of pictureNames()) {
    if (pictures[name]) put(name, { path: pictures[name], orig_name: `${name === 'image' ? 'start' : name}-picture.png` });
    else if (isWhole && (name !== 'image' || pictures.image === '')) put(name, null);
  }
  fill(await post('form_fill', { restored: text, kept: keptSettings() }));
}

/** Show the form with these settings by name; null stands for a default, and the other settings stay. */
export const takeSettings = (settings) => (
  restoreForm({ text: JSON.stringify({ name: '', settings, extras: '', is_whole: false, notices: [] }) })
);

export const chooseModel = (model) => takeSettings({ model, steps: null, guidance: null, resolution: null });

onJobsReported(() => { if (isStale) describe(); }); // the server is back

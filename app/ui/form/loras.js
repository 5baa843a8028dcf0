// The LoRAs of the form: the files of the folder, each with a box, a weight and its trigger words. What is chosen
// stands in a hidden field, with FILE:WEIGHT on each line.
import { call } from '../calls/call.js';
import { hasChanged, make, setText } from '../elements.js';

const LINE = /^(.+?)(?::([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?(?:\s+sha256:([0-9a-f]{64}))?$/i;
const MOST = 10; // the largest weight, in either direction

const field = () => document.querySelector('#set-lora textarea');
const promptBox = () => document.querySelector('#set-prompt textarea');

function write(box, text) {
  box.value = text;
  box.dispatchEvent(new Event('input', { bubbles: true }));
}

/** Return the chosen files in the field's order: weight and the checksum that the file must have, by name. */
function chosen() {
  const lines = (field()?.value ?? '').split('\n').map((line) => LINE.exec(line.trim())).filter(Boolean);
  return new Map(lines.map(([, name, weight, sum]) => [name, { weight: weight ?? '1', sum }]));
}

function choose(name, weight) {
  const all = chosen();
  if (weight === null) all.delete(name);
  else all.set(name, { weight, sum: all.get(name)?.sum });
  write(field(), [...all].map(([one, facts]) => `${one}:${facts.weight}${facts.sum ? ` sha256:${facts.sum}` : ''}`).join('\n'));
}

function addToPrompt(words) {
  const box = promptBox();
  const text = box.value.trim();
  write(box, text ? `${text}, ${words}` : words);
}

/** One file of the list. */
class Row {
  #box = make('input', { type: 'checkbox' });
  #weight;
  #name;
  element;

  constructor({ name, triggers, problem }) {
    this.#name = name;
    const title = name.replace(/\.safetensors$/, '');
    this.#weight = make('input', { type: 'number', step: '0.05', min: -MOST, max: MOST, value: '1', ariaLabel: `Weight of ${title}` });
    this.#box.disabled = Boolean(problem);
    this.#box.addEventListener('change', () => this.#take());
    this.#weight.addEventListener('change', () => this.#take());
    const label = make('label', {}, this.#box, make('span', { textContent: title }));
    const words = triggers.map((text) => {
      const button = make('button', { type: 'button', className: 'lt-quiet-button', textContent: text, ariaLabel: `Add “${text}” to the prompt` });
      button.addEventListener('click', () => addToPrompt(text));
      return button;
    });
    const lines = problem ? [make('p', { className: 'lt-hint', textContent: problem })] : [];
    if (words.length) lines.push(make('p', { className: 'lt-hint lt-triggers' }, 'Words for the prompt: ', ...words));
    this.element = make('li', {}, make('div', {}, label, this.#weight), ...lines);
  }

  #take() {
    const number = Number(this.#weight.value);
    const weight = this.#weight.value.trim() && Number.isFinite(number) ? Math.min(MOST, Math.max(-MOST, number)) : 1;
    this.#weight.value = weight;
    choose(this.#name, this.#box.checked ? String(weight) : null);
  }

  show(all) {
    const facts = all.get(this.#name);
    this.#box.checked = Boolean(facts);
    this.#weight.hidden = !facts;
    // A number that is being typed stays; the field reports it when it is left.
    if (facts && document.activeElement !== this.#weight) this.#weight.value = facts.weight;
  }
}

let rows = [];
let known = [];
const list = make('ul', { className: 'lt-lora-list' });
const said = make('p', { className: 'lt-hint', role: 'status' });

/** Show in the list what the field has. A file that it names and the folder lacks has a row as well. */
export function showChosen() {
  const all = chosen();
  const missing = [...all.keys()].filter((name) => !known.some((file) => file.name === name));
  const files = [...known, ...missing.map((name) => ({ name, triggers: [], problem: '' }))];
  if (hasChanged(list, files)) { // otherwise the rows stay, and with them the keyboard's place
    rows = files.map((file) => new Row(file));
    list.replaceChildren(...rows.map((row) => row.element));
  }
  for (const row of rows) row.show(all);
}

async function look() {
  try {
    const found = await call('lora_list');
    known = found.files;
    const none = `There is no safetensors file in the folder “${found.folder}” yet.`;
    setText(said, known.length ? (found.more ? `${found.more} more files are not listed.` : '') : none);
  } catch (error) {
    setText(said, error.message);
  }
  showChosen();
}

/** Bring the list to life. */
export default function startLoras({ element }) {
  const again = make('button', { type: 'button', className: 'lt-quiet-button', textContent: 'Look again', ariaLabel: 'Look again for LoRAs' });
  again.addEventListener('click', look);
  const head = make('div', {}, make('b', { textContent: 'LoRA', id: 'lt-lora-title' }), again);
  const group = make('section', { className: 'lt-loras' }, head, list, said);
  group.setAttribute('aria-labelledby', 'lt-lora-title');
  element.replaceChildren(group);
  look();
}

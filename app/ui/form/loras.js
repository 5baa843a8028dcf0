// The LoRAs of the form, chosen among those of the folder; a hidden field has the choice as text, which the server reads.
import { hasChanged, make, makeButton, onPress, setText } from '../elements.js';
import { post } from '../server.js';
import { facts, onDescribed, put, read } from './describe.js';

const MOST_WEIGHT = 10;

/** Write a file's weight into the text, which has FILE:WEIGHT and perhaps a checksum on each line; without the file for null. */
export function chooseLora(name, weight) {
  const lines = read('lora').split('\n').filter(Boolean);
  const index = lines.findIndex((line) => line === name || line.startsWith(`${name}:`));
  const place = index < 0 ? lines.length : index;
  const [checksum] = /( sha256:\w+)?$/.exec(lines[place] ?? '');
  const line = `${name}:${Math.max(-MOST_WEIGHT, Math.min(MOST_WEIGHT, weight))}${checksum}`;
  lines.splice(place, 1, ...(weight === null ? [] : [line]));
  put('lora', lines.join('\n'));
}

function makeRow({ name, triggers, problem }) {
  const title = name.replace(/\.safetensors$/i, '');
  const box = make('input', { type: 'checkbox', disabled: Boolean(problem) });
  const weight = make('input', { type: 'number', step: '0.05', value: '1', ariaLabel: `Weight of ${title}` });
  const label = make('label', {}, box, make('span', { textContent: title }));
  const words = triggers.map((text) => makeButton(text, () => put('prompt', [read('prompt').trim(), text].filter(Boolean).join(', ')), { className: 'lt-quiet-button', ariaLabel: `Add “${text}” to the prompt` }));
  const lines = problem ? [make('p', { className: 'lt-hint', textContent: problem })] : [];
  if (words.length) lines.push(make('p', { className: 'lt-hint lt-triggers' }, 'Words for the prompt: ', ...words));
  const take = () => {
    weight.hidden = !box.checked;
    chooseLora(name, box.checked ? Number(weight.value || 1) : null);
  };
  for (const field of [box, weight]) field.addEventListener('change', take);
  return {
    element: make('li', {}, make('div', {}, label, weight), ...lines),
    show(weights) {
      const chosen = weights[name];
      box.checked = chosen !== undefined;
      weight.hidden = chosen === undefined;
      // A number that is being typed stays; the field reports it when it is left.
      if (document.activeElement !== weight) weight.value = chosen ?? 1;
    },
  };
}

let rows = [];
let known = [];
const list = document.querySelector('.lt-lora-list');
const said = document.querySelector('.lt-loras > p');

/** Show what the server reads in the field. A file that it names and the folder lacks has a row as well. */
function showChosen() {
  const { text = '', weights = {} } = facts().loras ?? {};
  if (text !== read('lora')) return; // these facts are about an earlier choice
  const missing = Object.keys(weights).filter((name) => !known.some((file) => file.name === name));
  const files = [...known, ...missing.map((name) => ({ name, triggers: [], problem: '' }))];
  if (hasChanged(list, files)) { // otherwise the rows stay, and with them the keyboard's place
    rows = files.map(makeRow);
    list.replaceChildren(...rows.map((row) => row.element));
  }
  for (const row of rows) row.show(weights);
}

async function look() {
  try {
    const answer = await post('lora_list');
    known = answer.files;
    const none = `There is no safetensors file in the folder “${answer.folder}” yet.`;
    setText(said, known.length ? (answer.more ? `${answer.more} more files are not listed.` : '') : none);
  } catch (error) {
    setText(said, error.message);
  }
  showChosen();
}

export function startLoras() {
  onPress(document.querySelector('#look-loras'), look);
  onDescribed(showChosen);
  document.querySelector('#fold-look').addEventListener('toggle', look, { once: true }); // nobody sees it before
}

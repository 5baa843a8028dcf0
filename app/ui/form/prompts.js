// The prompts that were started in this browser, in a menu above the prompt and by Alt + Up or Alt + Down.
import { make } from '../elements.js';
import { keep, recallTexts } from '../storage.js';
import { changed } from './keep.js';
import { write } from './values.js';

const MOST_PROMPTS = 30;
let place = -1; // the position in the list, while the keys step through it
let draft = '';
const history = make('div', { id: 'lt-history' });

const promptBox = () => document.querySelector('#set-prompt textarea');
const earlierPrompts = () => recallTexts('prompts').slice(0, MOST_PROMPTS);

function keepPrompts(list) {
  keep('prompts', JSON.stringify(list));
  drawPrompts();
}

/** Put a text into the prompt. */
export function writePrompt(text) {
  write('prompt', text);
  changed();
}

/** Put the prompt that is being started at the top of the list. */
export function rememberPrompt() {
  const text = promptBox().value.trim();
  place = -1;
  if (text) keepPrompts([text, ...earlierPrompts().filter((one) => one !== text)].slice(0, MOST_PROMPTS));
}

function makeMenu(list) {
  const head = make('summary', { textContent: `Earlier prompts (${list.length})` });
  const items = list.map((text) => {
    const button = make('button', { type: 'button', textContent: text });
    button.addEventListener('click', () => {
      menu.open = false;
      writePrompt(text);
      promptBox().focus();
    });
    return make('li', {}, button);
  });
  const clear = make('button', { type: 'button', className: 'lt-clear', textContent: 'Forget them' });
  clear.addEventListener('click', () => {
    keepPrompts([]);
    promptBox().focus();
  });
  const menu = make('details', { className: 'lt-history' }, head, make('div', {}, make('ul', {}, ...items), clear));
  menu.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !menu.open) return;
    menu.open = false;
    head.focus();
  });
  return menu;
}

function drawPrompts() {
  const list = earlierPrompts();
  history.replaceChildren(...(list.length ? [makeMenu(list)] : []));
}

function walk(direction) {
  const list = earlierPrompts();
  if (place < 0) draft = promptBox().value;
  place = Math.max(-1, Math.min(list.length - 1, place + direction));
  writePrompt(place < 0 ? draft : list[place]);
}

/** Show the menu and listen for the keys. */
export function preparePrompts() {
  document.querySelector('#set-prompt').append(history); // not into the label, whose text names the prompt
  promptBox().setAttribute('aria-keyshortcuts', 'Control+Enter Alt+ArrowUp Alt+ArrowDown');
  promptBox().addEventListener('keydown', (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!event.altKey || !direction) return;
    event.preventDefault();
    walk(direction);
  });
  drawPrompts();
}

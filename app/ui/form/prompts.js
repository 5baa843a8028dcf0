// Earlier prompts of this browser: a menu under the prompt, and Alt + Up or Down in it.
const PROMPTS = 'longtake.prompts';
const MOST_PROMPTS = 30;
let place = -1; // in the list, while walking through it
let draft = '';

function earlierPrompts() {
  try {
    const kept = JSON.parse(localStorage.getItem(PROMPTS));
    return Array.isArray(kept) ? kept.filter((text) => typeof text === 'string' && text).slice(0, MOST_PROMPTS) : [];
  } catch { return []; }
}

function keepPrompts(list) {
  try { localStorage.setItem(PROMPTS, JSON.stringify(list)); } catch { /* not allowed to keep anything */ }
  drawPrompts();
}

function writePrompt(text) {
  const box = document.querySelector('#set-prompt textarea');
  box.value = text;
  box.dispatchEvent(new Event('input', { bubbles: true }));
}

shared.rememberPrompt = () => {
  const text = document.querySelector('#set-prompt textarea').value.trim();
  place = -1;
  if (text) keepPrompts([text, ...earlierPrompts().filter((one) => one !== text)].slice(0, MOST_PROMPTS));
};

function drawPrompts() {
  const area = document.querySelector('#lt-history');
  if (!area) return;
  const list = earlierPrompts();
  const menu = document.createElement('details');
  menu.className = 'lt-history';
  const head = document.createElement('summary');
  head.textContent = `Earlier prompts (${list.length})`;
  const items = document.createElement('ul');
  for (const text of list) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = text;
    button.addEventListener('click', () => {
      menu.open = false;
      writePrompt(text);
      document.querySelector('#set-prompt textarea').focus();
    });
    items.append(document.createElement('li'));
    items.lastChild.append(button);
  }
  const clear = document.createElement('button');
  clear.type = 'button';
  clear.className = 'lt-clear';
  clear.textContent = 'Forget them';
  clear.addEventListener('click', () => {
    keepPrompts([]);
    document.querySelector('#set-prompt textarea').focus();
  });
  menu.append(head, items, clear);
  menu.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !menu.open) return;
    menu.open = false;
    head.focus();
  });
  area.replaceChildren(...(list.length ? [menu] : []));
}

shared.preparePrompts = () => {
  const box = document.querySelector('#set-prompt textarea');
  box.setAttribute('aria-keyshortcuts', 'Control+Enter Alt+ArrowUp Alt+ArrowDown');
  box.addEventListener('keydown', (event) => {
    if (!event.altKey || !['ArrowUp', 'ArrowDown'].includes(event.key)) return;
    event.preventDefault();
    const list = earlierPrompts();
    if (place < 0) draft = box.value;
    place = Math.max(-1, Math.min(list.length - 1, place + (event.key === 'ArrowUp' ? 1 : -1)));
    writePrompt(place < 0 ? draft : list[place]);
  });
  drawPrompts();
};

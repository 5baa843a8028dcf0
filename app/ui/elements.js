// Functions that make the page's elements, or change them only if something is new.

const TOLD_FOR = 4000; // milliseconds

export function offerCopy(button, source) {
  const label = button.textContent;
  let reset = 0;
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = 'Copied';
    } catch { // Without a secure context there is no clipboard, so the text is selected instead.
      const fold = source.closest('details');
      if (fold) fold.open = true;
      window.getSelection().selectAllChildren(source);
      button.textContent = 'Selected: press Ctrl + C';
    }
    clearTimeout(reset);
    reset = setTimeout(() => { button.textContent = label; }, TOLD_FOR);
  });
}

export const reducedMotion = window.matchMedia('(prefers-reduced-motion: reduce)');

/** Make an element with these properties and children. Texts stay texts and never become markup. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const fromTemplate = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

/** Give a list of choices these options, pairs of a value and a text. What was chosen stays so, or the first one is. */
export function setOptions(select, pairs) {
  const { value } = select;
  select.replaceChildren(...pairs.map(([key, textContent]) => make('option', { value: key, textContent })));
  select.value = pairs.some(([key]) => key === value) ? value : pairs[0][0];
}

export function drawn(source, width, height) {
  const canvas = make('canvas', { width, height });
  canvas.getContext('2d').drawImage(source, 0, 0);
  return canvas;
}

export const asPng = (canvas) => new Promise((done) => { canvas.toBlob(done, 'image/png'); });

export function saveFile(file) {
  const href = URL.createObjectURL(file);
  make('a', { href, download: file.name }).click();
  setTimeout(() => URL.revokeObjectURL(href));
}

/** Let the user choose files, of which `accept` lists the endings or types; none if the choice is cancelled. */
export const chooseFiles = (accept = '', multiple = false) => new Promise((done) => {
  const input = make('input', { type: 'file', accept, multiple });
  for (const event of ['change', 'cancel']) input.addEventListener(event, () => done([...input.files]));
  input.click();
});

/** Let the arrow keys, Home and End lead from one of these elements to another; one of them is in the tab order. */
export function roam(box, elements, arrive) {
  box.addEventListener('keydown', (event) => {
    const all = elements();
    const from = all.indexOf(document.activeElement);
    const next = all[{ ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: all.length - 1 }[event.key]];
    if (!next) return;
    event.preventDefault();
    for (const element of all) element.tabIndex = element === next ? 0 : -1;
    next.focus({ preventScroll: true });
    arrive(next);
  });
}

export function dropVideo(video) {
  video.removeAttribute('src');
  video.load();
}

/** Set the text of an element if it is new, since a screen reader repeats a text that is set again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Show facts in a box: the texts that `data-text` names, what `data-when` names only where it holds, and the attributes of
 * `data-set`, such as `href:file`, where a fact that is null, undefined or false takes the attribute away.
 */
export function render(box, facts) {
  for (const element of [box, ...box.querySelectorAll('[data-set]')]) {
    for (const [name, fact] of (element.dataset.set ?? '').split(' ').filter(Boolean).map((pair) => pair.split(':'))) {
      const value = facts[fact] ?? false;
      if (value === false) element.removeAttribute(name);
      else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
    }
  }
  for (const element of box.querySelectorAll('[data-text]')) {
    if (element.dataset.text in facts) setText(element, facts[element.dataset.text]);
  }
  for (const element of box.querySelectorAll('[data-when]')) element.hidden = !facts[element.dataset.when];
}

const lastFacts = new WeakMap();

export function hasChanged(element, facts) {
  const now = JSON.stringify(facts);
  if (lastFacts.get(element) === now) return false;
  lastFacts.set(element, now);
  return true;
}

export function fillRows(element, facts, makeOne) {
  if (hasChanged(element, facts)) element.replaceChildren(...facts.map(makeOne));
}

/** Give a box a button for each pair of an action and its label, if these are new. The focus stays on its action. */
export function fillActions(box, actions, title) {
  const { action } = box.contains(document.activeElement) ? document.activeElement.dataset : {};
  fillRows(box, actions.map((pair) => [...pair, title]), ([name, textContent]) => {
    const button = make('button', { type: 'button', textContent, ariaLabel: `${textContent.replace('…', '')}: ${title}` });
    button.dataset.action = name;
    return button;
  });
  if (action && !box.contains(document.activeElement)) (box.querySelector(`[data-action="${action}"]`) ?? box.querySelector('button'))?.focus();
}

export const makeItem = (textContent) => make('li', { textContent });

const headCell = (scope, content) => make('th', { scope }, ...[content].flat());

export const makeRow = ([first, ...rest]) => make('tr', {}, headCell('row', first), ...rest.map((cell) => make('td', {}, ...[cell].flat())));

/** Make a table with these heads of its columns, and rows of cells as `makeRow` takes them. */
export function makeTable(heads, rows, className = '') {
  const top = heads.length ? [make('thead', {}, make('tr', {}, ...heads.map((head) => headCell('col', head))))] : [];
  return make('table', { className }, ...top, make('tbody', {}, ...rows.map(makeRow)));
}

/** Run the action of a button, which shows that it was pressed, and takes no other press before that is done. */
export async function actOnce(button, act, report = () => {}) {
  if (button.ariaBusy === 'true') return;
  button.ariaBusy = 'true'; // `disabled` would take the focus away
  try {
    await act();
  } catch (error) {
    report(error.message);
  } finally {
    button.ariaBusy = null;
  }
}

export const onPress = (button, act, report) => button.addEventListener('click', () => actOnce(button, act, report));

export function makeButton(textContent, act, properties = {}, report = undefined) {
  const button = make('button', { type: 'button', textContent, ...properties });
  onPress(button, act, report);
  return button;
}

export function onSubmit(form, act, report) {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    actOnce(form.querySelector('button:not([type="button"])'), act, report);
  });
}

/** Let a list have these elements in this order. Those that stay are not moved, so they keep the focus and their videos. */
export function arrange(list, elements) {
  elements.forEach((element, index) => { if (list.children[index] !== element) list.insertBefore(element, list.children[index] ?? null); });
  while (list.children.length > elements.length) list.lastElementChild.remove();
}

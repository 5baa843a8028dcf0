// The prompt: those that were started in this browser, in a menu above it, and the help while one is typed. It names and
// underlines the words that the model does not know, counts the characters near the limit, and says on the start button
// what to expect of a video without a prompt.
import { make, makeButton, setText } from '../elements.js';
import { keep, recallTexts } from '../storage.js';
import { facts, onDescribed, put } from './describe.js';
import { onWritten } from './values.js';

const box = document.querySelector('#set-prompt textarea');
const WORD = /[\p{L}\p{N}]+/gu;
// The head of a part such as [2.4s: ...], and all of one with a seed or the weight of a LoRA
const TIME = /\[\s*\d[\d.,:]*(?:\s*s(?:ec(?:ond)?s?)?)?(?:\s*[-–—]\s*\d[\d.,:]*(?:\s*s(?:ec(?:ond)?s?)?)?)?\s*[:：](?:\s*(?:seed \d+|lora [^\]]+:[-+.\d]+)\s*\])?/gi;
const LITTLE_ROOM = 0.9; // the share of the limit from which the counter is shown
const PAUSE = 900; // milliseconds without a key before a screen reader is reported
const MOST_SHOWN = 12;
const MOST_PROMPTS = 30;

// The mirror lies over the prompt; its words are invisible, and only their marks are seen.
const prepared = document.querySelector('#prompt-parts').content;
const [history, help, mirror] = prepared.children;
const [unknownLine, countLine, spoken] = help.children;
let leftOut = 0;
let isAllUnknown = false;
let speaking = 0;

const wordsOf = (text) => [...text.replace(TIME, (head) => ' '.repeat(head.length)).matchAll(WORD)];

/** The [start, end] of each unknown word. A word that is being typed may still become a known one. */
function unknownPlaces(text, known, caret) {
  if (!known.length) return [];
  const places = wordsOf(text).map((match) => [match.index, match.index + match[0].length]);
  return places.filter(([begin, end]) => {
    const word = text.slice(begin, end).toLowerCase();
    return !known.includes(word) && !(end === caret && known.some((entry) => entry.startsWith(word)));
  });
}

function drawMarks(places) {
  const parts = [];
  let at = 0;
  for (const [begin, end] of places) {
    parts.push(box.value.slice(at, begin), make('span', { textContent: box.value.slice(begin, end) }));
    at = end;
  }
  mirror.replaceChildren(...parts, places.length ? `${box.value.slice(at)}\n` : '');
  mirror.scrollTop = box.scrollTop;
}

function offers() {
  return (facts().offered || []).flatMap((word) => [' ', makeButton(word, () => {
    put('prompt', isAllUnknown ? word : `${box.value.trim()} ${word}`);
    box.focus();
  })]);
}

function reportUnknown(words) {
  if (isAllUnknown) {
    if (!unknownLine.querySelector('button')) unknownLine.replaceChildren('The demo model knows none of these words. It knows, for example:', ...offers());
    unknownLine.hidden = false;
    return;
  }
  const more = words.length - MOST_SHOWN;
  const marks = words.slice(0, MOST_SHOWN).flatMap((word) => [', ', make('mark', { textContent: word.slice(0, 40) })]);
  const end = more > 0 ? ` and ${more} more.` : '.';
  unknownLine.hidden = !words.length;
  unknownLine.replaceChildren('The demo model does not know, and ignores: ', ...marks.slice(1), end);
}

function reportRoom(length, most) {
  const end = length >= most ? ': the limit is reached.' : '.';
  countLine.hidden = length < LITTLE_ROOM * most;
  countLine.dataset.full = length >= most;
  countLine.textContent = `${length} of ${most} characters${leftOut ? `: the last ${leftOut} that were inserted are left out.` : end}`;
}

function reportPrompt() {
  const caret = document.activeElement === box ? box.selectionEnd : -1;
  const places = unknownPlaces(box.value, facts().words || [], caret);
  drawMarks(places);
  const start = document.querySelector('#start');
  isAllUnknown = places.length > 0 && places.length === wordsOf(box.value).length;
  const why = (isAllUnknown && 'no known word') || (!box.value.trim() && 'no prompt');
  start.dataset.note = why ? `${why}: the motion is left to chance` : '';
  reportUnknown([...new Set(places.map(([begin, end]) => box.value.slice(begin, end).toLowerCase()))]);
  if (box.value.length < box.maxLength) leftOut = 0;
  reportRoom(box.value.length, box.maxLength);
  clearTimeout(speaking);
  const lines = [unknownLine, countLine].filter((line) => !line.hidden);
  speaking = setTimeout(() => setText(spoken, lines.map((line) => line.textContent).join(' ')), PAUSE);
}

function noteWhatIsLeftOut(event) {
  const given = event.data ?? event.dataTransfer?.getData('text/plain') ?? '';
  const room = box.maxLength - box.value.length + (box.selectionEnd - box.selectionStart);
  leftOut = given.length > 1 ? Math.max(0, given.length - room) : 0;
  setTimeout(reportPrompt);
}

function prepareHelp() {
  box.setAttribute('aria-describedby', 'lt-unknown lt-count');
  box.addEventListener('scroll', () => { mirror.scrollTop = box.scrollTop; });
  box.addEventListener('beforeinput', noteWhatIsLeftOut);
  for (const name of ['input', 'blur']) box.addEventListener(name, reportPrompt);
  onDescribed(reportPrompt);
  onWritten((name) => { if (name === 'prompt') reportPrompt(); });
  reportPrompt();
}

const earlierPrompts = () => recallTexts('prompts').slice(0, MOST_PROMPTS);

function keepPrompts(list) {
  keep('prompts', JSON.stringify(list));
  drawPrompts();
}

export function rememberPrompt() {
  const text = box.value.trim();
  if (text) keepPrompts([text, ...earlierPrompts().filter((prompt) => prompt !== text)].slice(0, MOST_PROMPTS));
}

function makeMenu(list) {
  const head = make('summary', { textContent: `Earlier prompts (${list.length})` });
  const items = list.map((text) => make('li', {}, makeButton(text, () => {
    menu.open = false;
    put('prompt', text);
    box.focus();
  })));
  const clear = makeButton('Forget them', () => {
    keepPrompts([]);
    box.focus();
  }, { className: 'lt-clear' });
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

export function preparePrompts() {
  box.after(mirror);
  document.querySelector('#set-prompt').append(prepared); // not into the label, whose text names the prompt
  box.setAttribute('aria-keyshortcuts', 'Control+Enter');
  drawPrompts();
  prepareHelp();
}

// The help while a prompt is typed. It names and underlines the words that the model does not know, counts the
// characters near the limit, and says on the start button what to expect of a video without a prompt.
import { make, setText } from '../elements.js';
import { facts, onDescribed } from './describe.js';
import { writePrompt } from './prompts.js';
import { onWritten } from './values.js';

const WORD = /[\p{L}\p{N}]+/gu;
// The head of a part such as [2.4s: ...], and all of one with a seed or the weight of a LoRA
const TIME = /\[\s*\d[\d.]*\s*s(?:\s*-\s*\d[\d.]*\s*s)?\s*:(?:\s*(?:seed \d+|lora [^\]]+:[-+.\d]+)\s*\])?/g;
const LITTLE_ROOM = 0.9; // the share of the limit from which the counter is shown
const PAUSE = 900; // milliseconds without a key before a screen reader is reported
const MOST_SHOWN = 12;
const TEXT_STYLES = ['font', 'letterSpacing', 'wordSpacing', 'textIndent', 'padding', 'borderWidth', 'lineHeight'];

const unknownLine = make('p', { className: 'lt-hint lt-unknown', id: 'lt-unknown', hidden: true });
const countLine = make('p', { className: 'lt-hint lt-count', id: 'lt-count', hidden: true });
const spoken = make('p', { className: 'lt-sr', role: 'status' });
const help = make('div', { className: 'lt-prompt-help' }, unknownLine, countLine, spoken);
// This lies over the prompt; its words are invisible, and only their marks are seen.
const mirror = make('div', { className: 'lt-mirror', ariaHidden: 'true' });
let leftOut = 0;
let isAllUnknown = false;
let speaking = 0;

const promptBox = () => document.querySelector('#set-prompt textarea');

/** Return the words of a prompt, without its times. */
const wordsOf = (text) => [...text.replace(TIME, (head) => ' '.repeat(head.length)).matchAll(WORD)];

/** Return [begin, end] of each unknown word. A word that is being typed may still become a known one. */
function unknownPlaces(text, known, caret) {
  if (!known.length) return [];
  const places = wordsOf(text).map((match) => [match.index, match.index + match[0].length]);
  return places.filter(([begin, end]) => {
    const word = text.slice(begin, end).toLowerCase();
    return !known.includes(word) && !(end === caret && known.some((one) => one.startsWith(word)));
  });
}

function drawMarks(box, places) {
  const parts = [];
  let at = 0;
  for (const [begin, end] of places) {
    parts.push(box.value.slice(at, begin), make('span', { textContent: box.value.slice(begin, end) }));
    at = end;
  }
  mirror.replaceChildren(...parts, places.length ? `${box.value.slice(at)}\n` : '');
  mirror.scrollTop = box.scrollTop;
}

/** Return buttons that add known words to the prompt. */
function offers() {
  return (facts().offered || []).flatMap((word) => {
    const button = make('button', { type: 'button', textContent: word });
    button.addEventListener('click', () => {
      writePrompt(isAllUnknown ? word : `${promptBox().value.trim()} ${word}`);
      promptBox().focus();
    });
    return [' ', button];
  });
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
  const count = `${length} of ${most} characters`;
  countLine.hidden = length < LITTLE_ROOM * most;
  countLine.dataset.full = length >= most;
  countLine.textContent = `${count}.`;
  if (length >= most) countLine.textContent = `${count}: the limit is reached.`;
  if (leftOut) countLine.textContent = `${count}: the last ${leftOut} that were inserted are left out.`;
}

function speak() {
  setText(spoken, [unknownLine, countLine].filter((line) => !line.hidden).map((line) => line.textContent).join(' '));
}

function reportPrompt() {
  const box = promptBox();
  const caret = document.activeElement === box ? box.selectionEnd : -1;
  const places = unknownPlaces(box.value, facts().words || [], caret);
  drawMarks(box, places);
  const start = document.querySelector('#start');
  isAllUnknown = places.length > 0 && places.length === wordsOf(box.value).length;
  const why = (isAllUnknown && 'no known word') || (!box.value.trim() && 'no prompt');
  start.dataset.note = why ? `${why}: the motion is left to chance` : '';
  reportUnknown([...new Set(places.map(([begin, end]) => box.value.slice(begin, end).toLowerCase()))]);
  if (box.value.length < box.maxLength) leftOut = 0;
  reportRoom(box.value.length, box.maxLength);
  clearTimeout(speaking);
  speaking = setTimeout(speak, PAUSE);
}

function placeMirror() {
  const box = promptBox();
  const style = getComputedStyle(box);
  for (const name of TEXT_STYLES) mirror.style[name] = style[name];
  const inner = box.getBoundingClientRect();
  const outer = mirror.parentElement.getBoundingClientRect();
  const zoom = box.currentCSSZoom ?? 1; // boxes are measured in the window's pixels
  mirror.style.left = `${(inner.left - outer.left) / zoom}px`;
  mirror.style.top = `${(inner.top - outer.top) / zoom}px`;
  mirror.style.width = `${box.clientWidth}px`; // without a scroll bar
  mirror.style.height = `${box.clientHeight}px`;
  mirror.scrollTop = box.scrollTop;
}

function noteWhatIsLeftOut(event) {
  const box = promptBox();
  const given = event.data ?? event.dataTransfer?.getData('text/plain') ?? '';
  const room = box.maxLength - box.value.length + (box.selectionEnd - box.selectionStart);
  leftOut = given.length > 1 ? Math.max(0, given.length - room) : 0;
  setTimeout(reportPrompt);
}

/** Put the help beneath the prompt and follow what is typed. */
export function preparePromptHelp() {
  const box = promptBox();
  document.querySelector('#set-prompt').append(help, mirror); // not into the label, whose text names the prompt
  box.setAttribute('aria-describedby', 'lt-unknown lt-count');
  new ResizeObserver(placeMirror).observe(box);
  box.addEventListener('scroll', placeMirror);
  box.addEventListener('beforeinput', noteWhatIsLeftOut);
  for (const name of ['input', 'blur']) box.addEventListener(name, reportPrompt);
  onDescribed(reportPrompt);
  onWritten((name) => { if (name === 'prompt') reportPrompt(); });
  reportPrompt();
}

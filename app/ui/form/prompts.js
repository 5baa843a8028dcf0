// The prompt: a menu of earlier ones, and help while one is typed, such as the words that the model does not know.
import { make, makeButton, setOptions, setText } from '../elements.js';
import { translated } from '../language.js';
import { keep, recallTexts } from '../storage.js';
import { facts, onDescribed, onWritten, put } from './describe.js';

const box = document.querySelector('#set-prompt textarea');
const WORD = /[\p{L}\p{N}]+/gu;
// The head of a part such as [2.4s: ...], and all of one with a seed or the weight of a LoRA
const TIME = /\[\s*\d[\d.,:]*(?:\s*s(?:ec(?:ond)?s?)?)?(?:\s*[-–—]\s*\d[\d.,:]*(?:\s*s(?:ec(?:ond)?s?)?)?)?\s*[:：](?:\s*(?:seed \d+|lora [^\]]+:[-+.\d]+)\s*\])?/gi;
const PAUSE = 900; // milliseconds without a key before a screen reader is reported
const MOST_SHOWN = 12;
const MOST_PROMPTS = 30;
const FORGET = '\n'; // is no prompt

const prepared = document.querySelector('#prompt-parts').content;
const [earlier, help] = prepared.children;
const [unknownLine, spoken] = help.children;
let isAllUnknown = false;
let speaking = 0;

const wordsOf = (text) => [...text.replace(TIME, (head) => ' '.repeat(head.length)).matchAll(WORD)];

/** The unknown words. One that is being typed may still become a known one. */
function unknownWords(text, known, caret) {
  if (!known.length) return [];
  const words = wordsOf(text).map((match) => [match[0].toLowerCase(), match.index + match[0].length]);
  return words.filter(([word, end]) => !known.includes(word) && !(end === caret && known.some((entry) => entry.startsWith(word))))
    .map(([word]) => word);
}

function offers() {
  const told = (word) => (translated(word) === word ? word : `${word} (${translated(word)})`);
  return (facts().offered || []).flatMap((word) => [' ', makeButton(told(word), () => {
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

function reportPrompt() {
  const caret = document.activeElement === box ? box.selectionEnd : -1;
  const unknown = unknownWords(box.value, facts().words || [], caret);
  const start = document.querySelector('#start');
  isAllUnknown = unknown.length > 0 && unknown.length === wordsOf(box.value).length;
  const why = (isAllUnknown && 'no known word') || (!box.value.trim() && 'no prompt');
  start.dataset.note = why ? `${why}: the motion is left to chance` : '';
  reportUnknown([...new Set(unknown)]);
  clearTimeout(speaking);
  speaking = setTimeout(() => setText(spoken, unknownLine.hidden ? '' : unknownLine.textContent), PAUSE);
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

function drawPrompts() {
  const list = earlierPrompts();
  earlier.hidden = !list.length;
  setOptions(earlier, [['', `Earlier prompts (${list.length})`], ...list.map((text) => [text, text]), [FORGET, 'Forget them']]);
}

function takeEarlier() {
  const { value } = earlier;
  earlier.value = '';
  if (value === FORGET) keepPrompts([]);
  else put('prompt', value);
  box.focus();
}

export function preparePrompts() {
  document.querySelector('#set-prompt').append(prepared); // not into the label, whose text names the prompt
  box.setAttribute('aria-keyshortcuts', 'Control+Enter');
  earlier.addEventListener('change', takeEarlier);
  drawPrompts();
  box.setAttribute('aria-describedby', 'lt-unknown');
  for (const name of ['input', 'blur']) box.addEventListener(name, reportPrompt);
  onDescribed(reportPrompt);
  onWritten((name) => { if (name === 'prompt') reportPrompt(); });
  reportPrompt();
}

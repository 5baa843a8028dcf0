// The strip of the video's sections, each with a field for its words. The server says what each field holds, and turns
// what is written there into a prompt with times; meanwhile a hidden field keeps it, and a start sends that as well.
import { chooseFiles, fromTemplate, hasChanged, make, onPress, render, setText } from '../elements.js';
import { addressOf, post, upload } from '../server.js';
import { changed, facts, onDescribed, read, write } from './describe.js';
import { makeMovable, within } from './pictures.js';

const WRITTEN = 'section_words';
const list = make('ol', { className: 'lt-sections' });
let rows = [];
let sections = []; // what the server said last of each one
let entered = null; // the words of all sections when the field in use was first written in
const early = new Set(); // the fields that were written in before the server had read the prompt

const rowOf = (field) => rows.findIndex((row) => row.field === field);

/** Give a field's words to its section and to those that continued it. An empty field continues the one before. */
function takeWords(index) {
  if (!entered && !read(WRITTEN) && facts().timeline?.of[0] !== read('prompt')) {
    early.add(index);
    return;
  }
  entered ??= read(WRITTEN) ? JSON.parse(read(WRITTEN)) : sections.map((section) => section.words);
  const text = rows[index].field.value.trim() || (entered[index - 1] ?? '');
  const end = entered.findIndex((words, at) => at > index && words !== entered[index]);
  write(WRITTEN, JSON.stringify([...entered].fill(text, index, end < 0 ? entered.length : end)));
}

// In a text of several lines, the keys move within it first.
function takeKey(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const next = rows[rowOf(event.target) + (step ?? 0)]?.field;
  if (event.key === 'Enter' && !event.ctrlKey && !event.metaKey) event.preventDefault(); // a prompt with times has one line
  if (!step || !next || event.altKey || event.shiftKey) return;
  const { selectionStart, selectionEnd, value, scrollHeight } = event.target;
  const end = step < 0 ? 0 : value.length;
  const isOneLine = scrollHeight < 1.5 * next.parentElement.querySelector('time').offsetHeight + 20;
  if (!isOneLine && !(selectionStart === end && selectionEnd === end)) return;
  event.preventDefault();
  next.focus();
}

function savePicture(place, picture) {
  sections[place] = { ...sections[place], picture };
  const lines = sections.filter((section) => section.picture).map((section) => `${section.begin}s@${section.picture.crop}: ${section.picture.path}`);
  write('pictures', [...lines, ...facts().timeline.later].join('\n'));
  rows[place].show(sections[place]);
  changed();
}

/** Make the row of a section, whose tile chooses a picture, or shows it and moves it like the start picture's crop. */
function makeRow() {
  const element = fromTemplate('section-row');
  const [, field, change, tile] = element.children;
  const [choose, image, remove] = tile.children;
  let section = {};
  let crop = 0.5;

  async function take() {
    const { place } = section;
    const [file] = await chooseFiles();
    if (!file) return;
    const { path } = await upload(file);
    await post('picture_check', { file: { path } });
    savePicture(place, { path, crop: 0.5 });
  }

  function move(position) {
    crop = position;
    image.setAttribute('aria-valuenow', Math.round(100 * crop));
    image.style.objectPosition = `${100 * crop}% ${100 * crop}%`;
  }

  field.maxLength = document.querySelector('#set-prompt textarea').maxLength;
  onPress(choose, take, (words) => setText(change, words));
  remove.addEventListener('click', () => {
    savePicture(section.place, null);
    choose.focus();
  });
  makeMovable(image, {
    at: () => crop,
    way: (x, y) => [-x / image.getBoundingClientRect().width, -y / image.getBoundingClientRect().height],
    move: (start, [right, down]) => move(within(start + right + down)),
    done: () => savePicture(section.place, { ...section.picture, crop }),
  });
  return {
    element,
    field,
    /** Show a section; the first one begins with the start picture, which has its own field. */
    show(now) {
      section = now;
      const { picture, time, begins } = now;
      render(element, {
        ...now, begins: String(begins), share: `--share:${now.share}%`, hint: begins ? 'No words' : 'same as above', hasTile: now.place > 0,
        isFree: !picture, src: picture && addressOf(picture.path), choose: `Choose a picture for ${time}`,
        remove: `Remove the picture for ${time}`, part: `Part of the picture for ${time} that the video shows`,
      });
      if (document.activeElement !== field) field.value = begins ? now.words : '';
      if (!picture) return;
      image.style.aspectRatio = facts().ratio;
      move(picture.crop);
    },
  };
}

function show() {
  const { of = [], prompt, sections: said = [] } = facts().timeline ?? {};
  if (['prompt', WRITTEN, 'pictures'].some((name, index) => of[index] !== read(name))) return; // there is a newer question
  list.inert = !said.length; // the line above says what is wrong with the prompt
  if (said.length) {
    sections = said;
    if (rows.length !== said.length) {
      rows = said.map(makeRow);
      list.replaceChildren(...rows.map((row) => row.element));
    }
    const late = [...early].filter((index) => rows[index]);
    early.clear();
    if (late.length) {
      for (const index of late) {
        entered = null;
        takeWords(index);
      }
      changed();
      return;
    }
    rows.forEach((row, index) => { if (hasChanged(row.element, said[index])) row.show(said[index]); });
  }
  if (!of[1]) return;
  write(WRITTEN, '');
  write('prompt', prompt);
  changed();
}

export function startSections(place) {
  place.append(list);
  // The form hears of the input after this. A picture that is chosen for a section is an input, too.
  list.addEventListener('input', ({ target }) => { if (target.type === 'textarea') takeWords(rowOf(target)); });
  list.addEventListener('keydown', takeKey);
  list.addEventListener('focusin', () => { entered = null; });
  list.addEventListener('focusout', ({ target }) => {
    const index = rowOf(target);
    if (!read(WRITTEN) && !early.size) requestAnimationFrame(() => { rows[index]?.show(sections[index]); });
  });
  onDescribed(show);
}

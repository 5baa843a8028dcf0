// Right beneath the prompt, as one types: the words that the model does not know, underlined where they stand
// and named; and how much room is left, once there is little.
const WORD = /[\p{L}\p{N}]+/gu;
const LITTLE_ROOM = 0.9; // of the limit: the counter appears
const PAUSE = 900; // milliseconds without a key before a screen reader hears of it
const help = document.createElement('div');
help.className = 'lt-prompt-help';
help.innerHTML = '<p class="lt-hint lt-unknown" id="lt-unknown" hidden></p><p class="lt-hint lt-count" id="lt-count" hidden></p>'
  + '<p class="lt-sr" role="status"></p>';
const [unknownLine, countLine, spoken] = help.children;
const mirror = document.createElement('div'); // lies over the prompt, its words unseen, their marks seen
mirror.className = 'lt-mirror';
mirror.setAttribute('aria-hidden', 'true');
let leftOut = 0, speaking = 0;

// [begin, end] of each. A word that is just being written may still become one that is known.
function unknownPlaces(text, known, caret) {
  if (!known.length) return [];
  return [...text.matchAll(WORD)].map((match) => [match.index, match.index + match[0].length]).filter(([begin, end]) => {
    const word = text.slice(begin, end).toLowerCase();
    return !known.includes(word) && !(end === caret && known.some((one) => one.startsWith(word)));
  });
}

function drawMarks(box, places) {
  const parts = [];
  let at = 0;
  for (const [begin, end] of places) {
    const mark = document.createElement('span');
    mark.textContent = box.value.slice(begin, end);
    parts.push(box.value.slice(at, begin), mark);
    at = end;
  }
  mirror.replaceChildren(...parts, places.length ? `${box.value.slice(at)}\n` : '');
  mirror.scrollTop = box.scrollTop;
}

function tellUnknown(words) {
  const shown = words.slice(0, 12), more = words.length - shown.length;
  unknownLine.hidden = !words.length;
  const marks = shown.flatMap((word) => {
    const mark = document.createElement('mark');
    mark.textContent = word.slice(0, 40);
    return [', ', mark];
  });
  unknownLine.replaceChildren('Not known to the demo model, so ignored: ', ...marks.slice(1), more > 0 ? ` and ${more} more.` : '.');
}

function tellRoom(length, most) {
  countLine.hidden = length < LITTLE_ROOM * most;
  countLine.dataset.full = length >= most;
  const count = `${length} of ${most} characters`;
  countLine.textContent = leftOut ? `${count}: the last ${leftOut} of what was put in are left out.`
    : length >= most ? `${count}: nothing more is taken.` : `${count}.`;
}

function speak() {
  const words = [unknownLine, countLine].filter((line) => !line.hidden).map((line) => line.textContent).join(' ');
  if (spoken.textContent !== words) spoken.textContent = words;
}

shared.promptChanged = () => {
  const box = document.querySelector('#set-prompt textarea');
  if (!box || !help.isConnected) return;
  const caret = document.activeElement === box ? box.selectionEnd : -1;
  const places = unknownPlaces(box.value, props.value?.words || [], caret);
  drawMarks(box, places);
  tellUnknown([...new Set(places.map(([begin, end]) => box.value.slice(begin, end).toLowerCase()))]);
  if (box.value.length < box.maxLength) leftOut = 0;
  tellRoom(box.value.length, box.maxLength);
  clearTimeout(speaking);
  speaking = setTimeout(speak, PAUSE);
};

shared.preparePromptHelp = () => {
  const box = document.querySelector('#set-prompt textarea');
  const block = document.querySelector('#set-prompt');
  block.append(help, mirror); // not into the label, whose text names the prompt
  box.setAttribute('aria-describedby', 'lt-unknown lt-count');
  const place = () => {
    const style = getComputedStyle(box);
    for (const name of ['font', 'letterSpacing', 'wordSpacing', 'textIndent', 'padding', 'borderWidth', 'lineHeight']) mirror.style[name] = style[name];
    const inner = box.getBoundingClientRect(), outer = block.getBoundingClientRect();
    mirror.style.left = `${inner.left - outer.left}px`;
    mirror.style.top = `${inner.top - outer.top}px`;
    mirror.style.width = `${box.clientWidth}px`; // without a scroll bar
    mirror.style.height = `${box.clientHeight}px`;
    mirror.scrollTop = box.scrollTop;
  };
  new ResizeObserver(place).observe(box);
  box.addEventListener('scroll', place);
  box.addEventListener('beforeinput', (event) => {
    const given = event.data ?? event.dataTransfer?.getData('text/plain') ?? '';
    const room = box.maxLength - box.value.length + (box.selectionEnd - box.selectionStart);
    leftOut = given.length > 1 ? Math.max(0, given.length - room) : 0;
    setTimeout(shared.promptChanged);
  });
  for (const name of ['input', 'blur']) box.addEventListener(name, () => shared.promptChanged());
  shared.promptChanged();
};

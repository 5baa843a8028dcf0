// The strip of sections in order of the video, with a button for each, which jumps there. One button is in the tab
// order, and the arrow keys lead to the others.
import { fromTemplate, hasChanged } from '../elements.js';

/** Return the button of a section, with a function that shows the section as it is now; `press` is called with that. */
function makeCell(first, press) {
  const button = fromTemplate('section-cell');
  const [picture, words, label, state] = button.children;
  let cell = first;
  label.textContent = first.label;
  button.dataset.section = first.number;
  button.addEventListener('click', () => { if (cell.isDone) press(cell); });
  return {
    button,
    begin: first.begin,
    get isDone() { return cell.isDone; },
    show(now) {
      if (!hasChanged(button, now)) return;
      cell = now;
      button.dataset.state = cell.state;
      button.setAttribute('aria-disabled', String(!cell.isDone));
      button.setAttribute('aria-label', `Section ${cell.label}, ${cell.spoken}`);
      button.style.setProperty('--done', `${cell.percent}%`);
      state.textContent = cell.mark;
      words.textContent = button.title = cell.words;
      if (!cell.thumb || picture.getAttribute('src') === cell.thumb) return;
      picture.src = cell.thumb;
      picture.hidden = false;
    },
  };
}

/** Return the place of the section that is made next; -1 if all of them are made. */
const nextOf = (sections) => (
  sections.reduce((best, cell, index) => (cell.isDone || sections[best]?.number < cell.number ? best : index), -1)
);

function reveal(strip, button) {
  const left = button.offsetLeft; // within the strip
  const least = left + button.offsetWidth - strip.clientWidth;
  strip.scrollLeft = Math.max(least, Math.min(left, strip.scrollLeft));
}

/** Return the strip of sections. A press on a finished one calls `jump` with its time, and `press` with job and section. */
export function makeStrip(strip, jump, press) {
  let cells = [];
  let made = ''; // the job and the number of sections that the buttons were made for
  let seen = ''; // the section that was last brought into view, and the strip's width then
  let playing = -1;

  function build({ job, cells: sections }) {
    [seen, playing] = ['', -1];
    cells = sections.map((one) => makeCell(one, (cell) => {
      jump(cell.begin);
      press(job, cell);
    }));
    cells.forEach(({ button }, index) => { button.tabIndex = index ? -1 : 0; });
    strip.replaceChildren(...cells.map(({ button }) => button));
    strip.scrollLeft = 0;
  }

  // The strip may be hidden, or not laid out yet, when its first scene arrives.
  function revealNext(sections) {
    const next = nextOf(sections);
    const now = `${next} ${strip.clientWidth} ${strip.scrollWidth}`;
    if (next < 0 || seen === now) return;
    seen = now;
    reveal(strip, cells[next].button);
  }

  strip.addEventListener('keydown', (event) => {
    const buttons = cells.map((cell) => cell.button);
    const from = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons.forEach((button, index) => { button.tabIndex = index === to ? 0 : -1; });
    buttons[to].focus({ preventScroll: true });
    reveal(strip, buttons[to]);
  });
  return {
    show(scene) {
      const wanted = `${scene.job} ${scene.cells.length}`;
      if (made !== wanted) build(scene);
      made = wanted;
      scene.cells.forEach((cell, index) => cells[index].show(cell));
      if (scene.isOpen && !strip.contains(document.activeElement)) revealNext(scene.cells);
    },
    /** Mark the section at a time in the whole video; at the end of what exists, that is the last one made. */
    mark(at) {
      const now = cells.findLastIndex((cell) => cell.isDone && at >= cell.begin - 0.001);
      if (now === playing) return;
      cells[playing]?.button.removeAttribute('aria-current');
      playing = now;
      cells[playing]?.button.setAttribute('aria-current', 'true');
    },
  };
}

// The strip of sections in order of the video, with a button for each, which jumps there. One button is in the tab
// order, and the arrow keys lead to the others.
import { hasChanged, make } from '../elements.js';

/** The strip of sections. */
export class Strip {
  #strip;
  #jump;
  #press;
  #scene = null;
  #cells = [];
  #made = ''; // the job and the number of sections that the buttons were made for
  #hidden = 0; // seconds of the whole video in front of what exists
  #seen = ''; // the section that was last brought into view, and the strip's width then
  #playing = -1;

  /** A press on a finished section calls `jump` with its time in the video so far, and `press` with the section. */
  constructor(strip, jump, press) {
    this.#strip = strip;
    this.#jump = jump;
    this.#press = press;
    strip.addEventListener('keydown', (event) => this.#takeKey(event));
  }

  show(scene) {
    this.#scene = scene;
    const made = `${scene.job} ${scene.cells.length}`;
    if (this.#made !== made) {
      this.#made = made;
      this.#build(scene.cells);
    }
    this.#hidden = scene.hidden;
    scene.cells.forEach((cell, index) => this.#fill(this.#cells[index], cell));
    if (scene.isOpen && !this.#strip.contains(document.activeElement)) this.#revealNext(scene.cells);
  }

  /** Mark the section at a time in the video so far. */
  mark(at) {
    const playing = this.#cells.findLastIndex((cell) => at + this.#hidden >= cell.begin - 0.001);
    if (playing === this.#playing) return;
    this.#cells[this.#playing]?.button.removeAttribute('aria-current');
    this.#playing = playing;
    this.#cells[playing]?.button.setAttribute('aria-current', 'true');
  }

  #build(cells) {
    this.#seen = '';
    this.#playing = -1;
    this.#cells = cells.map((cell, index) => this.#makeCell(cell, index));
    this.#strip.replaceChildren(...this.#cells.map((cell) => cell.button));
    this.#strip.scrollLeft = 0;
  }

  #makeCell(cell, index) {
    const picture = make('img', { alt: '', hidden: true });
    const label = make('span', { className: 'lt-cell-time', textContent: cell.label });
    const state = make('span', { className: 'lt-cell-state' });
    const words = make('span', { className: 'lt-cell-words' });
    const button = make('button', { type: 'button', className: 'lt-cell', tabIndex: index ? -1 : 0 }, picture, words, label, state);
    button.dataset.section = cell.number;
    button.addEventListener('click', () => {
      if (button.getAttribute('aria-disabled') === 'true') return;
      this.#jump(Math.max(0, cell.begin - this.#hidden));
      this.#press(this.#scene.job, this.#scene.cells[index]);
    });
    return { button, picture, state, words, begin: cell.begin };
  }

  #fill({ button, picture, state, words }, cell) {
    if (!hasChanged(button, cell)) return;
    button.dataset.state = cell.state;
    button.setAttribute('aria-disabled', String(!cell.isDone));
    button.setAttribute('aria-label', `Section ${cell.label}, ${cell.spoken}`);
    button.style.setProperty('--done', `${cell.percent}%`);
    state.textContent = cell.mark;
    words.textContent = button.title = cell.words;
    if (cell.thumb && picture.getAttribute('src') !== cell.thumb) {
      picture.src = cell.thumb;
      picture.hidden = false;
    }
  }

  // The strip may be hidden, or not laid out yet, when its first scene arrives.
  #revealNext(cells) {
    const next = cells.reduce((best, cell, index) => (cell.isDone || cells[best]?.number < cell.number ? best : index), -1);
    const seen = `${next} ${this.#strip.clientWidth} ${this.#strip.scrollWidth}`;
    if (next < 0 || this.#seen === seen) return;
    this.#seen = seen;
    this.#reveal(this.#cells[next].button);
  }

  #reveal(button) {
    const strip = this.#strip;
    const left = button.offsetLeft; // within the strip
    const least = left + button.offsetWidth - strip.clientWidth;
    strip.scrollLeft = Math.max(least, Math.min(left, strip.scrollLeft));
  }

  #takeKey(event) {
    const buttons = this.#cells.map((cell) => cell.button);
    const from = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons.forEach((button, index) => { button.tabIndex = index === to ? 0 : -1; });
    buttons[to].focus({ preventScroll: true });
    this.#reveal(buttons[to]);
  }
}

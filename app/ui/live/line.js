// The line of progress above the buttons, for windows in which the stage may be out of view.
import { make, setText } from '../elements.js';

const narrow = window.matchMedia('(max-width: 900px)'); // then the stage is not beside the form

/** Bring the stage into view, if it may be out of it. */
export function bringStage() {
  if (narrow.matches) document.querySelector('.lt-stage')?.scrollIntoView({ block: 'start' });
}

/** The line: what happens, the time left, and a bar. A press brings the stage into view. */
export class Line {
  #view;
  #words = make('span', { className: 'lt-line-words' });
  #bar = make('i');
  #line;

  constructor(view) {
    this.#view = view;
    // The card says the same to screen readers.
    this.#line = make('button', { type: 'button', className: 'lt-line', tabIndex: -1 }, this.#words, this.#bar);
    this.#line.setAttribute('aria-hidden', 'true');
    this.#line.addEventListener('click', bringStage);
    // While the stage is in sight, the window keeps it in its place, and not the form that comes after it.
    new IntersectionObserver(([stage]) => {
      document.documentElement.dataset.stage = stage.isIntersecting ? 'seen' : 'away';
    }).observe(view.querySelector('.lt-stage'));
  }

  /** Show what the card shows, or, after a word such as "Next", the headline of another job. */
  show({ isOpen, percent, headline: other }, word = '') {
    const isShown = narrow.matches && isOpen;
    this.#line.hidden = !isShown;
    if (!isShown) {
      this.#words.textContent = '';
      return;
    }
    if (!this.#line.isConnected) document.querySelector('.lt-go')?.prepend(this.#line);
    const [headline, times] = ['.lt-headline', '.lt-eta'].map((part) => this.#view.querySelector(part).textContent);
    const words = word ? [`${word}: ${other}`] : [headline, times.split(' · ')[0]];
    setText(this.#words, words.filter(Boolean).join(' · '));
    this.#bar.style.transform = `scaleX(${percent / 100})`;
  }
}

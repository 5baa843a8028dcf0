// A row of the queue: a picture, the video's prompt and facts, its state, and its actions.
import { actionButton, hasChanged, make, setText } from '../elements.js';
import { duration } from '../text.js';

const GRIP = '<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" stroke="currentColor" stroke-width="2.6" stroke-linecap="round">'
  + '<path d="M9 5.5h.01M15 5.5h.01M9 12h.01M15 12h.01M9 18.5h.01M15 18.5h.01"/></svg>';

/** Return whether a job can be given another place. */
export const isMovable = (job) => job.actions.includes('reorder');

const button = ([name, label], job) => actionButton(name, label, { ariaLabel: `${label}: ${job.title}` });

/** A row. Its element stays the same while the job is shown, so the focus stays where it is. */
export class Row {
  element;
  job = null;
  #parts;

  constructor() {
    const picture = make('img', { alt: '', loading: 'lazy', decoding: 'async', className: 'lt-row-picture' });
    const handle = make('button', { type: 'button', className: 'lt-row-grip', innerHTML: GRIP });
    const name = make('b', { className: 'lt-row-title' });
    const words = make('span', { className: 'lt-row-about' });
    const state = make('span', { className: 'lt-row-state' });
    const time = make('span', { className: 'lt-row-time' });
    const bar = make('i');
    const meter = make('div', { className: 'lt-row-meter' }, bar);
    const first = make('span', { className: 'lt-row-first' });
    const menu = make('div', { className: 'lt-row-menu' });
    const more = make('details', { className: 'lt-row-more' }, make('summary', { textContent: 'More' }), menu);
    this.element = make(
      'li', { className: 'lt-row' }, handle, picture, make('div', { className: 'lt-row-words' }, name, words),
      make('div', { className: 'lt-row-now' }, state, meter), time,
      make('div', { className: 'lt-row-actions' }, first, more),
    );
    this.#parts = { picture, handle, name, words, state, time, bar, meter, first, menu, more };
  }

  get handle() { return this.#parts.handle; }

  /** Show a job; `live` is its scene if it is on the stage, and `where` its place. */
  show(job, live, where) {
    this.job = job;
    this.element.dataset.job = job.id;
    this.element.dataset.state = job.state;
    const { picture, handle, name, words, more } = this.#parts;
    if (!job.picture) picture.removeAttribute('src');
    else if (picture.getAttribute('src') !== job.picture) picture.src = job.picture;
    setText(name, job.title);
    name.title = job.title;
    setText(words, job.about);
    handle.hidden = !isMovable(job);
    handle.setAttribute('aria-label', `Place ${where.number} of ${where.total}: ${job.title}. The arrow keys move it.`);
    more.firstElementChild.setAttribute('aria-label', `More for ${job.title}`);
    this.#showState(job, live);
    this.#showActions(job);
  }

  #showState(job, live) {
    const { state, time, bar, meter } = this.#parts;
    setText(state, live ? live.sentence : job.now);
    state.title = state.textContent;
    setText(time, live ? live.timeLeft : job.time);
    const percent = live ? live.percent : job.percent;
    meter.hidden = isMovable(job) && !percent;
    bar.style.transform = `scaleX(${percent / 100})`;
    const took = live?.elapsed ? `, ${duration(live.elapsed)} so far` : '';
    meter.title = `${Math.floor(percent)} %${took}`;
  }

  #showActions(job) {
    const { first, menu } = this.#parts;
    const { shown, more } = job.buttons;
    if (!hasChanged(this.element, [job.buttons, job.title])) return;
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    first.replaceChildren(...shown.map((one) => button(one, job)));
    menu.replaceChildren(...more.map((one) => button(one, job)));
    if (focused) (this.element.querySelector(`[data-action="${focused}"]`) ?? first.querySelector('button'))?.focus();
  }
}

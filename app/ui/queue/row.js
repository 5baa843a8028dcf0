// A row of the queue: a picture, the video's prompt and facts, its state, and its actions.
import { actionButton, hasChanged, make, setText } from '../elements.js';
import { duration } from '../text.js';

const GRIP = '<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" stroke="currentColor" stroke-width="2.6" stroke-linecap="round">'
  + '<path d="M9 5.5h.01M15 5.5h.01M9 12h.01M15 12h.01M9 18.5h.01M15 18.5h.01"/></svg>';

/** Return whether a job can be given another place. */
export const isMovable = (job) => job.actions.includes('reorder');

/** Return a row. Its element stays the same while the job is shown, so the focus stays where it is. */
export function makeRow() {
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
  const more = make('summary', { textContent: 'More' });
  const element = make(
    'li', { className: 'lt-row' }, handle, picture, make('div', { className: 'lt-row-words' }, name, words),
    make('div', { className: 'lt-row-now' }, state, meter), time,
    make('div', { className: 'lt-row-actions' }, first, make('details', { className: 'lt-row-more' }, more, menu)),
  );

  function showState(job, live) {
    setText(state, live ? live.sentence : job.now);
    state.title = state.textContent;
    setText(time, live ? live.timeLeft : job.time);
    const percent = live ? live.percent : job.percent;
    meter.hidden = isMovable(job) && !percent;
    bar.style.transform = `scaleX(${percent / 100})`;
    meter.title = `${Math.floor(percent)} %${live?.elapsed ? `, ${duration(live.elapsed)} so far` : ''}`;
  }

  function showActions({ buttons, title }) {
    if (!hasChanged(element, [buttons, title])) return;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const draw = ([action, label]) => actionButton(action, label, { ariaLabel: `${label}: ${title}` });
    first.replaceChildren(...buttons.shown.map(draw));
    menu.replaceChildren(...buttons.more.map(draw));
    if (focused) (element.querySelector(`[data-action="${focused}"]`) ?? first.querySelector('button'))?.focus();
  }

  return {
    element,
    job: null,
    /** Show a job; `live` is its scene if it is on the stage, and `where` its place. */
    show(job, live, where) {
      this.job = job;
      Object.assign(element.dataset, { job: job.id, state: job.state });
      if (!job.picture) picture.removeAttribute('src');
      else if (picture.getAttribute('src') !== job.picture) picture.src = job.picture;
      setText(name, job.title);
      name.title = job.title;
      setText(words, job.about);
      handle.hidden = !isMovable(job);
      handle.ariaLabel = `Place ${where.number} of ${where.total}: ${job.title}. The arrow keys move it.`;
      more.ariaLabel = `More for ${job.title}`;
      showState(job, live);
      showActions(job);
    },
  };
}

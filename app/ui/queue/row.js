// A row of the queue: a picture, the video's prompt and facts, its state, and its actions.
import { actionButton, fromTemplate, hasChanged, setText } from '../elements.js';
import { duration } from '../text.js';

/** Return whether a job can be given another place. */
export const isMovable = (job) => job.actions.includes('reorder');

/** Return a row. Its element stays the same while the job is shown, so the focus stays where it is. */
export function makeRow() {
  const element = fromTemplate('queue-row');
  const find = (name) => element.querySelector(`.lt-row-${name}`);
  const [picture, handle, title, state, meter, first] = ['picture', 'grip', 'title', 'state', 'meter', 'first'].map(find);

  function showState(job, live) {
    setText(state, live ? live.sentence : job.now);
    state.title = state.textContent;
    setText(find('time'), live ? live.timeLeft : job.time);
    const percent = live ? live.percent : job.percent;
    meter.hidden = isMovable(job) && !percent;
    meter.firstElementChild.style.transform = `scaleX(${percent / 100})`;
    meter.title = `${Math.floor(percent)} %${live?.elapsed ? `, ${duration(live.elapsed)} so far` : ''}`;
  }

  function showActions(job) {
    if (!hasChanged(element, [job.buttons, job.title])) return;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const draw = ([action, label]) => actionButton(action, label, { ariaLabel: `${label}: ${job.title}` });
    first.replaceChildren(...job.buttons.shown.map(draw));
    find('menu').replaceChildren(...job.buttons.more.map(draw));
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
      setText(title, job.title);
      title.title = job.title;
      setText(find('about'), job.about);
      handle.hidden = !isMovable(job);
      handle.ariaLabel = `Place ${where.number} of ${where.total}: ${job.title}. The arrow keys move it.`;
      find('more').firstElementChild.ariaLabel = `More for ${job.title}`;
      showState(job, live);
      showActions(job);
    },
  };
}

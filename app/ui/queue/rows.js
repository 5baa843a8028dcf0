// The rows of the queue, and moving them: by the pointer or a finger on the grip, and by the arrow keys on it.
import { fillActions, fromTemplate, render } from '../elements.js';
import { duration } from '../text.js';

const SLACK = 4; // pixels that a press may move before it counts as a drag
const EDGE = 72; // pixels from the window's edge within which the page scrolls
const SPEED = 10; // pixels per frame

let list = null;
let queue = null; // its `data()`, its rows, and what moves a job
let drag = null; // { row, from, to, pointer, start, scroll, moved }

export const isMovable = (job) => job.actions.includes('reorder');

export function makeRow() {
  const element = fromTemplate('queue-row');
  const find = (name) => element.querySelector(`.lt-row-${name}`);

  return {
    element,
    job: null,
    /** Show a job, the `number` of the `total`; `live` is its scene if it is on the stage. */
    show(job, live, { number, total }) {
      this.job = job;
      const { percent } = live ?? job;
      render(element, {
        ...job, picture: job.picture || null, ...(live && { now: live.sentence, time: live.timeLeft }), more: `More for ${job.title}`,
        grip: `Place ${number} of ${total}: ${job.title}. The arrow keys move it.`, isMovable: isMovable(job),
        hasMeter: !isMovable(job) || percent, done: `transform:scaleX(${percent / 100})`,
        soFar: [`${Math.floor(percent)} %`, live?.elapsed && `${duration(live.elapsed)} so far`].filter(Boolean).join(' · '),
      });
      fillActions(find('first'), job.buttons.shown, job.title);
      fillActions(find('menu'), job.buttons.more, job.title);
    },
  };
}

export const isMoving = () => drag !== null;

const rowAt = (target) => target.closest('.lt-row-grip') && queue.rowOf(target.closest('.lt-row').dataset.job);

function takeKey(event) {
  const row = rowAt(event.target);
  const act = row && {
    ArrowUp: () => queue.step(row.job, -1),
    ArrowDown: () => queue.step(row.job, 1),
    Home: () => queue.sendTo('first', row.job),
    End: () => queue.sendTo('last', row.job),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
  row.element.scrollIntoView({ block: 'nearest' });
}

function begin(event) {
  const row = rowAt(event.target);
  if (!row || event.button !== 0 || drag) return;
  const from = queue.data().jobs.indexOf(row.job);
  if (from < 0) return;
  event.target.closest('.lt-row-grip').setPointerCapture(event.pointerId);
  const { clientY } = event;
  drag = { row, from, to: from, pointer: clientY, start: clientY, scroll: window.scrollY, moved: false };
}

function follow(event) {
  if (!drag) return;
  drag.pointer = event.clientY;
  if (!drag.moved && Math.abs(drag.pointer - drag.start) < SLACK) return;
  if (!drag.moved) {
    drag.moved = true;
    drag.row.element.classList.add('lt-moving');
    list.classList.add('lt-sorting');
    requestAnimationFrame(scroll);
  }
  place();
}

function scroll() {
  if (!drag) return;
  const box = list.getBoundingClientRect();
  const by = drag.pointer < EDGE ? -SPEED : drag.pointer > window.innerHeight - EDGE ? SPEED : 0;
  if (by && (by < 0 ? box.top < EDGE : box.bottom > window.innerHeight - EDGE)) {
    window.scrollBy(0, by);
    place();
  }
  requestAnimationFrame(scroll);
}

function place() {
  const { jobs, first } = queue.data();
  const height = queue.rowHeight();
  const least = jobs.filter((job) => !isMovable(job)).length;
  const at = Math.floor((drag.pointer - list.getBoundingClientRect().top) / height) - first;
  drag.to = Math.max(least, Math.min(jobs.length - 1, at));
  const moved = drag.pointer - drag.start + window.scrollY - drag.scroll;
  drag.row.element.style.transform = `translateY(${moved}px)`;
  jobs.forEach((job, index) => {
    if (index === drag.from) return;
    const gap = index > drag.from && index <= drag.to ? -1 : index < drag.from && index >= drag.to ? 1 : 0;
    queue.rowOf(job.id).element.style.transform = gap ? `translateY(${gap * height}px)` : '';
  });
}

function end(isDropped) {
  if (!drag) return;
  const { row, from, to, moved } = drag;
  drag = null;
  list.classList.remove('lt-sorting');
  row.element.classList.remove('lt-moving');
  for (const child of list.children) child.style.transform = '';
  if (isDropped && moved && to !== from) queue.move(row.job, to);
  else queue.load();
}

export function prepareMoves(ofRows, ofQueue) {
  [list, queue] = [ofRows, ofQueue];
  list.addEventListener('keydown', takeKey);
  list.addEventListener('pointerdown', begin);
  list.addEventListener('pointermove', follow);
  list.addEventListener('pointerup', () => end(true));
  list.addEventListener('pointercancel', () => end(false));
  document.addEventListener('keydown', (event) => { if (event.key === 'Escape') end(false); });
}

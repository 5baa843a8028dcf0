// The Queue tab, with rows only for the videos near the window, and above them the cards, if there are several.
import { actOnce, arrange, fillActions, fromTemplate, hasChanged, onPress, render, setText } from '../elements.js';
import { editJob } from '../form/press.js';
import { queueNow, sceneNow, onJobsReported } from '../jobs.js';
import { openOnStage, watchRunning } from '../live/live.js';
import { post } from '../server.js';
import { goTo, place, whenShown } from '../tabs.js';
import { duration } from '../text.js';
import { offerUndo } from '../undo.js';

const AROUND = 24; // rows that are kept ready above and below the window
const MOST_ROWS = 200; // the most that the server sends
const SLACK = 4; // pixels that a press may move before it counts as a drag
const EDGE = 72; // pixels from the window's edge within which the page scrolls
const SPEED = 10; // pixels per frame

const section = document.querySelector('.lt-queue');
const find = (selector) => section.querySelector(selector);
const [list, hold, problem, cards] = ['.lt-rows', '.lt-queue-hold', '.lt-queue-problem', '.lt-devices'].map(find);
const rows = new Map(); // by job
const lines = new Map(); // by card
let data = { total: 0, first: 0, held: false, say: '', jobs: [], cards: [] }; // what is shown, also before an answer
let known = data; // what the server sent last
let revision = null; // that of the data
let asked = 0; // the number of the last request
let changes = Promise.resolve();
let unanswered = 0; // changes
let drag = null; // { row, from, to, pointer, start, scroll, moved }

const isMovable = (job) => job.actions.includes('reorder');

function makeRow() {
  const element = fromTemplate('queue-row');
  const [shown, opener, more] = ['first', 'more', 'menu'].map((name) => element.querySelector(`.lt-row-${name}`));
  opener.popoverTargetElement = more;
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
      fillActions(shown, job.buttons.shown, job.title);
      fillActions(more, job.buttons.more, job.title);
    },
  };
}

// The time for all of them changes after each section.
const revisionNow = () => [queueNow().revision, queueNow().held, sceneNow().sectionsDone].join();
const isShown = () => place()[0] === 'queue';
const rowHeight = () => parseFloat(getComputedStyle(list).getPropertyValue('--row'));
const report = (words) => setText(find('.lt-queue-reported'), words);

function complain(error) {
  problem.hidden = !error?.message;
  setText(problem, error?.message ?? '');
}

function watch(job) {
  goTo('create');
  watchRunning(job);
}

async function load() {
  const now = revisionNow();
  asked += 1;
  const own = asked;
  try {
    const answer = await post('jobs_queue', wanted());
    if (own !== asked || unanswered || drag) return;
    revision = now;
    known = answer;
    draw(known);
    if (isBeyond()) load();
  } catch (error) {
    complain(error);
  }
}

/** Change the queue once earlier changes are done, and then show it; false if that was not possible. */
function change(act) {
  unanswered += 1;
  complain(null);
  const done = changes.then(act).then(() => true).catch((error) => {
    revision = null; // the rows are asked for again with the next update
    draw(known);
    complain(error);
    return false;
  });
  changes = done.then(() => {
    unanswered -= 1;
    return unanswered ? null : load();
  });
  return changes.then(() => done);
}

/** Move a job at once, and tell the server. `to` is its new index among the other jobs near the window. */
function move(job, to) {
  const others = data.jobs.filter((other) => other.id !== job.id);
  const [before, after] = [others[to], others[to - 1]];
  const isFirst = after === undefined ? data.first === 0 : !isMovable(after);
  draw({ ...data, jobs: others.toSpliced(to, 0, job) });
  report(`${job.title} is now number ${data.first + to + 1} of ${data.total}.`);
  return change(() => post('jobs_reorder', {
    job: job.id, before: before?.id ?? '', after: before ? '' : after?.id ?? '', first: isFirst,
  }));
}

function step(job, by) {
  const from = data.jobs.findIndex((other) => other.id === job.id);
  const to = from + by;
  if (from < 0 || !data.jobs[to] || !isMovable(data.jobs[to])) report(`${job.title} cannot be moved further.`);
  else move(job, to);
}

function sendTo(end, job) {
  const others = data.jobs.filter((other) => other.id !== job.id);
  const made = others.filter((other) => !isMovable(other));
  if (end === 'first' && data.first === 0) draw({ ...data, jobs: others.toSpliced(made.length, 0, job) });
  report(`${job.title} is now the ${end === 'first' ? 'next one' : 'last one'}.`);
  return change(() => post('jobs_reorder', { job: job.id, first: end === 'first' }));
}

function remove(job) {
  draw({ ...data, jobs: data.jobs.filter((other) => other.id !== job.id), total: data.total - 1 });
  return change(async () => {
    await post('jobs_remove', { jobs: [job.id] });
    offerUndo([job.id], job.title);
  });
}

function draw(now) {
  data = now;
  const { jobs, first, total } = data;
  const focused = document.activeElement;
  const height = rowHeight();
  list.style.paddingTop = `${first * height}px`;
  list.style.paddingBottom = `${Math.max(0, total - first - jobs.length) * height}px`;
  const ids = new Set(jobs.map((job) => job.id));
  for (const [id, row] of rows) if (!ids.has(id)) drop(id, row);
  jobs.forEach((job, index) => {
    if (!rows.has(job.id)) rows.set(job.id, makeRow());
    show(job, index);
  });
  arrange(list, jobs.map((job) => rows.get(job.id).element));
  if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
  find('.lt-queue-empty').hidden = total > 0;
  section.dataset.state = 'known';
  showHead();
}

function drop(id, row) {
  const hadFocus = row.element.contains(document.activeElement);
  const next = row.element.nextElementSibling ?? row.element.previousElementSibling;
  row.element.remove();
  rows.delete(id);
  if (hadFocus) (next?.querySelector('.lt-row-first button') ?? hold).focus({ preventScroll: true });
}

function show(job, index) {
  const scene = sceneNow();
  const live = !isMovable(job) && scene.job === job.id && scene.isRunning ? scene : null;
  rows.get(job.id).show(job, live, { number: data.first + index + 1, total: data.total });
}

function showCards() {
  cards.hidden = !data.cards.length;
  arrange(cards, data.cards.map((card) => {
    const element = lines.get(card.card) ?? lines.set(card.card, fromTemplate('device')).get(card.card);
    render(element, { ...card, isIdle: !card.job, watch: card.job ? `${card.now}. Watch it.` : null });
    fillActions(element.lastElementChild, card.buttons, card.name);
    return element;
  }));
}

function showHead() {
  const { total, held } = data;
  showCards();
  setText(find('.lt-queue-say'), data.say);
  hold.hidden = !total && !held;
  setText(hold, held ? 'Resume the queue' : 'Pause everything');
  hold.title = held ? '' : 'This frees the device for other work until you resume the queue.';
  hold.setAttribute('aria-pressed', String(held));
}

function hear() {
  if (!isShown()) return;
  if (revisionNow() !== revision && !unanswered) load();
  const { job: shown, percent, timeLeft, sentence, state } = sceneNow();
  const index = data.jobs.findIndex((job) => job.id === shown && !isMovable(job));
  if (index < 0) return;
  if (hasChanged(section, [shown, percent, timeLeft, sentence, state])) show(data.jobs[index], index);
}

function wanted() {
  const top = -list.getBoundingClientRect().top;
  const height = rowHeight();
  const first = Math.max(0, Math.floor(top / height) - AROUND);
  return { first, limit: Math.min(MOST_ROWS, Math.ceil(window.innerHeight / height) + 2 * AROUND) };
}

function isBeyond() {
  const { first, jobs, total } = data;
  const top = -list.getBoundingClientRect().top / rowHeight();
  const bottom = top + window.innerHeight / rowHeight();
  return (first > 0 && top < first) || (first + jobs.length < total && bottom > first + jobs.length);
}

function scrolled() {
  if (isShown() && !unanswered && !drag && isBeyond()) load();
}

const rowAt = (target) => target.closest('.lt-row-grip') && rows.get(target.closest('.lt-row').dataset.job);

function takeMoveKey(event) {
  const row = rowAt(event.target);
  const act = row && {
    ArrowUp: () => step(row.job, -1),
    ArrowDown: () => step(row.job, 1),
    Home: () => sendTo('first', row.job),
    End: () => sendTo('last', row.job),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
  row.element.scrollIntoView({ block: 'nearest' });
}

function beginMove(event) {
  const row = rowAt(event.target);
  if (!row || event.button !== 0 || drag) return;
  const from = data.jobs.indexOf(row.job);
  if (from < 0) return;
  event.target.closest('.lt-row-grip').setPointerCapture(event.pointerId);
  const { clientY } = event;
  drag = { row, from, to: from, pointer: clientY, start: clientY, scroll: window.scrollY, moved: false };
}

function followPointer(event) {
  if (!drag) return;
  drag.pointer = event.clientY;
  if (!drag.moved && Math.abs(drag.pointer - drag.start) < SLACK) return;
  if (!drag.moved) {
    drag.moved = true;
    drag.row.element.classList.add('lt-moving');
    list.classList.add('lt-sorting');
    requestAnimationFrame(scrollAtEdge);
  }
  showMove();
}

function scrollAtEdge() {
  if (!drag) return;
  const box = list.getBoundingClientRect();
  const by = drag.pointer < EDGE ? -SPEED : drag.pointer > window.innerHeight - EDGE ? SPEED : 0;
  if (by && (by < 0 ? box.top < EDGE : box.bottom > window.innerHeight - EDGE)) {
    window.scrollBy(0, by);
    showMove();
  }
  requestAnimationFrame(scrollAtEdge);
}

function showMove() {
  const { jobs, first } = data;
  const height = rowHeight();
  const least = jobs.filter((job) => !isMovable(job)).length;
  const at = Math.floor((drag.pointer - list.getBoundingClientRect().top) / height) - first;
  drag.to = Math.max(least, Math.min(jobs.length - 1, at));
  const moved = drag.pointer - drag.start + window.scrollY - drag.scroll;
  drag.row.element.style.transform = `translateY(${moved}px)`;
  jobs.forEach((job, index) => {
    if (index === drag.from) return;
    const gap = index > drag.from && index <= drag.to ? -1 : index < drag.from && index >= drag.to ? 1 : 0;
    rows.get(job.id).element.style.transform = gap ? `translateY(${gap * height}px)` : '';
  });
}

function endMove(isDropped) {
  if (!drag) return;
  const { row, from, to, moved } = drag;
  drag = null;
  list.classList.remove('lt-sorting');
  row.element.classList.remove('lt-moving');
  for (const child of list.children) child.style.transform = '';
  if (isDropped && moved && to !== from) move(row.job, to);
  else load();
}

function takeClick({ target }) {
  const button = target.closest('[data-action]');
  const row = rows.get(target.closest('.lt-row')?.dataset.job);
  if (!button || !row) return;
  button.closest('[popover]')?.hidePopover();
  actOnce(button, () => ACTS[button.dataset.action](row.job));
}

function takeCardClick({ target }) {
  const button = target.closest('[data-action]');
  if (!button) return;
  const { action, job } = button.dataset;
  const { card } = button.closest('li').dataset;
  actOnce(button, () => (action === 'watch' ? watch(job) : change(() => post(`cards_${action}`, { card }))));
}

const ACTS = {
  watch: (job) => (isMovable(job) ? openOnStage(job.id).then(() => goTo('create')).catch(complain) : watch(job.id)),
  edit: (job) => editJob(job).catch(complain),
  pause: (job) => change(() => post('jobs_pause', { jobs: [job.id] })),
  resume: (job) => change(() => post('jobs_resume', { jobs: [job.id] })),
  stop_after_section: (job) => change(() => post('jobs_cancel', { jobs: [job.id], after_section: true })),
  cancel: (job) => change(() => post('jobs_cancel', { jobs: [job.id] })),
  duplicate: (job) => change(() => post('jobs_duplicate', { job: job.id }))
    .then((isDone) => isDone && report(`A copy of ${job.title} is at the end of the queue.`)),
  remove,
  earlier: (job) => step(job, -1),
  later: (job) => step(job, 1),
  first: (job) => sendTo('first', job),
  last: (job) => sendTo('last', job),
};

export default function startQueue() {
  list.addEventListener('keydown', takeMoveKey);
  list.addEventListener('pointerdown', beginMove);
  list.addEventListener('pointermove', followPointer);
  list.addEventListener('pointerup', () => endMove(true));
  list.addEventListener('pointercancel', () => endMove(false));
  list.addEventListener('click', takeClick);
  cards.addEventListener('click', takeCardClick);
  onPress(hold, () => change(() => post(data.held ? 'jobs_go_on' : 'jobs_hold')));
  document.addEventListener('keydown', ({ key }) => { if (key === 'Escape') endMove(false); });
  window.addEventListener('scroll', () => requestAnimationFrame(scrolled), { passive: true });
  window.addEventListener('resize', () => requestAnimationFrame(scrolled));
  onJobsReported(hear);
  whenShown('queue', load);
}

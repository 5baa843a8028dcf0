// The Queue tab. It has rows only for the videos near the window, so a thousand videos cost no more than fifty.
import { call } from '../calls/call.js';
import { actOnce, arrange, hasChanged, onPress, setText } from '../elements.js';
import { editJob } from '../form/press.js';
import { queueNow, sceneNow, onJobsReported } from '../jobs.js';
import { watchRunning } from '../live/live.js';
import { goTo, place, whenShown } from '../tabs.js';
import { listenToCards, showCards } from './cards.js';
import { Mover } from './move.js';
import { Row, isMovable } from './row.js';
import { Undo } from './undo.js';

const AROUND = 24; // rows that are kept ready above and below the window
const MOST_ROWS = 200; // the most that the server sends
const NOTHING = { total: 0, first: 0, held: false, say: '', jobs: [], cards: [] };

// The time for all of them is told anew after each section.
const revisionNow = () => [queueNow().revision, queueNow().held, sceneNow().sectionsDone].join();

/** Show a running video on the stage. */
function watch(job) {
  goTo('create');
  watchRunning(job);
}

/** The list of the videos that are not over. */
class Queue {
  #parts;
  #rows = new Map();
  #data = NOTHING; // what is shown, also before the server has answered a change
  #known = NOTHING; // what the server sent last
  #revision = null; // that of the data
  #asked = 0; // the number of the last request
  #changes = Promise.resolve();
  #open = 0; // changes that the server has not answered yet
  #mover;
  #undo;

  constructor(section) {
    const find = (selector) => section.querySelector(selector);
    this.#parts = {
      section, list: find('.lt-rows'), say: find('.lt-queue-say'), hold: find('.lt-queue-hold'),
      empty: find('.lt-queue-empty'), cards: find('.lt-devices'), problem: find('.lt-queue-problem'), reported: find('.lt-queue-reported'),
    };
    this.#mover = new Mover(this.#parts.list, this);
    this.#undo = new Undo(find('.lt-undo'), (jobs) => this.change(() => call('jobs_restore', jobs)));
    this.#parts.list.addEventListener('click', (event) => this.#takeClick(event));
    listenToCards(this.#parts.cards, (action, card, job) => (
      action === 'watch' ? watch(job) : this.change(() => call(`cards_${action}`, card))));
    onPress(this.#parts.hold, () => this.change(() => call(this.#data.held ? 'jobs_go_on' : 'jobs_hold')));
    document.addEventListener('click', (event) => this.#closeMenus(event.target));
    document.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.#closeMenus(null); });
    window.addEventListener('scroll', () => requestAnimationFrame(() => this.#scrolled()), { passive: true });
    window.addEventListener('resize', () => requestAnimationFrame(() => this.#scrolled()));
    onJobsReported(() => this.#hear());
    whenShown('queue', () => this.load());
  }

  /** The jobs near the window, in the order of the queue. */
  get jobs() { return this.#data.jobs; }

  /** The place of the first of them among all, from 0. */
  get first() { return this.#data.first; }

  get isShown() { return place()[0] === 'queue'; }

  rowOf(id) { return this.#rows.get(id); }

  rowHeight() { return parseFloat(getComputedStyle(this.#parts.list).getPropertyValue('--row')); }

  report(words) { setText(this.#parts.reported, words); }

  /** Ask the server for the rows near the window. */
  async load() {
    const revision = revisionNow();
    const [first, count] = this.#wanted();
    const number = ++this.#asked;
    try {
      const data = await call('jobs_queue', first, count);
      if (number !== this.#asked || this.#open || this.#mover.isMoving) return;
      this.#revision = revision;
      this.#data = this.#known = data;
      this.draw();
      if (this.#isBeyond()) this.load();
    } catch (error) {
      this.#complain(error);
    }
  }

  /** Change the queue once earlier changes are done, and then show it. Return whether that was possible. */
  change(act) {
    this.#open += 1;
    this.#complain(null);
    const done = this.#changes.then(act).then(() => true).catch((error) => {
      this.#data = this.#known;
      this.#revision = null; // the rows are asked for again with the next update
      this.draw();
      this.#complain(error);
      return false;
    });
    this.#changes = done.then(() => {
      this.#open -= 1;
      return this.#open ? null : this.load();
    });
    return this.#changes.then(() => done);
  }

  /** Move a job at once, and tell the server. `to` is its new index among the other jobs near the window. */
  move(job, to) {
    const others = this.jobs.filter((one) => one.id !== job.id);
    const [before, after] = [others[to], others[to - 1]];
    const isFirst = after === undefined ? this.first === 0 : !isMovable(after);
    this.#data = { ...this.#data, jobs: [...others.slice(0, to), job, ...others.slice(to)] };
    this.draw();
    this.report(`${job.title} is now number ${this.first + to + 1} of ${this.#data.total}.`);
    return this.change(() => call('jobs_reorder', job.id, before?.id ?? '', before ? '' : after?.id ?? '', isFirst));
  }

  /** Move a job by some places. */
  step(job, by) {
    const from = this.jobs.findIndex((one) => one.id === job.id);
    const to = from + by;
    if (from < 0 || !this.jobs[to] || !isMovable(this.jobs[to])) this.report(`${job.title} cannot be moved further.`);
    else this.move(job, to);
  }

  /** Draw the queue without a job before the server answers. */
  #assumeAway(job) {
    this.#data = { ...this.#data, jobs: this.jobs.filter((one) => one.id !== job.id), total: this.#data.total - 1 };
    this.draw();
  }

  /** Make a job the next one or the last one. */
  sendTo(end, job) {
    const others = this.jobs.filter((one) => one.id !== job.id);
    const made = others.filter((one) => !isMovable(one));
    if (end === 'first' && this.first === 0) {
      this.#data = { ...this.#data, jobs: [...made, job, ...others.slice(made.length)] };
      this.draw();
    }
    this.report(`${job.title} is now the ${end === 'first' ? 'next one' : 'last one'}.`);
    return this.change(() => call('jobs_reorder', job.id, '', '', end === 'first'));
  }

  /** Draw the rows, and keep those that are there. */
  draw() {
    const { list, section, empty } = this.#parts;
    const { jobs, first, total } = this.#data;
    const focused = document.activeElement;
    const height = this.rowHeight();
    list.style.paddingTop = `${first * height}px`;
    list.style.paddingBottom = `${Math.max(0, total - first - jobs.length) * height}px`;
    const ids = new Set(jobs.map((job) => job.id));
    for (const [id, row] of this.#rows) if (!ids.has(id)) this.#drop(id, row);
    jobs.forEach((job, index) => {
      if (!this.#rows.has(job.id)) this.#rows.set(job.id, new Row());
      this.#show(job, index);
    });
    arrange(list, jobs.map((job) => this.#rows.get(job.id).element));
    if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
    empty.hidden = total > 0;
    section.dataset.state = 'known';
    this.#showHead();
  }

  #drop(id, row) {
    const hadFocus = row.element.contains(document.activeElement);
    const next = row.element.nextElementSibling ?? row.element.previousElementSibling;
    row.element.remove();
    this.#rows.delete(id);
    if (hadFocus) (next?.querySelector('.lt-row-first button') ?? this.#parts.hold).focus({ preventScroll: true });
  }

  #show(job, index) {
    const { first, total } = this.#data;
    const scene = sceneNow();
    const live = !isMovable(job) && scene.job === job.id && scene.isRunning ? scene : null;
    this.#rows.get(job.id).show(job, live, { number: first + index + 1, total });
  }

  #showHead() {
    const { say, hold, cards } = this.#parts;
    showCards(cards, this.#data.cards);
    const { total, held } = this.#data;
    setText(say, this.#data.say);
    hold.hidden = !total && !held;
    setText(hold, held ? 'Resume the queue' : 'Pause everything');
    hold.title = held ? '' : 'This frees the device for other work until you resume the queue.';
    hold.setAttribute('aria-pressed', String(held));
  }

  #hear() {
    if (!this.isShown) return;
    if (revisionNow() !== this.#revision && !this.#open) this.load();
    const { job: shown, percent, timeLeft, sentence, state } = sceneNow();
    const index = this.jobs.findIndex((job) => job.id === shown && !isMovable(job));
    if (index < 0) return;
    if (!this.#rows.has(this.jobs[index].id)) return;
    if (hasChanged(this.#parts.section, [percent, timeLeft, sentence, state])) this.#show(this.jobs[index], index);
  }

  #wanted() {
    const top = -this.#parts.list.getBoundingClientRect().top;
    const height = this.rowHeight();
    const first = Math.max(0, Math.floor(top / height) - AROUND);
    return [first, Math.min(MOST_ROWS, Math.ceil(window.innerHeight / height) + 2 * AROUND)];
  }

  #isBeyond() {
    const { first, jobs, total } = this.#data;
    const top = -this.#parts.list.getBoundingClientRect().top / this.rowHeight();
    const bottom = top + window.innerHeight / this.rowHeight();
    return (first > 0 && top < first) || (first + jobs.length < total && bottom > first + jobs.length);
  }

  #scrolled() {
    if (this.isShown && !this.#open && !this.#mover.isMoving && this.#isBeyond()) this.load();
  }

  #complain(error) {
    const { problem } = this.#parts;
    problem.hidden = !error?.message;
    setText(problem, error?.message ?? '');
  }

  #closeMenus(target) {
    for (const menu of this.#parts.list.querySelectorAll('details[open]')) {
      if (!target || !menu.contains(target)) {
        const hadFocus = menu.contains(document.activeElement);
        menu.open = false;
        if (hadFocus && !target) menu.firstElementChild.focus();
      }
    }
  }

  #takeClick(event) {
    const button = event.target.closest('[data-action]');
    const row = this.#rows.get(event.target.closest('.lt-row')?.dataset.job);
    if (!button || !row) return;
    this.#closeMenus(null);
    actOnce(button, () => this.#act(button.dataset.action, row.job));
  }

  #act(action, job) {
    const acts = {
      watch: () => watch(job.id),
      edit: () => editJob(job).catch((error) => this.#complain(error)),
      pause: () => this.change(() => call('jobs_pause', [job.id])),
      resume: () => this.change(() => call('jobs_resume', [job.id])),
      stop_after_section: () => this.change(() => call('jobs_cancel', [job.id], true)),
      cancel: () => this.change(() => call('jobs_cancel', [job.id], false)),
      duplicate: () => this.change(() => call('jobs_duplicate', job.id, {}))
        .then((isDone) => isDone && this.report(`A copy of ${job.title} is at the end of the queue.`)),
      remove: () => {
        this.#assumeAway(job);
        return this.change(async () => {
          await call('jobs_remove', [job.id]);
          this.#undo.offer(job.id, job.title);
        });
      },
      earlier: () => this.step(job, -1),
      later: () => this.step(job, 1),
      first: () => this.sendTo('first', job),
      last: () => this.sendTo('last', job),
    };
    return acts[action]();
  }
}

/** Set up the panel. */
export default function startQueue({ element }) {
  return new Queue(element.querySelector('.lt-queue'));
}

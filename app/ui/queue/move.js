// Moving rows: by the pointer or a finger on the grip, and by the arrow keys on it.
import { isMovable } from './row.js';

const SLACK = 4; // pixels that a press may move before it counts as a drag
const EDGE = 72; // pixels from the window's edge within which the page scrolls
const SPEED = 10; // pixels per frame

/** The mover of a queue's rows. */
export class Mover {
  #list;
  #queue;
  #drag = null; // { job, row, from, to, pointer, start, scroll }

  constructor(list, queue) {
    this.#list = list;
    this.#queue = queue;
    list.addEventListener('keydown', (event) => this.#takeKey(event));
    list.addEventListener('pointerdown', (event) => this.#begin(event));
    list.addEventListener('pointermove', (event) => this.#follow(event));
    list.addEventListener('pointerup', () => this.#end(true));
    list.addEventListener('pointercancel', () => this.#end(false));
    document.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.#end(false); });
  }

  /** Whether a row is being dragged. */
  get isMoving() { return this.#drag !== null; }

  #takeKey(event) {
    const row = event.target.closest('.lt-row-grip') && this.#rowAt(event.target);
    if (!row) return;
    const { job } = row;
    const act = {
      ArrowUp: () => this.#queue.step(job, -1),
      ArrowDown: () => this.#queue.step(job, 1),
      Home: () => this.#queue.sendTo('first', job),
      End: () => this.#queue.sendTo('last', job),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    row.element.scrollIntoView({ block: 'nearest' });
  }

  #rowAt(target) {
    return this.#queue.rowOf(target.closest('.lt-row')?.dataset.job);
  }

  #begin(event) {
    const row = event.target.closest('.lt-row-grip') && this.#rowAt(event.target);
    if (!row || event.button !== 0 || this.#drag) return;
    const from = this.#queue.jobs.findIndex((job) => job.id === row.job.id);
    if (from < 0) return;
    row.handle.setPointerCapture(event.pointerId);
    const { clientY } = event;
    this.#drag = { row, job: row.job, from, to: from, pointer: clientY, start: clientY, scroll: window.scrollY, moved: false };
  }

  #follow(event) {
    const drag = this.#drag;
    if (!drag) return;
    drag.pointer = event.clientY;
    if (!drag.moved && Math.abs(drag.pointer - drag.start) < SLACK) return;
    if (!drag.moved) {
      drag.moved = true;
      drag.row.element.classList.add('lt-moving');
      this.#list.classList.add('lt-sorting');
      requestAnimationFrame(() => this.#scroll());
    }
    this.#place();
  }

  #scroll() {
    const drag = this.#drag;
    if (!drag) return;
    const box = this.#list.getBoundingClientRect();
    const by = drag.pointer < EDGE ? -SPEED : drag.pointer > window.innerHeight - EDGE ? SPEED : 0;
    if (by && (by < 0 ? box.top < EDGE : box.bottom > window.innerHeight - EDGE)) {
      window.scrollBy(0, by);
      this.#place();
    }
    requestAnimationFrame(() => this.#scroll());
  }

  #place() {
    const { jobs, first } = this.#queue;
    const drag = this.#drag;
    const height = this.#queue.rowHeight();
    const least = jobs.filter((job) => !isMovable(job)).length;
    const at = Math.floor((drag.pointer - this.#list.getBoundingClientRect().top) / height) - first;
    drag.to = Math.max(least, Math.min(jobs.length - 1, at));
    const moved = drag.pointer - drag.start + window.scrollY - drag.scroll;
    drag.row.element.style.transform = `translateY(${moved}px)`;
    jobs.forEach((job, index) => {
      if (index === drag.from) return;
      const gap = index > drag.from && index <= drag.to ? -1 : index < drag.from && index >= drag.to ? 1 : 0;
      this.#queue.rowOf(job.id).element.style.transform = gap ? `translateY(${gap * height}px)` : '';
    });
  }

  #end(isDropped) {
    const drag = this.#drag;
    if (!drag) return;
    this.#drag = null;
    this.#list.classList.remove('lt-sorting');
    drag.row.element.classList.remove('lt-moving');
    for (const job of this.#queue.jobs) {
      const row = this.#queue.rowOf(job.id);
      if (row) row.element.style.transform = '';
    }
    if (isDropped && drag.moved && drag.to !== drag.from) this.#queue.move(drag.job, drag.to);
    else this.#queue.load();
  }
}

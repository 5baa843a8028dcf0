// The bar that offers to undo a removal, until it is closed or a later removal takes its place.
import { onPress, setText } from '../elements.js';

const TOGETHER = 10000; // milliseconds within which removals are undone together

/** The bar. */
export class Undo {
  #bar;
  #jobs = [];
  #last = 0; // the time of the last removal

  /** `restore` is called with the jobs to bring back, and returns whether they are. */
  constructor(bar, restore) {
    this.#bar = bar;
    const button = bar.querySelector('.lt-undo-do');
    onPress(button, async () => {
      if (await restore(this.#jobs)) this.#close();
    });
    bar.querySelector('.lt-undo-close').addEventListener('click', () => this.#close());
  }

  /** Offer to bring a job back, together with those that were removed just before it. */
  offer(job, title) {
    if (Date.now() - this.#last > TOGETHER) this.#jobs = [];
    this.#last = Date.now();
    this.#jobs = [...this.#jobs, job];
    const count = this.#jobs.length;
    setText(this.#bar.querySelector('span'), count === 1 ? `Removed: ${title}` : `Removed: ${count} videos`);
    this.#bar.hidden = false;
  }

  #close() {
    this.#jobs = [];
    this.#bar.hidden = true;
  }
}

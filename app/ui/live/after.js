// What can be done with the video on the stage once it is over. History offers the same for any video.
import { call } from '../calls/call.js';
import { actOnce, make } from '../elements.js';
import { newSeed } from '../form/seed.js';
import { Branch } from '../history/branch.js';
import { showStar } from '../history/card.js';

/** The actions beside the download. */
export class After {
  #parts;
  #say;
  #star;
  #branch = null; // made when one of its folds is first opened
  #folds;
  #opened = null;
  #job = '';

  /** `expect` is called when a user has queued another video. */
  constructor(box, expect) {
    const find = (selector) => box.querySelector(selector);
    this.#parts = box.querySelectorAll('.lt-after');
    this.#say = find('.lt-after-say');
    this.#folds = [find('.lt-continue'), find('.lt-longer')];
    for (const fold of this.#folds) {
      fold.addEventListener('toggle', () => {
        if (!fold.open || !this.#opened) return;
        this.#branch ??= new Branch(...this.#folds, (words, job) => {
          if (job) expect();
          this.#report(words, job);
        });
        this.#branch.show(this.#opened);
        fold.open = true;
      });
    }
    const again = find('.lt-again');
    again.addEventListener('click', () => actOnce(again, async () => {
      const seed = newSeed();
      expect();
      const made = await call('jobs_duplicate', this.#job, { seed });
      this.#report(`The same video with the seed ${seed} is in the queue.`, made.id);
    }, (words) => this.#report(words)));
    const star = this.#star = find('.lt-star');
    star.addEventListener('click', () => actOnce(star, async () => {
      const { card } = this.#opened;
      const [job] = await call('jobs_favourite', [card.job], !card.favourite);
      card.favourite = job.favourite;
      showStar(star, card);
    }, (words) => this.#report(words)));
  }

  /** Offer what a scene's video allows. */
  async show({ job, isOpen, video }) {
    const now = !isOpen && video ? job : '';
    if (now === this.#job) return;
    this.#job = now;
    this.#report('');
    this.#opened = null;
    for (const part of this.#parts) part.hidden = true;
    for (const fold of this.#folds) fold.open = false;
    const opened = now && await call('history_open', now).catch(() => null); // it may be removed meanwhile
    if (!opened || now !== this.#job) return;
    for (const part of this.#parts) part.hidden = false;
    this.#opened = opened;
    showStar(this.#star, opened.card);
  }

  #report(words, job = '') {
    const link = make('a', { href: `#history/${encodeURIComponent(job)}`, textContent: 'Show it' });
    this.#say.replaceChildren(words, ...(job ? [' ', link] : []));
  }
}

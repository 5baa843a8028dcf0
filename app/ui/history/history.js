// The History tab: the gallery with all videos, or one opened video, which has its own address.
import { call } from '../calls/call.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { Undo } from '../queue/undo.js';
import { goTo, place, whenShown } from '../tabs.js';
import { Opened } from './opened.js';
import { Gallery } from './gallery.js';
import { pastView } from '../live/film.js';

const LEAST_PAUSE = 1000; // milliseconds between two refreshes
const MOST_WORDS = 60; // characters of a prompt beside Undo

/** The tab. */
class History {
  #root;
  #gallery;
  #opened = null; // made when the first video is opened
  #opening = null; // the promise of it
  #job = ''; // the video that is open
  #scroll = 0; // where the gallery was left
  #revision = null; // of the jobs that are shown
  #looked = 0;
  #removed = ''; // the video that was removed last
  #isLost = false; // whether the last link led to no video
  #undo;

  constructor(root) {
    this.#root = root;
    this.#gallery = new Gallery(root);
    this.#undo = new Undo(root.querySelector('.lt-undo'), (jobs) => this.#restore(jobs));
    whenShown('history', (job) => this.#turnTo(job));
    onJobsReported(() => this.#follow());
    root.addEventListener('keydown', (event) => this.#takeKey(event));
  }

  #find(selector) {
    return this.#root.querySelector(selector);
  }

  async #turnTo(job) {
    const before = this.#job;
    this.#job = job;
    this.#find('.lt-gallery').hidden = Boolean(job);
    this.#find('.lt-past-open').hidden = !job;
    this.#root.dataset.state = job ? 'open' : 'gallery';
    this.#revision = queueNow().revision;
    if (job) {
      if (!before) this.#scroll = this.#scrolled;
      this.#opening ??= this.#makeOpened();
      await this.#opening;
      if (job === this.#job) await this.#opened.open(job);
    } else {
      this.#opened?.close();
      if (before) this.#comeBack(before);
      this.#gallery.note = this.#isLost ? 'The video of that link is not here any more; these are all videos.' : '';
      this.#isLost = false;
      await this.#gallery.refresh();
    }
  }

  async #makeOpened() {
    const root = this.#find('.lt-past-open');
    root.replaceChildren(await pastView);
    this.#opened = new Opened(root, (card) => this.#remove(card), () => this.#lead());
  }

  /** Show all videos in place of one that is not there. */
  #lead() {
    this.#isLost = true;
    goTo('history');
  }

  // The tabs have scrolled to the top already, so the place is noted while the gallery is scrolled.
  #scrolled = 0;

  noteScroll() {
    if (!this.#job && place()[0] === 'history') this.#scrolled = window.scrollY;
  }

  /** Stop playback if another tab is shown. */
  leave() {
    if (place()[0] === 'history' || !this.#job) return;
    this.#job = '';
    this.#opened?.close();
  }

  #comeBack(job) {
    window.scrollTo(0, this.#scroll);
    if (job === this.#removed) this.#find('.lt-undo-do').focus({ preventScroll: true });
    else this.#gallery.card(job)?.focus();
  }

  // Changes that other pages and programs make are shown, too.
  #follow() {
    const [tab] = place();
    const { isStale } = (this.#job && this.#opened) || this.#gallery;
    const isNews = isStale || queueNow().revision !== this.#revision;
    if (tab !== 'history' || !isNews || performance.now() - this.#looked < LEAST_PAUSE) return;
    this.#looked = performance.now();
    this.#revision = queueNow().revision;
    if (this.#job) this.#opened?.refresh();
    else this.#gallery.refresh();
  }

  async #remove({ job, words }) {
    try {
      await call('jobs_remove', [job]);
    } catch (error) {
      (this.#job ? this.#opened : this.#gallery).report(error.message);
      return;
    }
    this.#removed = job;
    this.#undo.offer(job, words.slice(0, MOST_WORDS) || job);
    this.#find('.lt-undo-do').focus({ preventScroll: true });
    if (this.#job) goTo('history');
    else this.#gallery.refresh();
  }

  async #restore(jobs) {
    try {
      await call('jobs_restore', jobs);
      await this.#gallery.refresh();
      this.#gallery.card(jobs[0])?.focus();
      return true;
    } catch (error) {
      this.#gallery.report(error.message);
      return false;
    }
  }

  #takeKey(event) {
    const isTyping = event.target.matches('input, textarea, select');
    if (event.key === 'Escape' && this.#job && !isTyping && !document.fullscreenElement) goTo('history');
    if (event.key !== 'Delete' || isTyping || this.#job) return;
    const card = this.#gallery.card(event.target.closest('.lt-video-card')?.dataset.job);
    if (card) this.#remove(card.data);
  }
}

/** Set up the tab. */
export default function startHistory({ element }) {
  const history = new History(element.querySelector('.lt-past'));
  window.addEventListener('scroll', () => history.noteScroll(), { passive: true });
  window.addEventListener('hashchange', () => history.leave());
}

// The History tab: the gallery with all videos, or one opened video, which has its own address.
import { call } from '../calls/call.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { Undo } from '../queue/undo.js';
import { goTo, place, whenShown } from '../tabs.js';
import { Opened } from './opened.js';
import { Gallery } from './gallery.js';
import { make } from '../elements.js';
import { emptyView } from '../live/film.js';

const button = (textContent, className = '') => make('button', { type: 'button', textContent, className: `lt-tile ${className}` });
const fold = (summary, ...content) => make('details', {}, make('summary', { textContent: summary }), ...content);

/** Fill the root with the elements of a view, and return those that change. */
async function layOut(root) {
  const view = await emptyView();
  const find = (selector) => view.querySelector(selector);
  for (const part of view.querySelectorAll('.lt-latent, .lt-latent-show, .lt-next, .lt-notify, .lt-pulse, .lt-say')) part.remove();
  find('.lt-status').ariaLabel = 'This video';
  const parts = {
    view, body: make('div', { className: 'lt-opened' }), say: make('p', { className: 'lt-past-say', role: 'status' }),
    back: make('a', { href: '#history', className: 'lt-back', textContent: '← All videos' }),
    made: make('p', { className: 'lt-hint' }), download: find('.lt-download'), resume: find('.lt-resume'),
    use: button('Use these settings'), copy: button('Copy the link'), remove: button('Remove', 'lt-remove'), address: make('code', {}),
    states: make('ol', { className: 'lt-states' }), files: make('ul', { className: 'lt-files' }),
    family: make('nav', { className: 'lt-family', hidden: true, ariaLabel: 'Tree of branches' }), tree: make('ol', { className: 'lt-tree' }),
  };
  find('.lt-prompt').after(parts.made);
  find('.lt-after-say').before(parts.use, parts.copy, parts.remove);
  find('.lt-log').before(fold('What happened', parts.states));
  find('.lt-log').after(fold('Files', parts.files, make('p', { className: 'lt-hint' }, 'Address: ', parts.address)));
  parts.family.append(make('h3', { textContent: 'Branches' }), parts.tree);
  parts.body.append(find('.lt-film'), parts.family, find('.lt-records'));
  view.replaceChildren(make('div', { className: 'lt-opened-top' }, parts.back, parts.say), parts.body);
  root.replaceChildren(view);
  return parts;
}

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
    const parts = await layOut(root);
    this.#opened = new Opened(root, parts, (card) => this.#remove(card), () => this.#lead());
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

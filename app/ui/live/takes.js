// The takes of a section side by side, each playing over and over, of which a user keeps one.
import { call } from '../calls/call.js';
import { arrange, make, onPress, reducedMotion, setText } from '../elements.js';

/** One take. A press shows it on the stage, at the end of the film so far. */
class Tile {
  element = make('li');
  #button = make('button', { type: 'button', className: 'lt-take' });
  #video = make('video', { muted: true, playsInline: true, preload: 'auto' });
  #name = make('b');
  #about = make('span');
  #take = {};

  constructor(open, report) {
    this.#video.setAttribute('aria-hidden', 'true');
    this.#button.append(this.#video, this.#name, this.#about);
    onPress(this.#button, () => open(this.#take.job), report);
    this.element.append(this.#button);
    const again = () => {
      this.#video.currentTime = this.#take.begin;
      if (!reducedMotion.matches) this.#video.play().catch(() => {});
    };
    for (const name of ['loadedmetadata', 'ended']) this.#video.addEventListener(name, again);
    this.#video.addEventListener('timeupdate', () => { if (this.#video.currentTime >= this.#take.end) again(); });
  }

  show(take, isChosen) {
    this.#take = take;
    this.element.dataset.job = take.job;
    this.#button.setAttribute('aria-pressed', String(isChosen));
    setText(this.#name, take.name);
    setText(this.#about, take.now || `seed ${take.seed}`);
    this.#video.poster = take.still;
    if (take.video && !take.now && this.#video.getAttribute('src') !== take.video) this.#video.src = take.video;
  }

  remove() {
    this.#video.removeAttribute('src');
    this.#video.load(); // lets the browser drop what it has loaded
  }
}

/** The takes of one view. */
export class Takes {
  #box;
  #find;
  #makeTile;
  #tiles = new Map(); // by job
  #takes = null;
  #chosen = null;

  /** `open` shows the video of a job, and `report` a sentence. */
  constructor(box, steer, open, report) {
    this.#box = box;
    this.#find = (name) => box.querySelector(`.lt-takes-${name}`);
    this.#makeTile = () => new Tile(open, report);
    const on = (name, work) => onPress(this.#find(name), work, report);
    on('keep', async () => {
      const { name } = this.#chosen;
      await steer.goOn(this.#takes.waits);
      report(`${name} goes on. The others stay in the history.`);
    });
    on('words', () => steer.edit());
    on('more', () => call('jobs_takes', this.#takes.of, 3, this.#takes.keep));
  }

  /** Show takes while a job is on the stage; null for none. */
  show(takes, job) {
    this.#takes = takes;
    this.#box.hidden = !takes;
    const tiles = takes?.tiles ?? [];
    this.#chosen = tiles.find((one) => one.job === job && one.mayGoOn) ?? null;
    for (const gone of [...this.#tiles.keys()].filter((one) => !tiles.some((tile) => tile.job === one))) {
      this.#tiles.get(gone).remove();
      this.#tiles.delete(gone);
    }
    for (const take of tiles) this.#tile(take.job).show(take, take.job === job);
    arrange(this.#box.querySelector('ul'), tiles.map((one) => this.#tile(one.job).element));
    if (!takes) return;
    setText(this.#box.querySelector('h3'), takes.title);
    setText(this.#find('hint'), takes.hint);
    for (const name of ['keep', 'words']) this.#find(name).hidden = !this.#chosen;
    if (this.#chosen) setText(this.#find('keep'), this.#chosen.keep);
    const isSeen = tiles.some((one) => one.job === job);
    const ask = isSeen ? '' : 'Press a take to see it after the film so far.';
    setText(this.#find('next'), this.#chosen ? 'Without an answer it waits.' : ask);
  }

  #tile(job) {
    if (!this.#tiles.has(job)) this.#tiles.set(job, this.#makeTile());
    return this.#tiles.get(job);
  }
}

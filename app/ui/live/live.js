// The live view, which shows each scene that `app/ui/live/scene.py` makes and tells screen readers what changed.
//
// The server sends the scene of the job that is being made. A video that has just finished stays on the stage while
// the next one is made; an announcement beside it leads to that one.
import { call } from '../calls/call.js';
import { setText } from '../elements.js';
import { describe } from '../form/describe.js';
import { reportJobs } from '../jobs.js';
import { announce, bringStage, notify, prepareLine, prepareNotify, showNotify } from './beside.js';
import { keepMarkup, makeFilm } from './film.js';
import { preparePreview } from './preview.js';
import { Pulse } from './pulse.js';
import { follow } from './updates.js';

const TICK = 1000; // milliseconds
// An id begins with the time of its creation.
const comesAfter = (scene, other) => scene.isOpen || scene.job > other.job;

let live = null; // the view of this page

/** Give the stage to the job that a user is about to start, unless another one is being made. */
export const expectStage = () => live?.expect();

/** Bring the stage into view after a start, unless it was refused. */
export function showStage() {
  if (document.querySelector('#notice .lt-error')) live.expect(false);
  else bringStage();
}

/** Show the job that is being made. */
export const watchRunning = () => live.follow();

/** Show a job of any age on the stage, until the user moves on. */
export const openOnStage = async (job) => live.open(await call('jobs_scene', job));

/** The view of the running job, or else of the last one. */
class Live {
  #view;
  #find;
  #film;
  #showPreview;
  #pulse;
  #showLine;
  #now = null; // what the server sent last
  #shown = null; // the scene on the stage
  #stays = false; // whether that is one that has ended, while the server sends another
  #asked = ''; // the job whose last scene has been requested
  #revision = ''; // of the jobs, when the scene of a job that stays was requested
  #isExpecting = false; // whether a user has started a job that is not shown yet
  #watched = false; // whether this page was open when the job on the stage ended

  constructor(view) {
    this.#view = view;
    this.#find = (selector) => view.querySelector(selector);
    this.#film = makeFilm(view, openOnStage, () => this.expect());
    this.#showPreview = preparePreview(view);
    this.#pulse = new Pulse(view);
    this.#showLine = prepareLine(view);
    this.#find('.lt-next button').addEventListener('click', () => this.follow());
    prepareNotify(this.#find('.lt-notify'));
  }

  /** Take a scene from the server, or only the times that have moved since the last one. */
  receive(news) {
    const before = this.#now;
    const scene = 'job' in news ? news : { ...before, ...news };
    this.#now = scene;
    if (this.#shown && scene.job !== this.#shown.job) this.#meetOther(before);
    else {
      this.#stays = false;
      this.#showOnStage(scene);
    }
    document.title = this.#title(scene);
    reportJobs(scene);
    this.#view.dataset.beat = scene.beat; // shows that an update has arrived
  }

  /** Decide what is shown now that the server sends a job other than the one on the stage. */
  #meetOther(before) {
    const [shown, now] = [this.#shown, this.#now];
    const isNews = before?.job === now.job ? before.isOpen : comesAfter(now, shown);
    if (isNews && !now.isOpen) this.#end(now);
    if (this.#isExpecting && comesAfter(now, shown)) {
      this.follow();
      this.#isExpecting = false; // also for a job that was over before its first update came
    } else if (this.#stays || (this.#watched && shown.isWorthKeeping && comesAfter(now, shown))) this.#keep(shown);
    else if (shown.isOpen && now.isOpen) this.#askForEnd(shown.job);
    else this.follow();
  }

  // The job on the stage may have ended between two updates, or be paused, or removed.
  async #askForEnd(job) {
    if (this.#asked === job) return;
    this.#asked = job;
    const scene = await call('jobs_scene', job).catch(() => null);
    this.#asked = '';
    if (this.#shown.job !== job || this.#now.job === job) return;
    if (!scene || !scene.isWorthKeeping) {
      this.follow();
      return;
    }
    this.#end(scene);
    this.#keep(scene);
  }

  // A job that is not over, or one of its takes, may have moved on while the server sends another one.
  async #catchUp({ job }) {
    const { revision } = this.#now.queue;
    if (this.#revision === revision) return;
    this.#revision = revision;
    const scene = await call('jobs_scene', job).catch(() => null);
    if (scene && this.#stays && this.#shown.job === job && this.#now.job !== job) this.#keep(scene);
  }

  #keep(scene) {
    const isNew = !this.#stays;
    this.#stays = true;
    this.#showOnStage(scene);
    this.#showNext(scene);
    this.#showLine(this.#now, 'Next');
    if (!scene.isWorthKeeping || scene.takes) this.#catchUp(scene);
    const { kind, prompt } = this.#now.announcement;
    if (isNew && this.#now.isOpen) this.#announce(`${this.#sentence(scene)} ${kind}: ${prompt}.`);
  }

  /** Announce what the server sends beside the scene on the stage, unless that has it among its takes. */
  #showNext(scene) {
    const isTake = scene.takes?.tiles.some(({ job }) => job === this.#now.job);
    announce(this.#find('.lt-next'), isTake ? null : this.#now);
  }

  #sentence(scene) {
    return this.#watched && !scene.failure ? `${scene.ending.sentence}.` : '';
  }

  /** Show a job until the user moves on. */
  open(scene) {
    this.#watched = true;
    this.#stays = scene.job !== this.#now?.job;
    this.#showOnStage(scene);
    if (this.#stays && this.#now?.job) this.#showNext(scene);
    bringStage();
  }

  /** Give the stage to the next job that begins, or not. */
  expect(isExpecting = true) {
    const isBusy = this.#now !== null && this.#now.isOpen;
    this.#isExpecting = isExpecting && !isBusy;
  }

  /** Show what the server sends. */
  follow() {
    this.#stays = false;
    if (this.#now) this.#showOnStage(this.#now);
  }

  /** Show a scene on the stage, whether or not it has shown one before. */
  #showOnStage(scene) {
    this.#notice(scene);
    this.show(scene);
    this.#pulse.receive(scene);
    if (!this.#stays) {
      announce(this.#find('.lt-next'), null);
      this.#showLine(scene);
    }
    if (this.#isExpecting && scene.isOpen) {
      this.#isExpecting = false;
      bringStage();
    }
  }

  show(scene) {
    // On a narrow screen the video comes first while it is made, and does not leave when it is finished.
    this.#view.dataset.first = scene.isOpen || this.#watched;
    this.#film.show(scene);
    showNotify(this.#find('.lt-notify'), scene.isOpen);
    this.#showPreview(scene.preview || null);
  }

  tick() {
    const isLost = this.#pulse.tick();
    if (isLost) document.title = 'Connection lost · Longtake';
    this.#film.tick();
    if (this.#now) this.#showLine(this.#now, this.#stays ? 'Next' : '');
  }

  #announce(words) {
    setText(this.#find('.lt-say'), words.trim());
  }

  /** Announce what is new in a scene that goes onto the stage. */
  #notice(scene) {
    const before = this.#shown;
    const isOther = before?.job !== scene.job;
    this.#shown = scene;
    if (isOther) this.#watched = false;
    if (!before) {
      if (scene.isOpen) this.#announce(scene.headline);
      return;
    }
    // A job may be over before its first update arrives.
    if (isOther ? scene.job && !scene.isOpen : before.isOpen && !scene.isOpen) this.#end(scene);
    else if (isOther && scene.isOpen) this.#announce(scene.headline);
    else if (scene.isOpen && before.section !== scene.section) {
      this.#announce(`Section ${scene.section} of ${scene.sections} is being made.`);
    }
  }

  #end(scene) {
    const { sentence } = scene.ending;
    if (scene.job === this.#shown.job) this.#watched = true;
    this.#announce(scene.failure ? '' : `${sentence}.`); // the card shows a failure as an alert
    notify(`Longtake: ${sentence.toLowerCase()}`, scene.prompt, scene.job);
    describe(); // a finished job improves the form's estimate
  }

  #title(scene) {
    if (scene.isRunning) return `${Math.floor(scene.percent)} % · Longtake`;
    if (scene.isOpen) return 'Waiting · Longtake';
    return this.#watched ? `${scene.ending.title} · Longtake` : 'Longtake';
  }
}

/** Set up the live view. */
export default function startLive(view) {
  keepMarkup(view);
  live = new Live(view);
  live.show({ job: '', state: 'idle' });
  follow((news) => live.receive(news));
  setInterval(() => live.tick(), TICK);
}

// The live view, which shows each scene that `app/ui/live/scene.py` makes and tells screen readers what changed.
import { setText } from '../elements.js';
import { tellJobs } from '../jobs.js';
import { bringStage, Line } from './line.js';
import { Log } from './log.js';
import { notify, prepareNotify, showNotify } from './notify.js';
import { Player } from './player.js';
import { Preview } from './preview.js';
import { Pulse } from './pulse.js';
import { prepareCopy, showStatus } from './status.js';
import { Strip } from './strip.js';

const TICK = 500; // milliseconds
const ENDS = {
  finished: { short: 'Done', sentence: 'The video is finished' },
  cancelled: { short: 'Ended', sentence: 'The video was ended' },
  interrupted: { short: 'Interrupted', sentence: 'The video was interrupted' },
  paused: { short: 'Paused', sentence: 'The video is paused' },
  failed: { short: 'Failed', sentence: 'The video has failed' },
};
let isStageWanted = false; // whether a person has started a job that is not shown yet

/** Bring the stage into view after a start, unless it was refused. */
export function showStage() {
  if (document.querySelector('#notice .lt-error')) return;
  isStageWanted = !['queued', 'running', 'waiting'].includes(document.querySelector('.lt-view').dataset.state);
  bringStage();
}

const isOpen = (scene) => ['queued', 'running', 'waiting'].includes(scene.state);

/** The view of the running job, or else of the last one. */
class Live {
  #view;
  #player;
  #strip;
  #preview;
  #pulse;
  #log;
  #line;
  #seen = null; // the scene before
  #watched = false; // whether this page was open when the job ended

  constructor(view, subscribe) {
    const find = (selector) => view.querySelector(selector);
    this.#view = view;
    this.#strip = new Strip(find('.lt-strip'), (at) => this.#player.jump(at));
    this.#player = new Player(find('.lt-stage'), (at) => this.#strip.mark(at));
    this.#preview = new Preview(find('.lt-stage'));
    this.#pulse = new Pulse(view, subscribe);
    this.#log = new Log(find('.lt-log'));
    this.#line = new Line(view);
    prepareNotify(find('.lt-notify'));
    prepareCopy(find('.lt-failure'));
  }

  /** Show what the server sent. */
  receive(scene) {
    this.#follow(scene);
    this.show(scene);
    this.#pulse.receive(scene);
    this.#line.show(scene);
    if (isStageWanted && isOpen(scene)) {
      isStageWanted = false;
      bringStage();
    }
    document.title = this.#title(scene);
    tellJobs(scene);
    this.#view.dataset.beat = scene.beat; // shows that an update has arrived
  }

  show(scene) {
    this.#view.dataset.state = scene.state;
    // On a narrow screen the video comes first while it is made, and does not leave when it is finished.
    this.#view.dataset.first = isOpen(scene) || this.#watched;
    if (scene.state !== 'idle') this.#strip.show(scene);
    showStatus(this.#view.querySelector('.lt-status'), scene);
    showNotify(this.#view.querySelector('.lt-notify'), isOpen(scene));
    this.#player.show(scene);
    this.#preview.show(scene.preview || null);
    this.#log.show(scene);
  }

  tick() {
    this.#pulse.tick();
    this.#log.tick();
    if (this.#seen) this.#line.show(this.#seen);
  }

  #announce(words) {
    setText(this.#view.querySelector('.lt-say'), words);
  }

  #follow(scene) {
    const before = this.#seen;
    const isOther = before?.job !== scene.job;
    this.#seen = scene;
    if (isOther) this.#watched = false;
    if (!before) {
      if (isOpen(scene)) this.#announce(scene.headline);
      return;
    }
    // A job may be over before its first update arrives.
    if (isOther ? scene.job && !isOpen(scene) : isOpen(before) && !isOpen(scene)) this.#end(scene);
    else if (isOther && isOpen(scene)) this.#announce(scene.headline);
    else if (isOpen(scene) && before.section !== scene.section) {
      this.#announce(`Section ${scene.section} of ${scene.sections} is being made.`);
    }
  }

  #end(scene) {
    const { sentence } = ENDS[scene.state];
    this.#watched = true;
    this.#announce(scene.failure ? '' : `${sentence}.`); // a failure is an alert of its own
    notify(`Longtake: ${sentence.toLowerCase()}`, scene.prompt, scene.job);
  }

  #title(scene) {
    if (scene.state === 'running') return `${Math.floor(scene.percent)} % · Longtake`;
    if (scene.state === 'queued' || scene.state === 'waiting') return 'Waiting · Longtake';
    return this.#watched ? `${ENDS[scene.state].short} · Longtake` : 'Longtake';
  }
}

/** Bring the live view to life. */
export default function startLive({ element, props, trigger, watch }) {
  const live = new Live(element.querySelector('.lt-view'), () => trigger('submit'));
  live.show(props.value);
  if (props.value.beat) live.receive(props.value);
  watch('value', () => live.receive(props.value));
  const timer = setInterval(() => (element.isConnected ? live.tick() : clearInterval(timer)), TICK);
}

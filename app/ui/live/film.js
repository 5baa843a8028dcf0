// A video with all that belongs to it: stage, sections, state, actions and records. The Create tab shows the one that
// is being made, and the History tab any other.
import { setText } from '../elements.js';
import { Actions } from './actions.js';
import { Anew } from './anew.js';
import { Log } from './log.js';
import { Player } from './player.js';
import { prepareCopy, showStatus } from './status.js';
import { Strip } from './strip.js';
import { Takes } from './takes.js';

const NOTHING = { job: '', poster: null, crop: 0.5, ratio: null, video: null };
let keep;
const markup = new Promise((done) => { keep = done; }); // as the page came with it

function without(view, parts) {
  for (const part of view.querySelectorAll(parts)) part.remove();
  return view;
}

/** Keep the markup of a view for a video of the history, before anything is shown in it, and take that out of it. */
export function keepMarkup(view) {
  keep(without(view.cloneNode(true), '.lt-of-now'));
  without(view, '.lt-of-past');
}

/** Return the view for a video of the history, once the page has its markup: a link may open a video before that. */
export const pastView = () => markup;

/** A film in a view. */
export class Film {
  #view;
  #player;
  #strip;
  #log;
  #actions;
  #anew;
  #takes;

  /** `open` shows another job; `expect` is called when a user has queued or resumed a video. */
  constructor(view, open, expect = () => {}) {
    const find = (selector) => view.querySelector(selector);
    this.#view = view;
    const report = (words, job) => this.report(words, job);
    this.#strip = new Strip(find('.lt-strip'), (at) => this.#player.jump(at), (job, cell) => this.#anew.offer(job, cell));
    this.#player = new Player(find('.lt-stage'), (at) => this.#strip.mark(at));
    this.#log = new Log(find('.lt-log'));
    this.#actions = new Actions(find('.lt-actions'), expect);
    this.#anew = new Anew(find('.lt-anew'), (count) => this.#actions.branchFrom(count), report);
    this.#takes = new Takes(find('.lt-takes'), this.#actions.steer, open, report);
    prepareCopy(find('.lt-failure'));
  }

  /** Show a scene, with a video's records if the history has sent them. */
  show(scene) {
    const film = this.#view.querySelector('.lt-film');
    this.#view.dataset.state = scene.state;
    film.dataset.words = scene.words ?? 'beneath';
    film.style.setProperty('--ratio', scene.ratio || '');
    setText(this.#view.querySelector('.lt-empty b'), scene.blank ?? 'No video yet');
    if (scene.job) this.#strip.show(scene);
    showStatus(this.#view, scene);
    this.#actions.show(scene);
    this.#anew.show(scene);
    this.#takes.show(scene.takes ?? null, scene.job);
    this.#player.show(scene);
    this.#log.show(scene);
  }

  /** Show a sentence beside the actions, with a link to a job if one is given. */
  report(words, job) { this.#actions.report(words, job); }

  /** Follow what is logged. */
  tick() { this.#log.tick(); }

  /** Stop playback. */
  clear() {
    this.#player.show(NOTHING);
    this.#log.show({ log: '' });
    this.#takes.show(null);
  }
}

// The actions on a video: those on the job while it is made, and those that lead on from it once it rests.
import { call } from '../calls/call.js';
import { make, onPress, setText } from '../elements.js';
import { offerPicture } from '../form/fill.js';
import { newSeed } from '../form/values.js';
import { Branch } from '../history/branch.js';
import { setFavourite, showStar } from '../history/card.js';
import { prepareSteer } from './steer.js';

/** The buttons of one view. */
export class Actions {
  #find;
  #jobs; // the buttons that act on the job, by the names that the server gives them
  #onward;
  #folds;
  steer;
  #branch = null; // made when one of its folds is first opened
  #offered = ''; // the job from which the others lead on
  #scene = {};
  #expect;

  /** `expect` is called when a user has queued or resumed a video. */
  constructor(box, expect) {
    this.#find = (selector) => box.querySelector(selector);
    this.#expect = expect;
    this.#jobs = { resume: this.#find('.lt-resume'), pause: this.#find('.lt-pause'), stop_after_section: this.#find('.lt-stop') };
    this.#onward = box.querySelectorAll('.lt-after');
    this.#folds = [this.#find('.lt-change'), this.#find('.lt-longer')];
    this.steer = prepareSteer(this.#find('.lt-steer'), (words, job) => this.report(words, job));
    this.#listen();
  }

  #listen() {
    const on = (button, act) => onPress(button, act, (words) => this.report(words));
    on(this.#jobs.pause, () => call('jobs_pause', [this.#scene.job]));
    on(this.#jobs.stop_after_section, () => call('jobs_cancel', [this.#scene.job], true));
    on(this.#jobs.resume, async () => {
      this.#expect();
      await this.steer.goOn();
      this.report('The video continues; finished work is not repeated.');
    });
    on(this.#find('.lt-again'), async () => {
      const seed = newSeed();
      this.#expect();
      const made = await call('jobs_duplicate', this.#scene.job, { seed });
      this.report(`The same video with the seed ${seed} is in the queue.`, made.id);
    });
    on(this.#find('.lt-first'), () => offerPicture(this.#scene.first));
    on(this.#find('.lt-favourite'), async () => {
      this.#scene = await setFavourite(this.#scene);
      this.#showStar();
    });
    for (const fold of this.#folds) {
      fold.addEventListener('toggle', () => {
        if (fold.open) this.#offerBranch().catch((error) => this.report(error.message));
      });
    }
  }

  /** Show the buttons that apply to a scene. */
  show(scene) {
    const isOther = scene.job !== this.#scene.job;
    this.#scene = scene;
    this.steer.show(scene);
    for (const [name, button] of Object.entries(this.#jobs)) {
      const shown = scene.buttons?.[name];
      button.hidden = !shown;
      if (!shown) continue;
      setText(button, shown.label);
      button.disabled = !shown.enabled;
    }
    this.#find('.lt-first').hidden = !scene.first;
    const offered = scene.offersMore ? scene.job : '';
    if (offered) this.#showStar();
    if (offered === this.#offered) return;
    this.#offered = offered;
    if (isOther || offered) this.report('');
    for (const fold of this.#folds) fold.open &&= !isOther;
    for (const part of this.#onward) part.hidden = !offered && !part.open;
  }

  /** Open the form for a branch that keeps so many sections. */
  async branchFrom(keep) {
    const [fold] = this.#folds;
    fold.hidden = false;
    await this.#offerBranch();
    fold.open = true;
    this.#branch.choose(keep);
    fold.scrollIntoView({ block: 'nearest' });
  }

  #showStar() { showStar(this.#find('.lt-favourite'), this.#scene.favourite, this.#scene.prompt); }

  async #offerBranch() {
    const { job } = this.#scene;
    const opened = await call('history_open', job);
    if (job !== this.#scene.job) return;
    this.#branch ??= new Branch(...this.#folds, (words, made) => {
      if (made) this.#expect();
      this.report(words, made);
    });
    this.#branch.show(opened);
  }

  /** Show a sentence, with a link to a job if one is given. */
  report(words, job = '') {
    const link = make('a', { href: `#history/${encodeURIComponent(job)}`, textContent: 'Show it' });
    this.#find('.lt-after-say').replaceChildren(words, ...(job ? [' ', link] : []));
  }
}

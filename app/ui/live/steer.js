// The fold with which a user directs a video while it grows: other words for what comes next, a wait, takes.
import { call } from '../calls/call.js';
import { actOnce, onPress, onSubmit, setText } from '../elements.js';

/** The fold of one view. */
export class Steer {
  #fold;
  #find;
  #report;
  #scene = null;
  #words = ''; // what the server said last, so that its news does not replace what is being typed
  #shown = ''; // the same as the field has it

  /** `report` shows a sentence, with a link to a job if one is given. */
  constructor(fold, report) {
    this.#fold = fold;
    this.#find = (name) => fold.querySelector(`.lt-steer-${name}`);
    this.#report = report;
    const wait = this.#find('wait');
    wait.addEventListener('change', () => actOnce(wait, () => this.#wait(wait.checked), report));
    onSubmit(fold.querySelector('form'), () => this.#change(), report);
    onPress(this.#find('takes'), () => this.#takes(), report);
  }

  async #wait(waits) {
    await call('jobs_wait', [this.#scene.job], waits);
    this.#report(waits ? 'It waits for you after each section; the device is free meanwhile.' : 'It goes on by itself.');
  }

  async #change() {
    const { value } = this.#find('words');
    await call('jobs_change', this.#scene.job, { prompt: value.trim() });
    this.#shown = value;
    this.#report('What comes next has the new words. What is made keeps its own.');
  }

  /** Let the video go on with the words in the field, and without a wait for the user if it does not wait. */
  async goOn(waits = true) {
    const { job, steering } = this.#scene;
    if (steering && this.#find('words').value !== this.#shown) await this.#change();
    if (!waits) await call('jobs_wait', [job], false);
    await call('jobs_resume', [job]);
  }

  /** Show the field of the words. */
  edit() {
    this.#fold.open = true;
    this.#find('words').focus();
  }

  async #takes() {
    await call('jobs_takes', this.#scene.job, 3, null);
    this.#report('Three takes are in the queue. Each waits after one section, so that you can keep the best.');
  }

  /** Show what a scene allows. */
  show(scene) {
    this.#scene = scene;
    const steering = scene.steering;
    this.#fold.hidden = !steering;
    if (!steering) return;
    if (this.#find('wait').ariaBusy !== 'true') this.#find('wait').checked = steering.waits;
    if (steering.words !== this.#words && document.activeElement !== this.#find('words')) {
      this.#find('words').value = this.#words = steering.words;
      this.#shown = this.#find('words').value;
    }
    setText(this.#find('hint'), steering.hint);
    this.#find('takes').disabled = !steering.mayTake;
  }
}

// The fold with which a user directs a video while it grows: other words for what comes next, a wait, takes.
import { call } from '../calls/call.js';
import { actOnce, setText } from '../elements.js';

/** The fold of one view. */
export class Steer {
  #fold;
  #find;
  #report;
  #scene = null;
  #words = ''; // what the server said last, so that its news does not replace what is being typed

  /** `report` shows a sentence, with a link to a job if one is given. */
  constructor(fold, report) {
    this.#fold = fold;
    this.#find = (name) => fold.querySelector(`.lt-steer-${name}`);
    this.#report = report;
    const act = (button, work) => actOnce(button, work, report);
    this.#find('wait').addEventListener('change', (event) => act(event.target, () => this.#wait(event.target.checked)));
    fold.querySelector('form').addEventListener('submit', (event) => {
      event.preventDefault();
      act(this.#find('change'), () => this.#change());
    });
    this.#find('takes').addEventListener('click', (event) => act(event.currentTarget, () => this.#takes()));
  }

  async #wait(waits) {
    await call('jobs_wait', [this.#scene.job], waits);
    this.#report(waits ? 'It waits for you after each section; the device is free meanwhile.' : 'It goes on by itself.');
  }

  async #change() {
    await call('jobs_change', this.#scene.job, { prompt: this.#find('words').value.trim() });
    this.#report('What comes next has the new words. What is made keeps its own.');
  }

  async #takes() {
    const takes = await call('jobs_takes', this.#scene.job, 3, null);
    this.#report('Three takes are in the queue. Each waits after one section: resume the one that you like.', takes[0].id);
  }

  /** Show what a scene allows. */
  show(scene) {
    this.#scene = scene;
    const steering = scene.steering;
    this.#fold.hidden = !steering;
    if (!steering) return;
    if (this.#find('wait').ariaBusy !== 'true') this.#find('wait').checked = steering.waits;
    if (steering.words !== this.#words && document.activeElement !== this.#find('words')) this.#find('words').value = this.#words = steering.words;
    setText(this.#find('hint'), steering.hint);
    this.#find('takes').disabled = !steering.mayTake;
  }
}

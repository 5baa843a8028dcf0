// The announcement beside a finished video: the video that is made meanwhile, with a button that shows it.
import { setText } from '../elements.js';

/** The announcement. */
export class Next {
  #box;

  /** `follow` is called when the user wants to see what is announced. */
  constructor(box, follow) {
    this.#box = box;
    box.querySelector('button').addEventListener('click', follow);
  }

  /** Announce a scene, or nothing. */
  show(scene) {
    this.#box.hidden = !scene;
    if (!scene) return;
    const { kind, prompt, now, label } = scene.announcement;
    const find = (selector) => this.#box.querySelector(selector);
    Object.assign(this.#box.dataset, { job: scene.job, state: scene.state });
    setText(find('.lt-next-kind'), kind);
    setText(find('.lt-next-prompt'), prompt);
    setText(find('.lt-next-now'), now);
    find('i').style.transform = `scaleX(${(scene.isRunning ? scene.percent : 0) / 100})`;
    setText(find('button'), label);
    find('button').ariaLabel = `${label}: ${prompt}`;
  }
}

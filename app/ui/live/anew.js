// The offer to make a finished section again, which a press on that section brings.
import { call } from '../calls/call.js';
import { onPress, setText } from '../elements.js';

/** The offer of one view. */
export class Anew {
  #box;
  #job = '';
  #kept = 0; // the sections before the pressed one, in the order of making

  /** `branch` opens the form for a branch that keeps so many sections, and `report` shows a sentence. */
  constructor(box, branch, report) {
    this.#box = box;
    onPress(box.querySelector('.lt-anew-branch'), () => branch(this.#kept), report);
    onPress(box.querySelector('.lt-anew-takes'), async () => {
      const takes = await call('jobs_takes', this.#job, 3, this.#kept);
      report('Three takes of this section are in the queue. What was made stays.', takes[0].id);
    }, report);
  }

  /** Offer to make a section of a job again. */
  offer(job, cell) {
    this.#job = job;
    this.#kept = cell.number - 1;
    this.#box.hidden = !cell.mayBranch;
    setText(this.#box.querySelector('span'), `Section ${cell.label}`);
  }

  /** Withdraw the offer if another job is shown. */
  show(scene) {
    if (scene.job !== this.#job) this.#box.hidden = true;
  }
}

// The buttons of the job on the stage: pause, stop after this section, and resume.
import { call } from '../calls/call.js';
import { setText } from '../elements.js';

/** The buttons. */
export class JobButtons {
  #parts;
  #job = '';

  /** `resumed` is called when a user resumes a job. */
  constructor(box, resumed) {
    const find = (selector) => box.querySelector(selector);
    this.#parts = { resume: find('.lt-resume'), pause: find('.lt-pause'), stop_after_section: find('.lt-stop') };
    const { resume, pause, stop_after_section: stop } = this.#parts;
    resume.addEventListener('click', resumed);
    this.#ask(resume, 'jobs_resume');
    this.#ask(pause, 'jobs_pause');
    this.#ask(stop, 'jobs_cancel', true);
  }

  /** Show the buttons that apply to a scene. */
  show(scene) {
    this.#job = scene.job;
    for (const [name, button] of Object.entries(this.#parts)) {
      const shown = scene.buttons?.[name];
      button.hidden = !shown;
      if (!shown) continue;
      setText(button, shown.label);
      button.disabled = !shown.enabled;
    }
  }

  #ask(button, name, ...rest) {
    button.addEventListener('click', () => {
      button.disabled = true; // until the next scene
      call(name, [this.#job], ...rest).catch((error) => console.info('job:', error.message));
    });
  }
}

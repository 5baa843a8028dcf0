// The buttons of the job on the stage: pause, stop after this section, and resume.
import { call } from '../calls/call.js';
import { setText } from '../elements.js';

const RESUMABLE = ['paused', 'interrupted', 'failed', 'cancelled'];
const PAUSE = { none: 'Pause Generation', pause: 'Pausing …' };
const STOP = { none: 'Stop after this section', stop_after_section: 'Ends after this section' };

/** The buttons. */
export class JobButtons {
  #parts;
  #job = '';
  #asked = new Map(); // the requests for the job that no scene has confirmed yet

  /** `resumed` is called when a user resumes a job. */
  constructor(box, resumed) {
    const find = (selector) => box.querySelector(selector);
    this.#parts = { resume: find('.lt-resume'), pause: find('.lt-pause'), stop: find('.lt-stop') };
    this.#parts.resume.addEventListener('click', () => {
      resumed();
      this.#ask('resume', 'jobs_resume', [this.#job]);
    });
    this.#parts.pause.addEventListener('click', () => this.#ask('pause', 'jobs_pause', [this.#job]));
    this.#parts.stop.addEventListener('click', () => this.#ask('stop_after_section', 'jobs_cancel', [this.#job], true));
  }

  /** Show the buttons that apply to a scene. */
  show(scene) {
    const { resume, pause, stop } = this.#parts;
    if (scene.job !== this.#job || scene.state !== 'running') this.#asked.clear();
    this.#job = scene.job;
    const isMade = scene.state === 'running';
    const wish = ['pause', 'stop_after_section'].find((one) => scene.wishes?.includes(one) || this.#asked.has(one)) ?? 'none';
    const isEnding = scene.wishes?.includes('cancel');
    resume.hidden = !RESUMABLE.includes(scene.state);
    pause.hidden = !isMade || isEnding || wish === 'stop_after_section';
    stop.hidden = !isMade || isEnding || wish === 'pause' || scene.sections < 2;
    setText(pause, PAUSE[wish] ?? PAUSE.none);
    setText(stop, STOP[wish] ?? STOP.none);
    pause.disabled = wish !== 'none';
    stop.disabled = wish !== 'none' || scene.section === scene.sections; // nothing comes after the last one
  }

  async #ask(what, ...request) {
    this.#asked.set(what, true);
    try {
      await call(...request);
    } catch (error) {
      this.#asked.delete(what);
      console.info('job:', error.message);
    }
  }
}

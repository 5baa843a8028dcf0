// The log of the job that is shown, which is read while its fold is open and followed while the job is made.
import { setText } from '../elements.js';

const PAUSE = 2000; // milliseconds between two readings
const NEAR = 8; // pixels from the end within which a reader follows the log

/** The fold with the log of a job. */
export class Log {
  #fold;
  #text;
  #address = '';
  #isRunning = false;
  #due = Infinity; // the time of the next reading

  constructor(fold) {
    this.#fold = fold;
    this.#text = fold.querySelector('pre');
    fold.addEventListener('toggle', () => this.#soon());
  }

  show(scene) {
    this.#fold.hidden = !scene.log;
    if (!scene.log || (scene.log === this.#address && scene.isRunning === this.#isRunning)) return;
    if (scene.log !== this.#address) setText(this.#text, '');
    this.#address = scene.log;
    this.#isRunning = scene.isRunning;
    this.#soon();
  }

  tick() {
    if (this.#fold.open && this.#address && Date.now() >= this.#due) this.#read();
  }

  #soon() {
    this.#due = 0;
    this.tick();
  }

  async #read() {
    const address = this.#address;
    this.#due = Date.now() + PAUSE;
    let text = '';
    try {
      const answer = await fetch(new URL(address, document.baseURI), { cache: 'no-store' });
      text = answer.ok ? await answer.text() : 'Nothing has been logged for this video.';
    } catch { // The server does not answer; the next reading may succeed.
      return;
    }
    if (address !== this.#address) return;
    const box = this.#text;
    // The engine may log a little more after the job's end.
    if (!this.#isRunning && box.textContent === text) this.#due = Infinity;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    setText(box, text);
    if (follows) box.scrollTop = box.scrollHeight;
  }
}

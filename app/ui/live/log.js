// The log of the job that is shown, which is read while its fold is open and followed while the job is made.
import { setText } from '../elements.js';

const PAUSE = 2000; // milliseconds between two readings
const NEAR = 8; // pixels from the end within which a reader follows the log

/** Bring the fold with the log of a job to life. */
export function prepareLog(fold) {
  const box = fold.querySelector('pre');
  let shown = { log: '', isRunning: false };
  let due = Infinity; // the time of the next reading

  async function read() {
    const address = shown.log;
    due = Date.now() + PAUSE;
    // If the server does not answer, the next reading may succeed.
    const answer = await fetch(new URL(address, document.baseURI), { cache: 'no-store' }).catch(() => null);
    const text = answer?.ok === false ? 'Nothing has been logged for this video.' : await answer?.text().catch(() => undefined);
    if (text === undefined || address !== shown.log) return;
    // The engine may log a little more after the job's end.
    if (!shown.isRunning && box.textContent === text) due = Infinity;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    setText(box, text);
    if (follows) box.scrollTop = box.scrollHeight;
  }

  function tick() {
    if (fold.open && shown.log && Date.now() >= due) read();
  }

  function soon() {
    due = 0;
    tick();
  }

  fold.addEventListener('toggle', soon);
  return {
    tick,
    show({ log, isRunning }) {
      fold.hidden = !log;
      if (!log || (log === shown.log && isRunning === shown.isRunning)) return;
      if (log !== shown.log) setText(box, '');
      shown = { log, isRunning };
      soon();
    },
  };
}

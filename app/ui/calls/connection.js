// The line that says what is wrong with the connection, in sight wherever the page is scrolled.
import { setText } from '../elements.js';

const LATE_AFTER = 1500; // milliseconds
const LEGIBLE = 4000; // milliseconds for which a sentence stays at least
const PRESSED = 'Once the server answers, this page shows what your press has done; if nothing, press again.';
const LATE = 'This page waits for the answer; do not press again.';

let lost = ''; // what follows if the stream of updates is lost
let away = 0; // when a call had no answer; 0 if updates have come since
const late = new Set(); // the answers that are late

function show() {
  const gone = (lost && 'Connection lost.') || (away && 'The server does not answer.') || (late.size && 'The server has not answered yet.');
  const rest = (away && PRESSED) || (late.size && LATE) || lost;
  setText(document.querySelector('.lt-lost'), gone ? `${gone} ${rest}` : '');
}

/** Say that the stream of updates is lost, and what follows from that; "" if it is not. */
export function sayLost(words) {
  lost = words;
  show();
}

/** Note that a call had no answer. */
export function noteAway() {
  away = performance.now();
  show();
}

/** Note that an update has come. */
export function noteBack() {
  if (performance.now() - away < LEGIBLE) return;
  away = 0;
  show();
}

/** Return what an answer brings; if it is late, the line says so until then. */
export async function waitFor(answer) {
  const timer = setTimeout(() => {
    late.add(answer);
    show();
  }, LATE_AFTER);
  try {
    return await answer;
  } finally {
    clearTimeout(timer);
    if (late.delete(answer)) show();
  }
}

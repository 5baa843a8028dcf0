// The line that says what is wrong with the connection, in sight wherever the page is scrolled.
import { setText } from '../elements.js';

const LATE_AFTER = 1500; // milliseconds
const LEGIBLE = 4000; // milliseconds for which a sentence stays at least
const AWAY = 'The server does not answer. Once it does, this page shows what was done; if nothing was, press again.';
const LATE = 'The server has not answered yet. This page waits for it; do not press again.';

let lost = ''; // what the stream of updates has to say
let away = 0; // when a call had no answer; 0 if updates have come since
const late = new Set(); // the answers that are late

function show() {
  setText(document.querySelector('.lt-lost'), lost || (away ? AWAY : late.size ? LATE : ''));
}

/** Say that the stream of updates is lost; "" if it is not. */
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

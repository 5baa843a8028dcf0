// The bar that offers to bring removed videos back, until it is closed or a later removal replaces it.
import { onPress, setText } from './elements.js';
import { post } from './server.js';

const TOGETHER = 10000; // milliseconds within which removals are undone together
const bar = document.querySelector('#undo');
const [words, undo, erase, leave] = bar.children;
let jobs = [];
let last = 0; // the time of the last removal

function close() {
  jobs = [];
  bar.hidden = true;
}

for (const [button, action] of [[undo, 'restore'], [erase, 'delete']]) {
  onPress(button, () => post(`jobs_${action}`, { jobs }).then(close), (problem) => setText(words, problem));
}
leave.addEventListener('click', close);

export const focusUndo = () => undo.focus({ preventScroll: true });

/** Offer to bring jobs back, together with those that were removed just before them. */
export function offerUndo(more, title) {
  jobs = Date.now() - last > TOGETHER ? more : [...jobs, ...more];
  last = Date.now();
  setText(words, jobs.length === 1 ? `Removed: ${title}` : `Removed: ${jobs.length} videos`);
  bar.hidden = false;
}

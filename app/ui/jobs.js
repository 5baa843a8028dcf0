// The jobs that run or wait, as the server last told them, for the parts of the page that depend on them.

let ids = []; // in their order
let queue = { waiting: 0, held: false, revision: '' };
let scene = { state: 'idle' };
let heard = 0; // the server's time of the last news, in seconds since the epoch
const listeners = [];

/** Return a job's place among the jobs that run or wait, from 0; -1 if it is over or unknown. */
export const placeOf = (job) => ids.indexOf(job);

/** Return whether the last news is younger than a time of the server. */
export const isHeardAfter = (time) => heard > time;

/** Return the facts about the queue: how many jobs wait, whether it is held, and a text that changes with it. */
export const queueNow = () => queue;

/** Return the last scene that the server sent, which is that of the running job, or else of the newest one. */
export const sceneNow = () => scene;

/** Call the listener after each news. */
export function whenJobsAreTold(listener) {
  listeners.push(listener);
}

/** Take news from the server. */
export function tellJobs(told) {
  ids = told.open ?? [];
  queue = told.queue ?? queue;
  scene = told;
  heard = told.beat;
  for (const listener of listeners) listener();
}

// The jobs that run or wait, as the server last reported them, for the parts of the page that depend on them.

let ids = []; // in the order of the queue
let queue = { waiting: 0, held: false, revision: '', models: '' };
let scene = { job: '' };
let heard = 0; // the server's time of the last update, in seconds since the epoch
const listeners = [];

/** Return a job's place among the jobs that run or wait, from 0; -1 if it is over or unknown. */
export const placeOf = (job) => ids.indexOf(job);

/** Return whether the last update is newer than a time on the server's clock. */
export const isHeardAfter = (time) => heard > time;

/** Return the facts about the queue, with texts that change with it, `revision`, and with the list of models, `models`. */
export const queueNow = () => queue;

/** Return the last scene that the server sent, which is that of the running job, or else of the newest one. */
export const sceneNow = () => scene;

/** Call the listener after each update. */
export function onJobsReported(listener) {
  listeners.push(listener);
}

/** Take an update from the server. */
export function reportJobs(reported) {
  ids = reported.open ?? [];
  queue = reported.queue ?? queue;
  scene = reported;
  heard = reported.beat;
  for (const listener of listeners) listener();
}

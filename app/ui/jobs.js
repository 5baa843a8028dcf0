// The jobs that run or wait, as the server last told them, for the parts of the page that depend on one of them.

let ids = []; // in their order
let heard = 0; // the server's time of the last news, in seconds since the epoch
const listeners = [];

/** Return a job's place among the jobs that run or wait, from 0; -1 if it is over or unknown. */
export const placeOf = (job) => ids.indexOf(job);

/** Return whether the last news is younger than a time of the server. */
export const isHeardAfter = (time) => heard > time;

/** Call the listener after each news. */
export function whenJobsAreTold(listener) {
  listeners.push(listener);
}

/** Take news from the server. */
export function tellJobs(open, time) {
  ids = open;
  heard = time;
  for (const listener of listeners) listener();
}

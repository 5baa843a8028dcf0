// The jobs that run or wait, as the server last reported them, for the parts of the page that depend on them.

let scene = { job: '', queue: { waiting: 0, held: false, revision: '', models: '' } };
const listeners = [];

/** The facts about the queue, with texts that change with it, `revision`, and with the list of models, `models`. */
export const queueNow = () => scene.queue;

/** The last scene that the server sent: that of the running job, or else of the newest one. */
export const sceneNow = () => scene;

export function onJobsReported(listener) {
  listeners.push(listener);
}

export function reportJobs(reported) {
  scene = reported;
  for (const listener of listeners) listener();
}

// The bar that offers to undo a removal, until it is closed or a later removal takes its place.
import { onPress, setText } from '../elements.js';

const TOGETHER = 10000; // milliseconds within which removals are undone together

/** Return the bar. `restore` is called with the jobs to bring back, and returns whether they are. */
export function makeUndo(bar, restore) {
  let jobs = [];
  let last = 0; // the time of the last removal

  function close() {
    jobs = [];
    bar.hidden = true;
  }

  onPress(bar.querySelector('.lt-undo-do'), async () => { if (await restore(jobs)) close(); });
  bar.querySelector('.lt-undo-close').addEventListener('click', close);
  return {
    /** Offer to bring a job back, together with those that were removed just before it. */
    offer(job, title) {
      jobs = Date.now() - last > TOGETHER ? [job] : [...jobs, job];
      last = Date.now();
      setText(bar.querySelector('span'), jobs.length === 1 ? `Removed: ${title}` : `Removed: ${jobs.length} videos`);
      bar.hidden = false;
    },
  };
}

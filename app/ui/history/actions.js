// The actions on a video of the history.
import { call } from '../calls/call.js';
import { offerCopy } from '../copy.js';
import { restoreForm } from '../form/fill.js';
import { newSeed } from '../form/seed.js';
import { actOnce, setText } from '../elements.js';

/** The buttons of the video that is shown. */
export class Actions {
  #parts;
  #report;
  #video = null;

  constructor(parts, report, remove) {
    this.#parts = parts;
    this.#report = report;
    this.#on(parts.use, async () => restoreForm(await call('history_settings', this.#video.job)));
    this.#on(parts.again, async () => {
      const seed = newSeed();
      const made = await call('jobs_duplicate', this.#video.job, { seed });
      report(`The same video with the seed ${seed} is in the queue.`, made.id);
    });
    this.#on(parts.resume, async () => {
      await call('jobs_resume', [this.#video.job]);
      report('The video continues; finished work is not repeated.');
    });
    this.#on(parts.remove, remove);
    offerCopy(parts.copy, parts.address);
  }

  #on(button, act) {
    button.addEventListener('click', () => actOnce(button, act, this.#report));
  }

  /** Show the buttons that apply to a video. */
  show(video) {
    const { card, actions, job } = video;
    this.#video = video;
    this.#parts.resume.hidden = !actions.includes('resume');
    this.#parts.remove.hidden = !actions.includes('remove');
    this.#parts.download.hidden = !card.video;
    if (card.video) Object.assign(this.#parts.download, { href: card.video, download: card.name });
    setText(this.#parts.address, new URL(`#history/${encodeURIComponent(job)}`, document.baseURI).href);
  }
}

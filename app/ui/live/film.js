// A video with all that belongs to it: stage, sections, state, actions and records. The Create tab shows the one that
// is being made, and the History tab any other.
import { offerCopy, setText } from '../elements.js';
import { Actions } from './actions.js';
import { Player } from './player.js';
import { showStatus } from './status.js';
import { prepareAnew, prepareTakes } from './steer.js';
import { makeStrip } from './strip.js';

const PAUSE = 2000; // milliseconds between two readings
const NEAR = 8; // pixels from the end within which a reader follows the log
const NOTHING = { job: '', poster: null, crop: 0.5, ratio: null, video: null };
const stageView = document.querySelector('.lt-view');

/** The view for a video of the history: a copy of the stage's, before anything is shown in it. */
export const pastView = stageView.cloneNode(true);
for (const part of [...pastView.querySelectorAll('.lt-of-now'), ...stageView.querySelectorAll('.lt-of-past')]) part.remove();

/** Bring the fold with a job's log to life, which is read while it is open and followed while the job is made. */
function prepareLog(fold) {
  const box = fold.querySelector('pre');
  let shown = { log: '', isRunning: false };
  let timer = 0;

  async function read() {
    clearTimeout(timer);
    const address = shown.log;
    if (!fold.open || !address) return;
    timer = setTimeout(read, PAUSE);
    // If the server does not answer, the next reading may succeed.
    const answer = await fetch(new URL(address, document.baseURI), { cache: 'no-store' }).catch(() => null);
    const text = answer?.ok === false ? 'Nothing has been logged for this video.' : await answer?.text().catch(() => undefined);
    if (text === undefined || address !== shown.log) return;
    // The engine may log a little more after the job's end.
    if (!shown.isRunning && box.textContent === text) clearTimeout(timer);
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    setText(box, text);
    if (follows) box.scrollTop = box.scrollHeight;
  }

  fold.addEventListener('toggle', read);
  return {
    show({ log, isRunning }) {
      fold.hidden = !log;
      if (!log || (log === shown.log && isRunning === shown.isRunning)) return;
      if (log !== shown.log) setText(box, '');
      shown = { log, isRunning };
      read();
    },
  };
}

/** Return a film in a view. `open` shows another job; `expect` is called when a user has queued or resumed a video. */
export function makeFilm(view, open, expect = () => {}) {
  const find = (selector) => view.querySelector(selector);
  const actions = new Actions(find('.lt-actions'), expect);
  /** Show a sentence beside the actions, with a link to a job if one is given. */
  const report = (words, job) => actions.report(words, job);
  const anew = prepareAnew(find('.lt-anew'), (count) => actions.branchFrom(count), report);
  const strip = makeStrip(find('.lt-strip'), (at) => player.jumpTo(at), anew.offer);
  const player = new Player(find('.lt-stage'), strip.mark);
  const log = prepareLog(find('.lt-log'));
  const showTakes = prepareTakes(find('.lt-takes'), actions.steer, open, report);
  offerCopy(find('.lt-copy'), find('.lt-report'));
  return {
    report,
    /** Show a scene, with a video's records if the history has sent them. */
    show(scene) {
      const film = find('.lt-film');
      view.dataset.state = scene.state;
      film.dataset.words = scene.words ?? 'beneath';
      film.style.setProperty('--ratio', scene.ratio || '');
      setText(find('.lt-empty b'), scene.blank ?? 'No video yet');
      if (scene.job) strip.show(scene);
      showStatus(view, scene);
      actions.show(scene);
      anew.show(scene);
      showTakes(scene.takes ?? null, scene.job);
      player.show(scene);
      log.show(scene);
    },
    /** Stop playback. */
    clear() {
      player.show(NOTHING);
      log.show({ log: '' });
      showTakes(null);
    },
  };
}

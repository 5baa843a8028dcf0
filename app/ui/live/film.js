// A video with all that belongs to it: stage, sections, state, actions and records. The Create tab shows the one that
// is being made, and the History tab any other.
import { offerCopy, setText } from '../elements.js';
import { Actions } from './actions.js';
import { prepareLog } from './log.js';
import { Player } from './player.js';
import { showStatus } from './status.js';
import { prepareAnew, prepareTakes } from './steer.js';
import { Strip } from './strip.js';

const NOTHING = { job: '', poster: null, crop: 0.5, ratio: null, video: null };
let keep;

/** The view for a video of the history, once the page has its markup: a link may open a video before that. */
export const pastView = new Promise((done) => { keep = done; });

function without(view, parts) {
  for (const part of view.querySelectorAll(parts)) part.remove();
  return view;
}

/** Keep the markup of a view for a video of the history, before anything is shown in it, and take that out of it. */
export function keepMarkup(view) {
  keep(without(view.cloneNode(true), '.lt-of-now'));
  without(view, '.lt-of-past');
}

/** Return a film in a view. `open` shows another job; `expect` is called when a user has queued or resumed a video. */
export function makeFilm(view, open, expect = () => {}) {
  const find = (selector) => view.querySelector(selector);
  const actions = new Actions(find('.lt-actions'), expect);
  /** Show a sentence beside the actions, with a link to a job if one is given. */
  const report = (words, job) => actions.report(words, job);
  const anew = prepareAnew(find('.lt-anew'), (count) => actions.branchFrom(count), report);
  const strip = new Strip(find('.lt-strip'), (at) => player.jump(at), anew.offer);
  const player = new Player(find('.lt-stage'), (at) => strip.mark(at));
  const log = prepareLog(find('.lt-log'));
  const showTakes = prepareTakes(find('.lt-takes'), actions.steer, open, report);
  offerCopy(find('.lt-copy'), find('.lt-report'));
  return {
    report,
    /** Follow what is logged. */
    tick: log.tick,
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

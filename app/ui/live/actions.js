// The actions on a video: those on the job while it is made, and those that lead on from it once it rests.
import { make, onPress, setText } from '../elements.js';
import { restoreForm } from '../form/describe.js';
import { newSeed } from '../form/values.js';
import { setFavourite, showStar } from '../history/card.js';
import { post } from '../server.js';

const JOB_BUTTONS = { resume: '.lt-resume', pause: '.lt-pause', stop_after_section: '.lt-stop', cancel: '.lt-end' };

/**
 * Set up the buttons. `panel` is what directs the video, `report` shows a sentence about a job, and `expect` is called
 * when a user has queued or resumed a video. The result shows them for a scene.
 */
export function prepareActions(box, panel, report, expect) {
  const find = (selector) => box.querySelector(selector);
  const on = (selector, act) => onPress(find(selector), act, report);
  let scene = {};
  const send = (action, more = {}) => post(`jobs_${action}`, { jobs: [scene.job], ...more });
  on('.lt-pause', () => send('pause'));
  on('.lt-stop', () => send('cancel', { after_section: true }));
  on('.lt-end', () => send('cancel'));
  on('.lt-resume', async () => {
    expect();
    await panel.goOn();
    report('The video continues; finished work is not repeated.');
  });
  on('.lt-steer', () => panel.open('steer'));
  on('.lt-longer', () => panel.open('longer'));
  on('.lt-change', () => panel.open('cut'));
  on('.lt-again', async () => {
    const seed = newSeed();
    expect();
    const made = await post('jobs_duplicate', { job: scene.job, changes: { seed } });
    report(`The same video with the seed ${seed} is in the queue.`, made.id);
  });
  on('.lt-continue', async () => {
    await restoreForm(await post('history_continue', { job: scene.job }));
    document.querySelector('#set-prompt textarea').focus();
  });
  on('.lt-favourite', async () => {
    scene = await setFavourite(scene);
    showStar(find('.lt-favourite'), scene.favourite, scene.prompt);
  });
  return (now) => {
    scene = now;
    for (const [name, selector] of Object.entries(JOB_BUTTONS)) {
      const shown = scene.buttons?.[name];
      find(selector).hidden = !shown;
      if (!shown) continue;
      setText(find(selector), shown.label);
      find(selector).disabled = !shown.enabled;
    }
    if (scene.offersMore) showStar(find('.lt-favourite'), scene.favourite, scene.prompt);
  };
}

export function prepareReport(place) {
  let told = ''; // the job that the sentence is about, which may take the stage at once
  let shown = ''; // the job on the stage, and whether it is over
  return {
    say(words, job = '') {
      told = job;
      const link = make('a', { href: `#history/${job}`, textContent: 'Show it' });
      place.replaceChildren(words, ...(job ? [' ', link] : []));
    },
    /** Take the sentence away once it is about another video, or about one that is over. */
    turnTo({ job, offersMore }) {
      const now = `${job} ${offersMore}`;
      if (shown !== now && job !== told) place.replaceChildren();
      shown = now;
    },
  };
}

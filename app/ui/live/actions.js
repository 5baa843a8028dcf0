// The actions on a video: those on the job while it is made, and those that lead on from it once it rests.
import { make, onPress, saveFile, setText } from '../elements.js';
import { newSeed, putPicture, restoreForm } from '../form/describe.js';
import { setFavourite, showStar } from '../history/card.js';
import { post, upload } from '../server.js';
import { goTo, place } from '../tabs.js';

const JOB_BUTTONS = { resume: '.lt-resume', pause: '.lt-pause', stop_after_section: '.lt-stop', cancel: '.lt-end' };

/** Set up the buttons, which the result shows for a scene. `expect` is called when a user has queued or resumed a video. */
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

export function prepareReport(box) {
  let told = ''; // the job that the sentence is about, which may take the stage at once
  let shown = ''; // the job on the stage, and whether it is over
  return {
    say(words, job = '') {
      told = job;
      const link = make('a', { href: `#history/${job}`, textContent: 'Show it' });
      box.replaceChildren(words, ...(job ? [' ', link] : []));
    },
    /** Take the sentence away once it is about another video, or about one that is over. */
    turnTo({ job, offersMore }) {
      const now = `${job} ${offersMore}`;
      if (shown !== now && job !== told) box.replaceChildren();
      shown = now;
    },
  };
}

/** Set up the fold for the frame that the stage shows, which a user saves, or uses as a picture of the next video. */
export function prepareStill(fold, player, report) {
  let scene = {};

  async function take() {
    const { first, video } = scene;
    // The first frame of some videos, and a picture, lie on the disk as they were before they were compressed.
    const isFirst = first && (video.isPicture || player.at === 0);
    const content = isFirst ? await fetch(first).then((answer) => answer.blob()) : await player.frame();
    const name = video.name.replace(/[.][^.]+$/, video.isPicture ? '' : `-at-${player.at.toFixed(2)}-s`);
    return new File([content], `${name}.png`, { type: 'image/png' });
  }

  async function use(name) {
    const picture = await upload(await take());
    if (place()[0] !== 'create') goTo('create');
    putPicture(name, picture);
  }

  const on = (name, act) => onPress(fold.querySelector(`[data-use="${name}"]`), act, report);
  on('save', async () => saveFile(await take()));
  for (const name of ['image', 'end_image']) on(name, () => use(name));
  return (now) => {
    scene = now;
    fold.hidden = !now.video;
  };
}

// What is done to a finished video in a job of its own: it becomes larger, smoother, is cut, joined with others, or gets
// another sound. And the comparison with the video from before.
import { actOnce, chooseFiles, fromTemplate, make, makeButton, onPress, onSubmit, setOptions, setText } from '../elements.js';
import { post, upload } from '../server.js';
import { goTo } from '../tabs.js';
import { clock, dayOf } from '../text.js';
import { offerUndo } from '../undo.js';
import { compare } from './compare.js';

const PAUSE = 300; // milliseconds without a change before the plan is asked for
const MOST = 100; // videos to choose from
const MOST_WORDS = 80; // characters of a video's name
const WORDS = ['speed', 'enlarge', 'smooth', 'reverse', 'loop', 'colours', 'mute'];
const ASK = 'Choose what to change; what comes out is told here before it is made.';

/** Offer the history's videos to be joined. The result lists those that were chosen, in their order. */
function prepareJoin(form, change, report) {
  const { other } = form.elements;
  const list = form.querySelector('ol');
  other.addEventListener('change', () => {
    const [{ value: job, text: name }] = other.selectedOptions;
    other.value = '';
    if (!job) return;
    const item = make('li', {}, name, makeButton('×', () => {
      item.remove();
      change();
    }, { ariaLabel: `Leave out ${name}` }));
    item.dataset.job = job;
    list.append(item);
  });
  post('history_search', { limit: MOST }).then(({ cards }) => {
    const name = ({ created, words }) => `${dayOf(created)}, ${clock(created)} · ${words || 'No prompt'}`.slice(0, MOST_WORDS);
    const videos = cards.filter((card) => card.video && !card.sentence && card.length !== 'Picture');
    setOptions(other, [['', 'Add a video…'], ...videos.map((card) => [card.job, name(card)])]);
  }).catch((error) => report(error.message));
  return () => [...list.children].map(({ dataset }) => ({ job: dataset.job }));
}

/**
 * Make the form for what is done to a video, which is `{ job }` or the `{ path }` of an upload. `time` tells the time that a
 * player shows, `close` takes the form away, and `done` gets a sentence and the new job.
 */
function makeForm(video, { time, close, done }) {
  const form = fromTemplate('finishing');
  const { elements: fields } = form;
  let sound = null; // the upload
  let asked = 0; // the number of the last question, since only the last answer counts
  const report = (words) => setText(form.querySelector('[role="status"]'), words);

  function message() {
    const { from, to, fade, ...values } = Object.fromEntries(new FormData(form));
    const words = WORDS.filter((name) => values[name]).map((name) => (values[name] === 'on' ? name : `${name}:${values[name]}`));
    if (from || to) words.push(`trim:${from}-${to}`);
    const join = joined();
    if (join.length) words.push(`join:${fade || 0}`);
    return words.length || sound ? { video, steps: words.join(',') || 'speed:1', join, sound } : null;
  }

  async function change() {
    asked += 1;
    const own = asked;
    await new Promise((wake) => { setTimeout(wake, PAUSE); });
    if (own !== asked) return;
    const now = message();
    const answer = now ? await post('finish_plan', now).then(({ words }) => words, (error) => error.message) : ASK;
    if (own === asked) report(answer);
  }

  const joined = prepareJoin(form, change, report);
  form.addEventListener('input', change);
  fields.sound.addEventListener('change', () => actOnce(fields.sound, async () => {
    const [file] = fields.sound.files;
    sound = file ? { path: (await upload(file)).path } : null;
    change();
  }, report));
  for (const button of form.querySelectorAll('[data-here]')) {
    button.hidden = !time;
    button.addEventListener('click', () => {
      fields[button.dataset.here].value = time().toFixed(2);
      change();
    });
  }
  form.querySelector('.lt-panel-close').addEventListener('click', close);
  onSubmit(form, async () => {
    const now = message();
    if (!now) return;
    const { id } = await post('finish_start', now);
    close();
    done('The new video is in the queue.', id);
  }, report);
  report(ASK);
  change();
  return form;
}

/** Offer in a dialog to finish an upload, and show the job that does it. */
export function finishFile({ path }) {
  const dialog = document.querySelector('#finish-file');
  const done = (words, job) => goTo('history', job);
  dialog.replaceChildren(makeForm({ path }, { close: () => dialog.close(), done }));
  dialog.showModal();
}

/** Let a button choose a video file that is finished. */
export const offerToFinish = (button, report) => onPress(button, async () => {
  const [file] = await chooseFiles('video/*,.gif');
  if (file) finishFile(await upload(file));
}, report);

function compareWithBefore({ job, prompt, before, video }) {
  const remove = (gone) => async () => {
    await post('jobs_remove', { jobs: [gone] });
    offerUndo([gone], prompt || gone);
  };
  compare([
    { name: 'Before', url: before.url, begin: 0, keep: 'Keep before, remove after', act: remove(job) },
    { name: 'After', url: video.url, begin: 0, keep: 'Keep after, remove before', act: remove(before.job) },
  ]);
}

/** Set up the actions that finish the video of a view. The result is told of its scenes. */
export function prepareFinishing(view, player, report, expect) {
  const [panel, finish, enlarge, before] = ['finish-place', 'finish', 'enlarge', 'before'].map((name) => view.querySelector(`.lt-${name}`));
  let scene = {};
  const close = () => panel.replaceChildren();
  const done = (words, job) => {
    expect();
    report(words, job);
  };
  finish.addEventListener('click', () => {
    panel.replaceChildren(makeForm({ job: scene.job }, { time: () => player.at, close, done }));
    panel.scrollIntoView({ block: 'nearest' });
    panel.querySelector('select').focus({ preventScroll: true });
  });
  onPress(enlarge, async () => {
    const { id } = await post('finish_start', { video: { job: scene.job }, steps: 'enlarge:4' });
    done('The larger video is in the queue.', id);
  }, report);
  before.addEventListener('click', () => compareWithBefore(scene));
  return (now) => {
    if (now.job !== scene.job) close();
    scene = now;
  };
}

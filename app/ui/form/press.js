// The presses of the buttons below the form. Each is heard at once. One of Start is kept while the server does not
// answer, also over a reload, and sent until it is answered; its id lets the server start the video only once. While a
// video that waits is edited, the form shows its settings, and a button in place of Start saves them.
import { actOnce, fromTemplate, onPress, setText } from '../elements.js';
import { sceneNow, onJobsReported } from '../jobs.js';
import { expectStage, showStage } from '../live/live.js';
import { get, post, postUntil } from '../server.js';
import { keep, recallValue } from '../storage.js';
import { goTo } from '../tabs.js';
import { changed, restoreForm, take } from './describe.js';
import { judge, refuse, showNotice } from './notice.js';
import { filesRead } from './pictures.js';
import { pictureNames, read, values, write } from './values.js';

const SLOW = 2000; // milliseconds after which an answer is missed
const AGAIN = 2000; // milliseconds between two attempts
const LIMIT = 20000; // milliseconds for one attempt
const MOST_PROMPT = 80; // characters
const BEGUN = 'The video has begun and keeps its settings. You can start another one with these.';

let pending = null; // the press of Start that is not answered: { id, settings, mayDownload }
let job = null; // the job that is edited
let before = null; // the form's values before that

const find = (selector) => document.querySelector(selector);
const pause = () => new Promise((done) => { setTimeout(done, AGAIN); });
const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

function keepPress(given) {
  pending = given;
  keep('press', pending && JSON.stringify(pending), 'sessionStorage');
  find('#start').setAttribute('aria-busy', String(Boolean(pending)));
}

/** Send the press. The result shows the answer, or is null without one. */
async function attempt({ id, settings, mayDownload }) {
  try {
    const markup = await postUntil(AbortSignal.timeout(LIMIT), 'form/start', { press: id, settings, may_download: mayDownload });
    return () => showNotice(markup);
  } catch (error) {
    return error.isAway ? null : () => refuse(error.message);
  }
}

async function deliver(own) {
  keepPress(own);
  expectStage();
  const isWanted = () => pending === own;
  const sayWaiting = () => { if (isWanted()) showNotice(fromTemplate('press-kept').outerHTML); };
  const missed = setTimeout(sayWaiting, SLOW);
  let show = await attempt(own);
  while (isWanted() && !show) {
    sayWaiting();
    await pause();
    if (isWanted()) show = await attempt(own);
  }
  clearTimeout(missed);
  if (!isWanted()) return;
  keepPress(null);
  show();
  requestAnimationFrame(() => showStage());
}

async function begin(mayDownload = false) {
  if (pending) return;
  let isRead = false;
  await actOnce(find('#start'), async () => { isRead = await filesRead(); }); // they belong to the video
  if (!isRead) return;
  showNotice('');
  judge();
  deliver({ id: newId(), settings: values(), mayDownload });
}

/** Send the press that a page kept before it was reloaded, with the pictures that were put back. */
export function resume() {
  const kept = recallValue('press', 'sessionStorage');
  if (!kept?.settings || pending) return;
  for (const [name, value] of Object.entries(kept.settings)) if (value?.path) kept.settings[name] = read(name) ?? value;
  deliver(kept);
}

const bar = find('.lt-editing');
const [words, leave] = bar.children;

/** Show a sentence about the editing, with the label of the button that ends it; none without a sentence. */
function say(text = '', label = '') {
  document.documentElement.dataset.editing = job?.id ?? '';
  setText(words, text);
  setText(leave, label);
  bar.hidden = !text;
}

async function end() {
  const form = before;
  const restored = form && await post('form/restore', { kept: JSON.stringify(form) });
  [job, before] = [null, null];
  say();
  goTo('queue');
  find('#tab-queue').focus();
  if (!form) return;
  take(restored);
  for (const name of pictureNames()) write(name, form[name]);
  changed();
}

export async function editJob(found) {
  if (!found.offered) throw new Error('This page does not offer the model of this video. Change it with longtake jobs, or duplicate it.');
  const restored = await get(`history/${encodeURIComponent(found.id)}/settings`);
  before ??= values();
  job = found;
  await restoreForm(restored);
  const { prompt } = found.request;
  say(`You are editing a video in the queue: ${prompt.length > MOST_PROMPT ? `${prompt.slice(0, MOST_PROMPT)}…` : prompt}`, 'Cancel editing');
  find('#set-prompt').scrollIntoView({ block: 'center' });
  bar.focus({ preventScroll: true });
}

async function save() {
  showNotice(await post('form/save', { job: job?.id ?? '', settings: values() }));
  if (find('#notice [data-saved]')) await end();
}

export function press(button) {
  if (button.id === 'start') begin();
  else if (button.id === 'end') actOnce(button, async () => showNotice(await post('form/end')), refuse);
  else {
    showNotice('');
    judge();
    actOnce(button, save, refuse);
  }
}

onPress(leave, async () => (job ? end() : say()), refuse);
find('#notice').addEventListener('click', ({ target }) => {
  const { answer } = target.closest('[data-answer]')?.dataset ?? {};
  if (answer === 'yes') begin(true);
  else if (answer && pending) keepPress(null);
});
onJobsReported(() => {
  if (!job || sceneNow().job !== job.id || sceneNow().actions.includes('edit')) return;
  [job, before] = [null, null];
  say(BEGUN, 'Close');
});

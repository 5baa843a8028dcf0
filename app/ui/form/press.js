// The presses of the buttons below the form. Each is heard at once. Those of Start are kept while the server does not
// answer, also over a reload, and sent in turn until they are answered; its id lets each start one video only. While a
// video that waits is edited, the form shows its settings, and a button in place of Start saves them.
import { actOnce, fromTemplate, onPress, setText } from '../elements.js';
import { sceneNow, onJobsReported } from '../jobs.js';
import { expectStage, showStage } from '../live/live.js';
import { post, postUntil } from '../server.js';
import { keep, recallValue } from '../storage.js';
import { goTo } from '../tabs.js';
import { changed, newSeed, pictureNames, read, refuse, restoreForm, showNotice, take, values, write } from './describe.js';
import { filesRead } from './pictures.js';

const SLOW = 2000; // milliseconds after which an answer is missed
const AGAIN = 2000; // milliseconds between two attempts
const LIMIT = 20000; // milliseconds for one attempt
const MOST_PROMPT = 80; // characters
const BEGUN = 'The video has begun and keeps its settings. You can start another one with these.';

let presses = []; // those of Start that are not answered, in order: { id, settings, mayDownload }
let isReading = false; // whether a press waits for the files of its video
let job = null; // the job that is edited
let before = null; // the form's values before that

const find = (selector) => document.querySelector(selector);
const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

const showBusy = () => find('#start').setAttribute('aria-busy', String(presses.length > 0 || isReading));

function keepPresses(list) {
  presses = list;
  keep('press', list.length ? JSON.stringify(list) : null, 'sessionStorage');
  showBusy();
}

async function deliver(pressed) {
  const message = { press: pressed.id, settings: pressed.settings, may_download: pressed.mayDownload };
  const isWanted = () => presses.includes(pressed);
  const sayWaiting = () => { if (isWanted()) showNotice(fromTemplate('press-kept').outerHTML); };
  const missed = setTimeout(sayWaiting, SLOW);
  let show = null;
  while (isWanted() && !show) {
    show = await postUntil(AbortSignal.timeout(LIMIT), 'form_start', message).then(
      (markup) => () => showNotice(markup),
      ({ isAway, message: words, setting }) => (isAway ? null : () => refuse(words, setting)),
    );
    if (show) break;
    sayWaiting();
    await new Promise((done) => { setTimeout(done, AGAIN); });
  }
  clearTimeout(missed);
  if (!isWanted()) return;
  keepPresses(presses.filter((other) => other !== pressed));
  show();
  requestAnimationFrame(() => showStage());
}

async function send(...more) {
  const isSending = presses.length > 0;
  keepPresses([...presses, ...more]);
  expectStage();
  if (isSending) return;
  while (presses.length) await deliver(presses[0]);
}

async function begin(mayDownload = false) {
  if (isReading) return;
  isReading = true;
  showBusy();
  const isRead = await filesRead();
  isReading = false;
  showBusy();
  // The notice has said that the same press is kept.
  const isKept = find('#notice .lt-withdraw') && JSON.stringify(presses.at(-1)?.settings) === JSON.stringify(values());
  if (!isRead || isKept) return;
  if (read('random_seed')) write('seed', newSeed()); // it stays in the field, for who wants the same video again
  showNotice('');
  send({ id: newId(), settings: values(), mayDownload });
}

/** Send the presses that a page kept before it was reloaded, with the pictures that were put back. */
export function resume() {
  const kept = [recallValue('press', 'sessionStorage')].flat().filter((pressed) => pressed?.settings);
  for (const { settings } of kept) {
    for (const [name, value] of Object.entries(settings)) if (value?.path) settings[name] = read(name) ?? value;
  }
  if (kept.length) send(...kept);
}

const bar = find('.lt-editing');
const [words, leave] = bar.children;

function say(text = '', label = '') {
  document.documentElement.dataset.editing = job?.id ?? '';
  setText(words, text);
  setText(leave, label);
  bar.hidden = !text;
}

async function end() {
  const form = before;
  const restored = form && await post('form_restore', { kept: JSON.stringify(form) });
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
  const restored = await post('history_settings', { job: found.id });
  before ??= values();
  job = found;
  await restoreForm(restored);
  const { prompt } = found.request;
  const title = prompt.length > MOST_PROMPT ? `${prompt.slice(0, MOST_PROMPT)}…` : prompt;
  say(`You are editing a video in the queue: ${title}`, 'Cancel editing');
  find('#set-prompt').scrollIntoView({ block: 'center' });
  bar.focus({ preventScroll: true });
}

async function save() {
  showNotice(await post('form_save', { job: job?.id ?? '', settings: values() }));
  if (find('#notice [data-saved]')) await end();
}

export function press(button) {
  if (button.id === 'start') begin();
  else if (button.id === 'end') actOnce(button, async () => showNotice(await post('form_end')), refuse);
  else {
    showNotice('');
    actOnce(button, () => save().catch(({ message, setting }) => refuse(message, setting)));
  }
}

onPress(leave, async () => (job ? end() : say()), refuse);
find('#notice').addEventListener('click', ({ target }) => {
  const offered = target.closest('[data-continue]');
  if (offered) {
    const { continue: path, name } = offered.dataset;
    actOnce(offered, async () => restoreForm(await post('file_continue', { file: { path }, name })), refuse);
  }
  if (target.closest('[data-answer="yes"]')) begin(true);
  else if (target.closest('.lt-withdraw')) keepPresses([]);
});
onJobsReported(() => {
  if (!job || sceneNow().job !== job.id || sceneNow().actions.includes('edit')) return;
  [job, before] = [null, null];
  say(BEGUN, 'Close');
});

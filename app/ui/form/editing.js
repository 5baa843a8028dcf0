// The editing of a video that waits: the form shows its settings, and a button in place of Start saves them.
import { call } from '../calls/call.js';
import { make, setText } from '../elements.js';
import { sceneNow, onJobsReported } from '../jobs.js';
import { goTo } from '../tabs.js';
import { fillForm } from './fill.js';
import { whenSaved } from './notice.js';
import { addressOf } from './uploaded.js';
import { pictureNames, values } from './values.js';

const MOST_PROMPT = 80; // characters
const BEGUN = 'The video has begun and keeps its settings. You can start another one with these.';
const words = make('span');
const leave = make('button', { type: 'button' });
const bar = make('div', { className: 'lt-editing', hidden: true, tabIndex: -1 }, words, leave);
let job = null; // the job that is edited
let before = null; // the form's values before that

function show(text, label) {
  document.documentElement.dataset.editing = job ? job.id : '';
  if (!bar.isConnected) document.querySelector('.lt-go')?.prepend(bar);
  setText(words, text);
  setText(leave, label);
  bar.hidden = !text;
}

/** End the editing, and restore what the form held before. */
function end() {
  const form = before;
  [job, before] = [null, null];
  show('', '');
  if (form) {
    for (const name of pictureNames()) form[name] = form[name] && addressOf(form[name].path);
    fillForm(form).catch((error) => console.info('form:', error.message));
  }
  goTo('queue');
  document.querySelector('#tab-queue').focus();
}

function short(prompt) {
  return prompt.length > MOST_PROMPT ? `${prompt.slice(0, MOST_PROMPT)}…` : prompt;
}

/** Put the settings of a job that has not begun into the form. */
export async function editJob({ id, offered }) {
  if (!offered) throw new Error('This page does not offer the model of this video. Change it with python -m app jobs, or duplicate it.');
  const found = await call('jobs_show', id);
  before ??= values();
  job = found;
  await fillForm(job.request);
  show(`You are editing a video in the queue: ${short(job.request.prompt)}`, 'Cancel editing');
  document.querySelector('#set-prompt').scrollIntoView({ block: 'center' });
  bar.focus({ preventScroll: true });
}

/** Return the id of the job that is edited, or "". */
export const editedJob = () => job?.id ?? '';

leave.addEventListener('click', () => (job ? end() : show('', '')));
whenSaved(end);
onJobsReported(() => {
  if (!job || sceneNow().job !== job.id || sceneNow().actions.includes('edit')) return;
  [job, before] = [null, null];
  show(BEGUN, 'Close');
});

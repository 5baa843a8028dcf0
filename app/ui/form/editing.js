// The editing of a video that waits: the form shows its settings, and a button in place of Start saves them.
import { call } from '../calls/call.js';
import { make, onPress, setText } from '../elements.js';
import { sceneNow, onJobsReported } from '../jobs.js';
import { goTo } from '../tabs.js';
import { changed } from './keep.js';
import { take } from './describe.js';
import { restoreForm } from './fill.js';
import { refuse, whenSaved } from './notice.js';
import { pictureNames, values, write } from './values.js';

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
async function end() {
  const form = before;
  const restored = form && await call('form_restore', JSON.stringify(form));
  [job, before] = [null, null];
  show('', '');
  goTo('queue');
  document.querySelector('#tab-queue').focus();
  if (!form) return;
  take(restored);
  for (const name of pictureNames()) write(name, form[name]);
  changed();
}

/** Put the settings of a job that has not begun into the form. */
export async function editJob(found) {
  if (!found.offered) throw new Error('This page does not offer the model of this video. Change it with python -m app jobs, or duplicate it.');
  const restored = await call('history_settings', found.id);
  before ??= values();
  job = found;
  await restoreForm(restored);
  const { prompt } = found.request;
  show(`You are editing a video in the queue: ${prompt.length > MOST_PROMPT ? `${prompt.slice(0, MOST_PROMPT)}…` : prompt}`, 'Cancel editing');
  document.querySelector('#set-prompt').scrollIntoView({ block: 'center' });
  bar.focus({ preventScroll: true });
}

/** Return the id of the job that is edited, or "". */
export const editedJob = () => job?.id ?? '';

onPress(leave, async () => (job ? end() : show('', '')), refuse);
whenSaved(() => end().catch((error) => refuse(error.message)));
onJobsReported(() => {
  if (!job || sceneNow().job !== job.id || sceneNow().actions.includes('edit')) return;
  [job, before] = [null, null];
  show(BEGUN, 'Close');
});

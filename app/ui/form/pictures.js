// The files that are pasted or dropped anywhere on the page, or chosen: pictures, files with a recipe, and batches.
import { call } from '../calls/call.js';
import { make } from '../elements.js';
import { goTo, place } from '../tabs.js';
import { restoreForm } from './fill.js';
import { formNow } from './notice.js';
import { recipeOf } from './recipe.js';
import { handOver, upload } from './uploaded.js';

const BATCH = /\.(csv|jsonl|ndjson)$/i;
const problem = make('p', { className: 'lt-refusal', role: 'alert' });

/** Forget why a file was refused. */
export const forgetRefusal = () => problem.remove();

/** Upload a picture and let the picture field take it, unless it cannot be used. */
async function givePicture(file) {
  const given = await upload(file);
  await call('picture_check', { path: given.path });
  handOver(given);
}

/** Queue the videos that a file lists, whose pictures may be among the other files. */
async function addBatch(file, others) {
  const pictures = {};
  for (const one of others) pictures[one.name] = { path: (await upload(one)).path };
  const { image, ...form } = formNow();
  if (image) pictures[''] = { path: image };
  const { path } = await upload(file);
  await call('batch_add', { path }, pictures, JSON.stringify(form));
  goTo('queue');
}

/** Take files: a batch, or else the settings in the first one, or else the picture. */
async function takeFiles(files) {
  if (place()[0] !== 'create') goTo('create');
  const batch = files.find(({ name, type }) => BATCH.test(name) || type === 'text/csv');
  if (batch) {
    await addBatch(batch, files.filter((file) => file !== batch));
    return;
  }
  const recipe = await recipeOf(files[0]);
  if (recipe) restoreForm(recipe);
  else await givePicture(files[0]);
}

function take(event, transfer) {
  const files = [...(transfer?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  forgetRefusal();
  takeFiles(files).catch((error) => {
    problem.textContent = error.message;
    document.querySelector('#set-image').after(problem);
  });
}

const markTarget = (isTarget) => { document.documentElement.toggleAttribute('data-dropping', isTarget); };

/** Accept files from the clipboard and from a drag. */
export function acceptPictures() {
  document.addEventListener('paste', (event) => take(event, event.clipboardData));
  document.addEventListener('dragover', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    markTarget(true);
  }, true);
  for (const name of ['dragleave', 'drop', 'dragend']) {
    document.addEventListener(name, (event) => {
      if (name !== 'dragleave' || !event.relatedTarget) markTarget(false);
    }, true);
  }
  document.addEventListener('drop', (event) => take(event, event.dataTransfer), true);
  // Gradio would refuse a file by its name; the server reads its content, and says what is wrong.
  document.addEventListener('change', (event) => {
    if (!event.target.matches?.('#set-image input[type="file"]')) return;
    take(event, event.target);
    event.target.value = '';
  }, true);
  // Gradio's own button only switches to the field, which is already there.
  document.addEventListener('click', (event) => {
    if (!event.target.closest?.('#set-image [aria-label="Upload file"]')) return;
    requestAnimationFrame(() => document.querySelector('#set-image input[type="file"]')?.click());
  });
}

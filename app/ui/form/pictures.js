// The files that are pasted or dropped anywhere on the page, or chosen: pictures, and files with a recipe.
import { make } from '../elements.js';
import { goTo, place } from '../tabs.js';
import { restoreForm } from './fill.js';
import { recipeOf } from './recipe.js';
import { handOver, upload } from './uploaded.js';

const problem = make('p', { className: 'lt-refusal', role: 'alert' });

/** Upload a file and let the picture field take it. */
export async function givePicture(file) {
  handOver(await upload(file));
}

/** Take a file: the settings in it, or else the picture. */
export async function takeFile(file) {
  if (place()[0] !== 'create') goTo('create');
  const recipe = await recipeOf(file);
  if (recipe) restoreForm(recipe);
  else await givePicture(file);
}

function takeFirst(event, transfer) {
  const file = transfer?.files[0];
  if (!file) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  problem.textContent = '';
  takeFile(file).catch((error) => {
    problem.textContent = error.message;
    document.querySelector('#set-image').after(problem);
  });
}

const markTarget = (isTarget) => document.querySelector('#set-image')?.classList.toggle('lt-dropping', isTarget);

/** Accept files from the clipboard and from a drag. */
export function acceptPictures() {
  document.addEventListener('paste', (event) => takeFirst(event, event.clipboardData));
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
  document.addEventListener('drop', (event) => takeFirst(event, event.dataTransfer), true);
  // Gradio would refuse a file by its name; the server reads its content, and says what is wrong.
  document.addEventListener('change', (event) => {
    if (!event.target.matches?.('#set-image input[type="file"]')) return;
    takeFirst(event, event.target);
    event.target.value = '';
  }, true);
  // Gradio's own button only switches to the field, which is already there.
  document.addEventListener('click', (event) => {
    if (!event.target.closest?.('#set-image [aria-label="Upload file"]')) return;
    requestAnimationFrame(() => document.querySelector('#set-image input[type="file"]')?.click());
  });
}

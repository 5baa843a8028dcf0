// Pictures that are pasted or dropped anywhere on the page, or that the browser kept.
import { make } from '../elements.js';
import { passPictureOn } from './component.js';

const problem = make('p', { className: 'lt-refusal', role: 'alert' });
let picture = null; // the last one that was given, as Gradio describes a file

/** Return the picture that the field is to take. */
export const givenPicture = () => picture;

/** Upload a file and let the picture field take it. */
export async function givePicture(file) {
  const name = file.name || 'pasted.png';
  const body = new FormData();
  body.append('files', file, name);
  const root = (window.gradio_config?.root || '').replace(/\/$/, '');
  const prefix = window.gradio_config?.api_prefix ?? '/gradio_api';
  const reply = await fetch(`${root}${prefix}/upload`, { method: 'POST', body });
  if (!reply.ok) throw new Error(`The upload was refused (${reply.status}).`);
  const [path] = await reply.json();
  picture = {
    path,
    url: `${root}${prefix}/file=${path}`,
    orig_name: name,
    size: file.size,
    mime_type: file.type,
    meta: { _type: 'gradio.FileData' },
  };
  passPictureOn();
}

function takeFirst(event, transfer) {
  const file = transfer?.files[0];
  if (!file) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  problem.textContent = '';
  givePicture(file).catch((error) => {
    problem.textContent = error.message;
    document.querySelector('#set-image').after(problem);
  });
}

const markTarget = (isTarget) => document.querySelector('#set-image')?.classList.toggle('lt-dropping', isTarget);

/** Accept pictures from the clipboard and from a drag. */
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
  // Gradio would refuse a file by its name; the server looks at what is in it, and says what is wrong.
  document.addEventListener('change', (event) => {
    if (!event.target.matches?.('#set-image input[type="file"]')) return;
    takeFirst(event, event.target);
    event.target.value = '';
  }, true);
  // Gradio's own button only changes to the field that is there already.
  document.addEventListener('click', (event) => {
    if (!event.target.closest?.('#set-image [aria-label="Upload file"]')) return;
    requestAnimationFrame(() => document.querySelector('#set-image input[type="file"]')?.click());
  });
}

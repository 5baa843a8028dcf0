// The files that are pasted or dropped anywhere on the page, or chosen: pictures, files with a recipe, and batches.
import { call, upload } from '../calls/call.js';
import { actOnce, make } from '../elements.js';
import { goTo, place } from '../tabs.js';
import { put, restoreForm } from './describe.js';
import { showField } from './picture.js';
import { values } from './values.js';

/** Let the user take a picture, and return it as a file, or null if there is none. */
async function photograph() {
  const stream = await navigator.mediaDevices.getUserMedia({ video: true }).catch(() => null);
  if (!stream) throw new Error('The browser has no camera that this page may use. Allow it, or choose a file.');
  const dialog = document.querySelector('#camera');
  const video = dialog.querySelector('video');
  const [snap, leave] = dialog.querySelectorAll('button');
  video.srcObject = stream;
  dialog.showModal();
  const isTaken = await new Promise((done) => {
    snap.onclick = () => done(video.videoWidth > 0);
    leave.onclick = dialog.onclose = () => done(false);
  });
  const canvas = make('canvas', { width: video.videoWidth, height: video.videoHeight });
  if (isTaken) canvas.getContext('2d').drawImage(video, 0, 0);
  for (const track of stream.getTracks()) track.stop();
  dialog.close();
  const blob = isTaken && await new Promise((done) => { canvas.toBlob(done, 'image/png'); });
  return blob ? new File([blob], 'camera.png', { type: 'image/png' }) : null;
}

const BATCH = /\.(csv|jsonl|ndjson)$/i;
const START = 'image';
let reading = null; // whether all of them can be used
let open = 0; // the files that are being read
const problem = make('p', { className: 'lt-refusal', role: 'alert' });

/** Let the form take the settings in a file, or the field of a setting the picture that is meant for it. */
async function giveFile(file, name) {
  const given = await upload(file);
  const isMeant = name && file.type.startsWith('image/');
  const found = isMeant ? await call('picture_check', { path: given.path }) : await call('file_read', { path: given.path }, given.orig_name);
  if (found.text) await restoreForm(found);
  else put(name ?? START, given);
}

/** Queue the videos that a file lists, whose pictures may be among the other files. */
async function addBatch(file, others) {
  const pictures = {};
  for (const one of others) pictures[one.name] = { path: (await upload(one)).path };
  const { image, ...form } = values();
  if (image) pictures[''] = { path: image.path };
  const { path } = await upload(file);
  await call('batch_add', { path }, pictures, JSON.stringify(form));
  goTo('queue');
}

/** Take files: a batch, or else the settings in the file, or else the picture. */
async function takeFiles(files, name) {
  if (place()[0] !== 'create') goTo('create');
  const batch = files.find((file) => BATCH.test(file.name) || file.type === 'text/csv');
  if (batch) await addBatch(batch, files.filter((file) => file !== batch));
  else if (files.length > 1) throw new Error(`These are ${files.length} files. Drop one at a time; only a batch file comes with its pictures.`);
  else await giveFile(files[0], name);
}

function handle(files, name) {
  const field = document.querySelector(`#set-${name ?? START}`);
  const act = async () => {
    const found = await files;
    if (found.length) await takeFiles(found, name);
  };
  problem.remove();
  const earlier = open ? reading : true;
  open += 1;
  let isTaken = true;
  const done = actOnce(field, act, (words) => {
    isTaken = false;
    problem.textContent = words;
    if (words) field.after(problem);
  }).then(() => { open -= 1; });
  reading = Promise.all([earlier, done]).then(([isGood]) => isGood && isTaken);
}

/** Wait for the files that are still on their way. Return whether they can be used. */
export const filesRead = async () => !open || reading;

function take(event, transfer) {
  const files = [...(transfer?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const field = event.target.closest?.('.lt-picture');
  handle(files, field ? nameOf(field) : undefined);
}

async function pasted() {
  const items = await navigator.clipboard.read().catch(() => []);
  for (const item of items) {
    const type = item.types.find((one) => one.startsWith('image/'));
    if (type) return [new File([await item.getType(type)], 'pasted.png', { type })];
  }
  throw new Error('There is no picture that the page may read from the clipboard. Press Ctrl + V instead.');
}

const nameOf = (field) => field.querySelector('[data-kind="picture"]').name;
const taken = async () => [await photograph()].filter(Boolean);

function prepareField(field) {
  const input = field.querySelector('[type="file"]');
  const name = nameOf(field);
  const remove = () => {
    problem.remove();
    put(name, null);
    showField(name, false);
    (document.querySelector(`[data-opens="${name}"]`) ?? field.querySelector('.lt-drop')).focus();
  };
  const sources = { file: () => input.click(), camera: () => handle(taken(), name), paste: () => handle(pasted(), name), '': remove };
  field.addEventListener('click', ({ target }) => {
    const { from, opens } = target.closest('[data-from], [data-opens]')?.dataset ?? {};
    if (opens) openField(opens);
    else sources[from]?.();
  });
  input.addEventListener('change', () => {
    handle([...input.files], name);
    input.value = '';
  });
}

/** Show the field of a further picture, which takes no room until it is wanted. */
function openField(name) {
  showField(name, true);
  document.querySelector(`#set-${name} .lt-drop`).focus();
}

/** Accept files from the fields, the clipboard and a drag. */
export function acceptPictures() {
  for (const field of document.querySelectorAll('.lt-picture')) prepareField(field);
  document.addEventListener('paste', (event) => take(event, event.clipboardData));
  document.addEventListener('dragover', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    document.documentElement.dataset.dropping = '';
  }, true);
  for (const name of ['dragleave', 'drop', 'dragend']) {
    document.addEventListener(name, (event) => {
      if (name !== 'dragleave' || !event.relatedTarget) delete document.documentElement.dataset.dropping;
    }, true);
  }
  document.addEventListener('drop', (event) => take(event, event.dataTransfer), true);
}

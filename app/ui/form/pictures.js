// The fields of pictures: what they show, and the crop over each picture, which can be moved and zoomed. And the files
// that are pasted or dropped anywhere on the page, or chosen: pictures, files with a recipe, LoRAs and batches.
import { actOnce, asPng, chooseFiles, drawn, make, onPress } from '../elements.js';
import { addressOf, post, upload } from '../server.js';
import { recallValue } from '../storage.js';
import { goTo, place } from '../tabs.js';
import { changed, facts, onDescribed, onWritten, pictureNames, put, putPicture, read, restoreForm, values, write } from './describe.js';
import { chooseLora } from './loras.js';

const START = 'image';
const LEAST_ROOM = 0.5; // percent of the picture; the crop cannot be moved by less
// Steps to the right and down, as shares of the room
const KEYS = {
  ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02], PageUp: [0, -0.2], PageDown: [0, 0.2],
  Home: [-1, -1], End: [1, 1],
};
const ZOOM = { '+': 1.1, '=': 1.1, '-': 1 / 1.1 };
export const within = (position) => Math.round(100 * Math.min(1, Math.max(0, position))) / 100;

/**
 * Let a slider over a picture be moved by keys and by dragging it. `at` returns where it is, and `way` turns pixels to the
 * right and down into shares, or returns null while it cannot be moved. `move` is called with where it was and the shares
 * from there, and `done` after the last one.
 */
export function makeMovable(slider, { at, way, move, done }) {
  slider.addEventListener('keydown', (event) => {
    if (!(event.key in KEYS) || !way(0, 0)) return;
    event.preventDefault();
    move(at(), KEYS[event.key]);
    done();
  });
  slider.addEventListener('pointerdown', (down) => {
    if (down.button || !way(0, 0)) return;
    down.preventDefault();
    slider.focus({ preventScroll: true });
    slider.setPointerCapture(down.pointerId);
    const start = at();
    const listening = new AbortController();
    const { signal } = listening;
    slider.addEventListener('pointermove', (event) => {
      move(start, way(event.clientX - down.clientX, event.clientY - down.clientY));
    }, { signal });
    slider.addEventListener('lostpointercapture', () => {
      listening.abort();
      if (String(at()) !== String(start)) done();
    }, { signal });
  });
}

function zoomFrom() {
  const zoom = read('zoom');
  return (factor) => put('zoom', Math.min(8, Math.max(0.25, Number((zoom * factor).toFixed(2)))));
}

/** Let two fingers on the start picture zoom its crop, which is not moved meanwhile. */
function acceptPinch(well, hole) {
  const fingers = new Map(); // the last event of each
  let [began, zoom] = [0, null];
  const apart = () => {
    const [one, other] = fingers.values();
    return Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  };
  well.addEventListener('pointerdown', (event) => {
    if (event.pointerType === 'touch') fingers.set(event.pointerId, event);
    if (fingers.size !== 2) return;
    [began, zoom] = [apart(), zoomFrom()];
    for (const id of fingers.keys()) if (hole.hasPointerCapture(id)) hole.releasePointerCapture(id);
  });
  well.addEventListener('pointermove', (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (fingers.size === 2) zoom(apart() / began);
  });
  for (const end of ['pointerup', 'pointercancel']) well.addEventListener(end, ({ pointerId }) => fingers.delete(pointerId));
}

class Field {
  #name;
  #block;
  #label;
  #hole;
  #frame;
  #shown; // the path of the picture; null for none
  #described = null; // the address of the picture that the server's crop belongs to

  constructor(name) {
    this.#name = name;
    this.#block = document.querySelector(`#set-${name}`);
    this.#label = this.#find('.lt-label').textContent;
    this.#hole = make('i', { role: 'slider', ariaLabel: `${this.#label}: the part that the video shows`, ariaValueMin: 0, ariaValueMax: 100 });
    this.#frame = make('div', { className: 'lt-crop' }, this.#hole);
    makeMovable(this.#hole, {
      at: () => this.#position,
      way: (x, y) => this.#wayOf(x, y),
      move: (start, way) => this.#move(start, way),
      done: changed,
    });
    if (name === START) acceptPinch(this.#find('.lt-well'), this.#hole);
    this.#hole.addEventListener('keydown', ({ key }) => { if (name === START && key in ZOOM) zoomFrom()(ZOOM[key]); });
    this.#hole.addEventListener('wheel', (event) => {
      if (name !== START || document.activeElement !== this.#hole) return;
      event.preventDefault();
      zoomFrom()(event.deltaY < 0 ? 1.1 : 1 / 1.1);
    });
    onDescribed(() => {
      this.#described = this.#find('img')?.getAttribute('src') ?? null;
      this.#place();
    });
    onWritten((written) => { if (written === name) this.#show(); });
  }

  #find(selector) { return this.#block.querySelector(selector); }

  get #crop() { return facts().crops?.[this.#name]; }

  get #position() {
    const across = read(this.#block.dataset.crop);
    return [across, (this.#name === START && read('crop_y')) ?? across];
  }

  get #room() { const [, , width, height] = this.#crop; return [100 - width, 100 - height]; }

  get #moves() { return this.#room.map((room) => room > LEAST_ROOM); }

  #place() {
    const image = this.#find('img');
    this.#frame.hidden = !this.#crop || !image?.naturalWidth || this.#described !== image.getAttribute('src');
    if (this.#frame.hidden) return;
    if (!this.#frame.isConnected) this.#find('.lt-well').append(this.#frame);
    this.#frame.style.setProperty('--ratio', image.naturalWidth / image.naturalHeight);
    const [, , width, height] = this.#crop;
    const [x, y] = this.#room.map((share, axis) => share * this.#position[axis]);
    this.#frame.style.setProperty('--hole', `${y}% ${100 - x - width}% ${100 - y - height}% ${x}%`);
    this.#frame.dataset.crop = this.#crop.join(' ');
    this.#describeHole();
  }

  #describeHole() {
    const [across, down] = this.#moves;
    const [x, y] = this.#position.map((share) => Math.round(100 * share));
    this.#frame.dataset.moves = [across && 'across', down && 'down'].filter(Boolean).join(' ');
    const isFree = across || down || this.#name === START; // which can be zoomed
    this.#hole.tabIndex = isFree ? 0 : -1;
    this.#hole.setAttribute('aria-disabled', !isFree);
    this.#hole.setAttribute('aria-orientation', across ? 'horizontal' : 'vertical');
    this.#hole.setAttribute('aria-valuenow', across ? x : y);
    if (across && down) this.#hole.setAttribute('aria-valuetext', `${x} % across, ${y} % down`);
    else this.#hole.removeAttribute('aria-valuetext');
  }

  #wayOf(x, y) {
    const box = this.#frame.getBoundingClientRect();
    const ways = [x / box.width, y / box.height].map((share, axis) => (this.#moves[axis] ? (100 * share) / this.#room[axis] : 0));
    return this.#frame.dataset.moves ? ways : null;
  }

  #move([x, y], [right, down]) {
    const isFree = this.#moves.every(Boolean);
    write(this.#block.dataset.crop, within(isFree ? x + right : (this.#moves[0] ? x : y) + right + down));
    if (this.#name === START) write('crop_y', isFree ? within(y + down) : null);
    this.#place();
  }

  #show() {
    const [picture, before] = [read(this.#name), this.#shown];
    if (before === (picture?.path ?? null)) return;
    this.#shown = picture?.path ?? null;
    this.#block.classList.remove('lt-unseen');
    this.#find('img')?.remove();
    this.#find('.lt-drop').hidden = Boolean(picture);
    this.#find('[data-from=""]').hidden = !picture;
    if (picture) {
      const image = make('img', { alt: this.#label, src: addressOf(picture.path) });
      image.addEventListener('load', () => this.#place());
      // The server says why a picture cannot be used.
      image.addEventListener('error', () => this.#block.classList.add('lt-unseen'));
      this.#find('.lt-well').append(image);
    }
    if (before) { // the part of another picture says nothing about this one
      write(this.#block.dataset.crop, 0.5);
      if (this.#name === START) write('crop_y', null);
      if (this.#name === START) write('zoom', 1);
    }
    this.#place();
  }
}

pictureNames().forEach((name) => new Field(name));

export async function restorePictures() {
  const kept = recallValue('form') ?? {};
  for (const name of pictureNames()) {
    const isHere = kept[name]?.path && (await fetch(addressOf(kept[name].path)).catch(() => null))?.ok;
    if (isHere && !read(name)) write(name, kept[name]);
  }
}

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
  const blob = isTaken && await asPng(drawn(video, video.videoWidth, video.videoHeight));
  for (const track of stream.getTracks()) track.stop();
  dialog.close();
  return blob ? new File([blob], 'camera.png', { type: 'image/png' }) : null;
}

const BATCH = /\.(csv|tsv|txt|jsonl|ndjson|xlsx?|ods)$/i;
const LORA = /\.safetensors$/i;
let reading = null; // whether all of them can be used
let open = 0; // the files that are being read
const problem = make('p', { className: 'lt-refusal', role: 'alert' });

async function giveFile(file, name) {
  const given = await upload(file);
  if (LORA.test(file.name)) {
    chooseLora(await post('lora_add', { file: { path: given.path }, name: file.name }), 1);
    return;
  }
  const isMeant = name && file.type.startsWith('image/');
  const found = await (isMeant ? post('picture_check', { file: given }) : post('file_read', { file: given, name: given.orig_name }));
  if (found.text) await restoreForm(found);
  else putPicture(name ?? START, given);
}

async function addBatch(file, others) {
  const pictures = {};
  for (const other of others) pictures[other.name] = { path: (await upload(other)).path };
  const { image, ...form } = values();
  if (image) pictures[''] = { path: image.path };
  const { path } = await upload(file);
  await post('batch_add', { file: { path }, pictures, form: JSON.stringify(form) });
  goTo('queue');
}

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

/** Wait for the files that are being read; false if they cannot be used. */
export const filesRead = async () => !open || reading;

function take(event, transfer) {
  const files = [...(transfer?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const field = event.target.closest?.('.lt-picture');
  handle(files, field ? nameOf(field) : undefined);
}

// A cell of a spreadsheet is text with a picture of it. For a file, a file manager gives its name as the text.
function paste(event) {
  const { clipboardData, target } = event;
  const text = clipboardData?.getData('text/plain').trim();
  const isNamed = [...(clipboardData?.files ?? [])].some(({ name }) => text.includes(name));
  const isForText = text && !isNamed && typeof target.selectionStart === 'number';
  if (!isForText) take(event, clipboardData);
}

async function pasted() {
  const items = await navigator.clipboard.read().catch(() => []);
  for (const item of items) {
    const type = item.types.find((name) => name.startsWith('image/'));
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
    putPicture(name, null);
    field.querySelector('.lt-drop').focus();
  };
  const sources = { file: () => input.click(), camera: () => handle(taken(), name), paste: () => handle(pasted(), name), '': remove };
  field.addEventListener('click', ({ target }) => {
    sources[target.closest('[data-from]')?.dataset.from]?.();
  });
  input.addEventListener('change', () => {
    handle([...input.files], name);
    input.value = '';
  });
}

export function acceptPictures() {
  // Buttons for files that can be dropped as well: LoRAs, and batches with their pictures
  for (const button of document.querySelectorAll('[data-accept]')) {
    onPress(button, async () => handle(await chooseFiles(button.dataset.accept, true)));
  }
  for (const field of document.querySelectorAll('.lt-picture')) prepareField(field);
  document.addEventListener('paste', paste);
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

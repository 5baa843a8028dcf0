// The crop, drawn over the picture as the form shows it. It can be moved where the picture is longer than the video.
import { make } from '../elements.js';
import { facts, moveCropOn } from './component.js';
import { forgetRefusal } from './pictures.js';

const KEYS = { ArrowLeft: -0.02, ArrowUp: -0.02, ArrowRight: 0.02, ArrowDown: 0.02, PageUp: -0.2, PageDown: 0.2, Home: -1, End: 1 };
const LEAST_ROOM = 0.5; // percent of the picture; the crop cannot be moved by less
const TIMEOUT = 2000; // milliseconds until the server knows of a move

const hole = make('i', { role: 'slider', ariaLabel: 'Part of the picture that the video shows' });
const frame = make('div', { className: 'lt-crop' }, hole);
const sizes = new ResizeObserver(() => placeCrop());
let described = null; // the address of the picture that the server's crop belongs to
let picture = null; // the address of the picture in the field
let moved = null; // where the user has put the crop, until the server says the same
let movedAt = 0;

const block = () => document.querySelector('#set-image');
const shownPicture = () => block()?.querySelector('.image-frame img, .image-container img');

/** Return where the picture lies in its block: an image element is larger than the picture that it fits in. */
function placeOf(image) {
  const box = image.getBoundingClientRect();
  const outer = block().getBoundingClientRect();
  const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  const width = image.naturalWidth * scale;
  const height = image.naturalHeight * scale;
  const zoom = block().currentCSSZoom ?? 1; // boxes are measured in the window's pixels
  return {
    left: (box.left - outer.left + (box.width - width) / 2) / zoom,
    top: (box.top - outer.top + (box.height - height) / 2) / zoom,
    width: width / zoom,
    height: height / zoom,
  };
}

/** Return the crop, in percent of the picture, at the position where it is now. */
function cropNow() {
  const [, , width, height] = facts().crop;
  const position = positionNow();
  return [(100 - width) * position, (100 - height) * position, width, height];
}

const positionNow = () => moved ?? facts().cropAt ?? 0.5;
const room = () => { const [, , width, height] = facts().crop; return [100 - width, 100 - height]; };

function describeHole() {
  const [across, down] = room();
  const isMovable = Math.max(across, down) > LEAST_ROOM;
  frame.dataset.moves = isMovable ? (across > down ? 'across' : 'down') : '';
  hole.tabIndex = isMovable ? 0 : -1;
  hole.setAttribute('aria-disabled', !isMovable);
  hole.setAttribute('aria-orientation', across > down ? 'horizontal' : 'vertical');
  hole.setAttribute('aria-valuenow', Math.round(100 * positionNow()));
}

function placeCrop() {
  const image = shownPicture();
  frame.hidden = !facts().crop || !image?.naturalWidth || described !== image.src;
  if (frame.hidden) return;
  if (frame.parentElement !== block()) block().append(frame);
  sizes.observe(image);
  for (const [name, length] of Object.entries(placeOf(image))) frame.style[name] = `${length}px`;
  const [x, y, width, height] = cropNow();
  frame.style.setProperty('--hole', `${y}% ${100 - x - width}% ${100 - y - height}% ${x}%`);
  frame.dataset.crop = facts().crop.join(' ');
  describeHole();
}

function move(position) {
  moved = Math.round(100 * Math.min(1, Math.max(0, position))) / 100;
  movedAt = performance.now();
  placeCrop();
}

/** Return where the user has put the crop. */
export const givenCrop = () => positionNow();

function takeKey(event) {
  if (!(event.key in KEYS) || !frame.dataset.moves) return;
  event.preventDefault();
  move(positionNow() + KEYS[event.key]);
  moveCropOn();
}

function takePointer(down) {
  if (!frame.dataset.moves || down.button) return;
  down.preventDefault();
  hole.focus({ preventScroll: true });
  hole.setPointerCapture(down.pointerId);
  const [across, along] = room();
  const box = frame.getBoundingClientRect();
  const start = positionNow();
  const listening = new AbortController();
  const { signal } = listening;
  hole.addEventListener('pointermove', (event) => {
    const isAcross = frame.dataset.moves === 'across';
    const way = isAcross ? (event.clientX - down.clientX) / box.width : (event.clientY - down.clientY) / box.height;
    move(start + (100 * way) / (isAcross ? across : along));
  }, { signal });
  for (const name of ['pointerup', 'pointercancel']) {
    hole.addEventListener(name, () => {
      listening.abort();
      if (positionNow() !== start) moveCropOn();
    }, { signal });
  }
}

/** Show the crop that the server has just sent. */
export function reportCrop() {
  described = document.querySelector('#set-image img')?.src ?? null;
  if (moved === facts().cropAt || performance.now() - movedAt > TIMEOUT) moved = null;
  placeCrop();
}

/** Move the crop back to the middle when another picture replaces one. */
export function takePicture(value) {
  forgetRefusal();
  const isOther = picture !== null && picture !== (value?.url ?? null);
  picture = value?.url ?? null;
  if (!isOther || positionNow() === 0.5) return;
  move(0.5);
  moveCropOn();
}

// The button's own text names it; Gradio's label differs from the visible text, and comes back with each translation.
function nameUpload() {
  document.querySelector('#set-image .upload-container[aria-label]')?.removeAttribute('aria-label');
}

/** Keep the crop in its place while pictures come, go and change their size. */
export function watchPicture() {
  const whole = block();
  sizes.observe(whole);
  hole.setAttribute('aria-valuemin', 0);
  hole.setAttribute('aria-valuemax', 100);
  hole.addEventListener('keydown', takeKey);
  hole.addEventListener('pointerdown', takePointer);
  new MutationObserver((changes) => {
    if (changes.every((change) => frame.contains(change.target) || change.target === whole)) return;
    nameUpload();
    const image = shownPicture();
    if (image && !image.complete) image.addEventListener('load', placeCrop, { once: true });
    placeCrop();
  }).observe(whole, { childList: true, subtree: true, attributeFilter: ['src', 'aria-label'] });
  nameUpload();
  // A picture that browsers cannot show, such as a TIFF, may still be used; the server says which cannot.
  whole.addEventListener('load', () => {
    whole.classList.remove('lt-unseen');
    placeCrop();
  }, true);
  whole.addEventListener('error', () => whole.classList.add('lt-unseen'), true);
}

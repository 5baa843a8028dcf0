// The crop, drawn over the picture as the form shows it. It can be moved where the picture is longer than the video.
import { make } from '../elements.js';
import { changed } from './changes.js';
import { facts, onDescribed } from './describe.js';
import { read, write } from './values.js';

const KEYS = { ArrowLeft: -0.02, ArrowUp: -0.02, ArrowRight: 0.02, ArrowDown: 0.02, PageUp: -0.2, PageDown: 0.2, Home: -1, End: 1 };
const LEAST_ROOM = 0.5; // percent of the picture; the crop cannot be moved by less

const hole = make('i', { role: 'slider', ariaLabel: 'Part of the picture that the video shows' });
const frame = make('div', { className: 'lt-crop' }, hole);
const sizes = new ResizeObserver(() => placeCrop());
let described = null; // the picture that the server's crop belongs to
let picture = null; // the path of the picture in the field

const block = () => document.querySelector('#set-image');
const shownPicture = () => block().querySelector('img');

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

const positionNow = () => read('crop');
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

/** Draw the crop where it belongs. */
export function placeCrop() {
  const image = shownPicture();
  frame.hidden = !facts().crop || !image?.naturalWidth || described !== image.getAttribute('src');
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
  write('crop', Math.round(100 * Math.min(1, Math.max(0, position))) / 100);
  placeCrop();
}

function takeKey(event) {
  if (!(event.key in KEYS) || !frame.dataset.moves) return;
  event.preventDefault();
  move(positionNow() + KEYS[event.key]);
  changed();
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
      if (positionNow() !== start) changed();
    }, { signal });
  }
}

/** Move the crop back to the middle when another picture replaces one, whose path is given. */
export function takePicture(path) {
  const isOther = picture !== null && picture !== path;
  picture = path;
  if (isOther) write('crop', 0.5);
  placeCrop();
}

/** Keep the crop in its place while descriptions come and the picture changes its size. */
export function watchPicture() {
  sizes.observe(block());
  hole.setAttribute('aria-valuemin', 0);
  hole.setAttribute('aria-valuemax', 100);
  hole.addEventListener('keydown', takeKey);
  hole.addEventListener('pointerdown', takePointer);
  onDescribed(() => {
    described = shownPicture()?.getAttribute('src') ?? null;
    placeCrop();
  });
}

// The crop, drawn over the picture as the form shows it.
import { make } from '../elements.js';
import { facts } from './component.js';

const frame = make('div', { className: 'lt-crop' }, make('i'));
const sizes = new ResizeObserver(() => placeCrop());
let described = null; // the address of the picture that the server's crop belongs to

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

function placeCrop() {
  const image = shownPicture();
  const crop = facts().crop;
  frame.hidden = true;
  if (!crop || !image?.naturalWidth || described !== image.src) return;
  if (frame.parentElement !== block()) block().append(frame);
  sizes.observe(image);
  for (const [name, length] of Object.entries(placeOf(image))) frame.style[name] = `${length}px`;
  const [x, y, width, height] = crop;
  frame.style.setProperty('--hole', `${y}% ${100 - x - width}% ${100 - y - height}% ${x}%`);
  frame.dataset.crop = crop.join(' ');
  frame.hidden = false;
}

/** Show the crop that the server has just named. */
export function tellCrop() {
  described = document.querySelector('#set-image img')?.src ?? null;
  placeCrop();
}

// The button's own text names it; Gradio's label differs from the visible text, and comes back with each translation.
function nameUpload() {
  document.querySelector('#set-image .upload-container[aria-label]')?.removeAttribute('aria-label');
}

/** Keep the crop in its place while pictures come, go and change their size. */
export function watchPicture() {
  const whole = block();
  sizes.observe(whole);
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

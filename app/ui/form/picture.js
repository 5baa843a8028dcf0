// The fields of pictures: what they show, and what the browser keeps of them.
import { addressOf, upload } from '../calls/call.js';
import { make } from '../elements.js';
import { labelOf, placeCrops, takePicture } from './crop.js';
import { changed, keepPicture, keptPicture } from './keep.js';
import { onWritten, pictureNames, read, write } from './values.js';

let isRestored = false; // an empty field means nothing until the kept pictures have been looked for
const shown = {}; // the path of the picture that each field shows

const block = (name) => document.querySelector(`#set-${name}`);

async function keepShown(name, picture) {
  if (!picture) {
    if (isRestored) keepPicture(name, null);
    return;
  }
  const content = await (await fetch(addressOf(picture.path))).blob();
  if (shown[name] === picture.path) keepPicture(name, new File([content], picture.orig_name, { type: content.type }));
}

/** Show or hide the field of a further picture; the start picture's is always there. */
export function showField(name, isShown) {
  const further = block(name).closest('.lt-besides');
  if (!further) return;
  further.hidden = !isShown;
  document.querySelector(`[data-opens="${name}"]`).hidden = isShown;
}

function show(name) {
  const picture = read(name);
  if (shown[name] === (picture?.path ?? null)) return;
  shown[name] = picture?.path ?? null;
  showField(name, Boolean(picture));
  const field = block(name);
  field.classList.remove('lt-unseen');
  field.querySelector('img')?.remove();
  field.querySelector('.lt-drop').hidden = Boolean(picture);
  field.querySelector('[data-from=""]').hidden = name === 'image' && !picture;
  if (picture) {
    const image = make('img', { alt: labelOf(name), src: addressOf(picture.path) });
    image.addEventListener('load', placeCrops);
    // A picture that browsers cannot show, such as a TIFF, may still be used; the server says which cannot.
    image.addEventListener('error', () => field.classList.add('lt-unseen'));
    field.querySelector('.lt-well').append(image);
  }
  takePicture(name, shown[name]);
  keepShown(name, picture).catch((error) => console.info('The picture is not kept:', error.message));
}

/** Let the field of a setting, by default the start picture's, take an upload; null for none. */
export function setPicture(picture, name = 'image') {
  write(name, picture);
  changed();
}

/** Put the kept pictures back into their fields. */
export async function restorePictures() {
  for (const name of pictureNames()) {
    const file = await keptPicture(name);
    if (file && !read(name)) write(name, await upload(file).catch(() => null));
  }
  isRestored = true;
}

onWritten((name) => { if (pictureNames().includes(name)) show(name); });

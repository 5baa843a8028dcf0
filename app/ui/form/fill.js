// The functions by which other parts of the page put the settings of a video, a preset or a file into the form.
import { call, request, upload } from '../calls/call.js';
import { goTo, place } from '../tabs.js';
import { changed, keptSettings, put, take } from './describe.js';
import { pictureNames } from './values.js';

/** Show the form with an endpoint's answer: settings as text, and the paths of pictures by setting. */
export async function restoreForm({ text, pictures = {} }) {
  if (place()[0] !== 'create') goTo('create');
  // Settings that say nothing of a start picture leave the form's. Another picture belongs to one video.
  const isWhole = JSON.parse(text).is_whole;
  for (const name of pictureNames()) {
    if (pictures[name]) put(name, { path: pictures[name], orig_name: `${name === 'image' ? 'start' : name}-picture.png` });
    else if (isWhole && (name !== 'image' || pictures.image === '')) put(name, null);
  }
  take(await call('form_fill', text, keptSettings()));
  changed();
}

/** Show the form with these settings, by their names; null stands for a default, and the others stay as they are. */
export const takeSettings = (settings) => (
  restoreForm({ text: JSON.stringify({ name: '', settings, extras: '', is_whole: false, notices: [] }) })
);

/** Show the form with this model and its own steps, guidance and size; the other settings stay as they are. */
export const chooseModel = (model) => takeSettings({ model, steps: null, guidance: null, resolution: null });

/** Show the form with the picture at an address as its start picture; everything else stays as it is. */
export async function offerPicture(address) {
  const answer = await request(address);
  if (!answer.ok) throw new Error('This picture no longer exists.');
  if (place()[0] !== 'create') goTo('create');
  put('image', await upload(new File([await answer.blob()], address.split('/').pop())));
}

// The functions by which other parts of the page put the settings of a video, a preset or a file into the form.
import { call } from '../calls/call.js';
import { goTo, place } from '../tabs.js';
import { changed } from './changes.js';
import { take } from './describe.js';
import { keptSettings } from './keep.js';
import { setPicture } from './picture.js';
import { upload } from './uploaded.js';

/** Show the form with an endpoint's answer: settings as text, and pictures by setting. */
export async function restoreForm(restored) {
  if (place()[0] !== 'create') goTo('create');
  for (const [name, path] of Object.entries(restored.pictures ?? {})) setPicture({ path, orig_name: 'start-picture.png' }, name);
  take(await call('form_fill', restored.text, keptSettings()));
  changed();
}

/** Show the form with these settings, by their names; null stands for a default, and the others stay as they are. */
export const takeSettings = (settings) => (
  restoreForm({ text: JSON.stringify({ name: '', settings, extras: '', is_whole: false, notices: [] }) })
);

/** Show the form with this model and its own steps, guidance and size; the other settings stay as they are. */
export const chooseModel = (model) => takeSettings({ model, steps: null, guidance: null, resolution: null });

/**
 * Show the form with these settings, by their names in a request; those that are missing get their defaults.
 * @param {object} given the settings
 * @param {?string} picture the address of the start picture, relative to the page; without it the form keeps its own
 */
export async function fillForm(given, picture = null) {
  const answer = picture && await fetch(picture);
  if (answer?.ok) {
    const content = await answer.blob();
    setPicture(await upload(new File([content], picture.split('/').pop(), { type: content.type })));
  }
  const extras = given.extras ?? '';
  await restoreForm({ text: JSON.stringify({ name: '', settings: given, extras, is_whole: true, notices: [] }) });
  if (answer && !answer.ok) throw new Error('The start picture of this video no longer exists.');
}

// The functions by which other parts of the page put the settings of a video, a preset or a file into the form.
import { recall } from '../storage.js';
import { goTo, place } from '../tabs.js';
import { passSettingsOn } from './component.js';
import { described, handOver, upload } from './uploaded.js';

let message = '';

/** Return the settings that the form is to take, as JSON, together with those that it has. */
export const givenSettings = () => message;

/** Show the form with an endpoint's answer: settings as text, and pictures by setting. */
export function restoreForm(restored) {
  message = JSON.stringify({ restored: restored.text, kept: recall('form') });
  for (const [name, path] of Object.entries(restored.pictures ?? {})) handOver(described(path, 'start-picture.png'), name);
  passSettingsOn();
  if (place()[0] !== 'create') goTo('create');
}

/** Show the form with these settings, by their names; null stands for a default, and the others stay as they are. */
export function takeSettings(settings) {
  restoreForm({ text: JSON.stringify({ name: '', settings, extras: '', is_whole: false, notices: [] }) });
}

/** Show the form with this model and its own steps, guidance and size; the other settings stay as they are. */
export function chooseModel(model) {
  takeSettings({ model, steps: null, guidance: null, resolution: null });
}

/**
 * Show the form with these settings, by their names in a request; those that are missing get their defaults.
 * @param {object} given the settings
 * @param {?string} picture the address of the start picture, relative to the page; without it the form keeps its own
 */
export async function fillForm(given, picture = null) {
  const extras = given.extras ?? '';
  restoreForm({ text: JSON.stringify({ name: '', settings: given, extras, is_whole: true, notices: [] }) });
  if (!picture) return;
  const answer = await fetch(new URL(picture, document.baseURI));
  if (!answer.ok) throw new Error('The start picture of this video no longer exists.');
  const content = await answer.blob();
  handOver(await upload(new File([content], picture.split('/').pop(), { type: content.type })));
}

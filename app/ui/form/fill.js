// The way in which other parts of the page put the settings of a video into the form.
import { goTo } from '../tabs.js';
import { passSettingsOn } from './component.js';
import { givePicture } from './pictures.js';

let settings = null;

/** Return the settings that the form is to take, as JSON. */
export const givenSettings = () => JSON.stringify(settings);

/**
 * Show the form with these settings, by their names in a request; those that are missing get their defaults.
 * @param {object} given the settings
 * @param {?string} picture the address of the start picture, relative to the page; without it the form keeps its own
 */
export async function fillForm(given, picture = null) {
  settings = given;
  passSettingsOn();
  goTo('create');
  if (!picture) return;
  const answer = await fetch(new URL(picture, document.baseURI));
  if (!answer.ok) throw new Error('The start picture of this video is not there any more.');
  const content = await answer.blob();
  await givePicture(new File([content], picture.split('/').pop(), { type: content.type }));
}

// The way of settings from an earlier video, a preset or a file into the form.
import { recall } from '../storage.js';
import { fillOn } from './component.js';
import { described, handOver } from './uploaded.js';

let message = '';

/** Return the settings that the form is to take, together with those that it has. */
export const givenSettings = () => message;

/** Let the form take what an endpoint has returned: its settings and, if there is one, its picture. */
export function fillForm(restored) {
  message = JSON.stringify({ restored: restored.text, kept: recall('form') });
  if (restored.picture) handOver(described(restored.picture, 'start-picture.png'));
  fillOn();
}

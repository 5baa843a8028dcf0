// The example of a program that makes the same video, with the form's present settings.
import { offerCopy } from '../copy.js';
import { facts } from './component.js';

const page = () => new URL('.', document.baseURI).href;

/** Update the example. */
export function reportProgram() {
  const code = document.querySelector('#lt-program pre code');
  if (code) code.textContent = (facts().program || '').replace('PAGE', () => page());
}

/** Let the example be copied. */
export function prepareProgram() {
  const box = document.querySelector('#lt-program');
  offerCopy(box.querySelector('button'), box.querySelector('pre code'));
  box.addEventListener('toggle', () => { if (box.open) box.scrollIntoView({ block: 'nearest' }); });
}

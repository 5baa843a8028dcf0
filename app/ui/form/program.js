// The example of a program that makes the same video, with the form's present settings.
import { offerCopy } from '../copy.js';
import { facts, onDescribed } from './describe.js';

const page = () => new URL('.', document.baseURI).href;

function show() {
  const code = document.querySelector('#lt-program pre code');
  code.textContent = (facts().program || '').replace('PAGE', () => page());
}

/** Let the example be copied. */
export function prepareProgram() {
  const box = document.querySelector('#lt-program');
  onDescribed(show);
  offerCopy(box.querySelector('button'), box.querySelector('pre code'));
  box.addEventListener('toggle', () => { if (box.open) box.scrollIntoView({ block: 'nearest' }); });
}

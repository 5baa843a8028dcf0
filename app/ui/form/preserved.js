// The buttons beneath the memory plan that fill the form: with another preserved memory, or with a whole set-up.
import { takeSettings } from './fill.js';

/** Let the buttons in an element, whose content changes, fill the form. */
export function offerPreserved(element) {
  element.addEventListener('click', (event) => {
    const given = event.target.closest('[data-preserved], [data-recommended]')?.dataset;
    if (!given) return;
    const field = document.querySelector('#set-preserved_gb input[type="number"]');
    field.focus(); // the button is about to leave
    if (given.recommended) takeSettings(JSON.parse(given.recommended));
    else {
      field.value = given.preserved;
      field.dispatchEvent(new Event('input', { bubbles: true }));
    }
  });
}

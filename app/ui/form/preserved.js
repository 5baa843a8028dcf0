// The buttons beneath the memory plan that put another preserved memory into its field.

/** Let the buttons in an element, whose content changes, fill the field. */
export function offerPreserved(element) {
  element.addEventListener('click', (event) => {
    const value = event.target.closest('[data-preserved]')?.dataset.preserved;
    if (!value) return;
    const field = document.querySelector('#set-preserved_gb input[type="number"]');
    field.focus(); // the button is about to leave
    field.value = value;
    field.dispatchEvent(new Event('input', { bubbles: true }));
  });
}

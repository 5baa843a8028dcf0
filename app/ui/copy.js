// A button that copies a text, or selects it if the browser does not let a page copy.

const TOLD_FOR = 4000; // milliseconds

/** Let the button copy the text of an element. */
export function offerCopy(button, source) {
  const label = button.textContent;
  let reset = 0;
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = 'Copied';
    } catch { // Without a secure context there is no clipboard, so the text is selected instead.
      const fold = source.closest('details');
      if (fold) fold.open = true;
      window.getSelection().selectAllChildren(source);
      button.textContent = 'Selected: press Ctrl + C';
    }
    clearTimeout(reset);
    reset = setTimeout(() => { button.textContent = label; }, TOLD_FOR);
  });
}

// A refusal takes the person to the control that it is about.
let marked = null;
function goThere() {
  marked?.removeAttribute('aria-invalid');
  marked = null;
  const name = element.querySelector('[data-control]')?.dataset.control;
  if (!name) return;
  window.longtake?.openFoldOf?.(name);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const block = document.querySelector(`#set-${name}`);
    marked = block?.querySelector('textarea, input[type="number"], input:not([type="file"]), button');
    marked?.setAttribute('aria-invalid', 'true');
    marked?.focus();
    block?.scrollIntoView({ block: 'nearest' });
  }));
}
watch('value', goThere);

// The form: what `props.value` says of the settings is put beside them, and keys, clicks and pictures are taken in.
const shared = (window.longtake = window.longtake || {});
const find = (selector) => document.querySelector(selector);
const isForm = (target) => target === document.body || Boolean(target.closest && target.closest('.lt-request'));

// ---- Folds: their state at the right of the head, open or closed as this browser left them.
const FOLDS = ['look', 'output', 'memory'];
const foldHead = (name) => find(`#fold-${name} > button`);

function keepFolds() {
  const open = FOLDS.filter((name) => foldHead(name)?.classList.contains('open'));
  try { localStorage.setItem('longtake.folds', JSON.stringify(open)); } catch { /* not allowed to keep anything */ }
}

function prepareFolds() {
  let open = [];
  try { open = JSON.parse(localStorage.getItem('longtake.folds')) || []; } catch { /* nothing kept */ }
  for (const name of FOLDS) {
    const head = foldHead(name);
    if (!head) return false;
    const tell = () => head.setAttribute('aria-expanded', String(head.classList.contains('open')));
    new MutationObserver(() => { tell(); keepFolds(); }).observe(head, { attributeFilter: ['class'] });
    tell();
    if (open.includes(name) && !head.classList.contains('open')) head.click();
  }
  return true;
}

shared.openFoldOf = (name) => {
  const block = find(`#set-${name}`);
  if (block && block.offsetParent) return;
  for (const fold of FOLDS) {
    const head = foldHead(fold);
    if (head && !head.classList.contains('open')) head.click();
  }
};

// ---- The crop, over the picture as it is shown.
const frame = document.createElement('div');
frame.className = 'lt-crop';
let cropped = null;
const sizes = new ResizeObserver(() => placeCrop());

function placeCrop() {
  const block = find('#set-image');
  const image = block?.querySelector('.image-frame img, .image-container img');
  const crop = props.value?.crop;
  frame.hidden = true;
  if (!image || !crop || !image.naturalWidth || cropped !== image.src) return;
  if (frame.parentElement !== block) block.append(frame);
  sizes.observe(image);
  const box = image.getBoundingClientRect();
  const outer = block.getBoundingClientRect();
  const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  const width = image.naturalWidth * scale;
  const height = image.naturalHeight * scale;
  const left = box.left - outer.left + (box.width - width) / 2;
  const top = box.top - outer.top + (box.height - height) / 2;
  frame.style.left = `${left}px`;
  frame.style.top = `${top}px`;
  frame.style.width = `${width}px`;
  frame.style.height = `${height}px`;
  const [x, y, w, h] = crop;
  frame.style.setProperty('--hole', `${y}% ${100 - x - w}% ${100 - y - h}% ${x}%`);
  frame.dataset.crop = crop.join(' ');
  frame.hidden = false;
}
frame.innerHTML = '<i></i>';

function watchPicture() {
  const block = find('#set-image');
  sizes.observe(block);
  new MutationObserver((changes) => {
    if (changes.every((change) => frame.contains(change.target) || change.target === block)) return;
    nameUpload();
    const image = block.querySelector('.image-frame img, .image-container img');
    if (image && !image.complete) image.addEventListener('load', placeCrop, { once: true });
    placeCrop();
  }).observe(block, { childList: true, subtree: true, attributeFilter: ['src'] });
  nameUpload();
  // A picture that browsers cannot show, such as a TIFF, may still be used; what cannot be used says so itself.
  block.addEventListener('load', () => { block.classList.remove('lt-unseen'); placeCrop(); }, true);
  block.addEventListener('error', () => block.classList.add('lt-unseen'), true);
}

// The button's own text names it. Gradio's label says something else than what is to be read there.
function nameUpload() {
  find('#set-image .upload-container[aria-label]')?.removeAttribute('aria-label');
}

// ---- What the settings come to.
shared.changed = () => trigger('submit');
function tell() {
  const facts = props.value || {};
  for (const name of FOLDS) if (foldHead(name)) foldHead(name).dataset.state = facts[name] || '';
  const label = find('#set-image label');
  if (label) label.dataset.hint = facts.size || '';
  if (facts.model && find('#lt-model')) find('#lt-model').textContent = facts.model;
  shared.promptChanged?.();
  cropped = find('#set-image img')?.src ?? null;
  placeCrop();
}

// ---- Keys and clicks. A double click is one press, and so is a key that is held down.
document.addEventListener('click', (event) => {
  const button = event.target.closest?.('#start, #end');
  if (!button) return;
  if (event.detail > 1) {
    event.preventDefault();
    event.stopImmediatePropagation();
  } else if (button.id === 'start') shared.rememberPrompt?.();
}, true);

document.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter') return;
  const held = event.repeat && event.target.closest?.('#start, #end');
  const starts = (event.ctrlKey || event.metaKey) && isForm(event.target);
  if (!held && !starts) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (!event.repeat) find('#start')?.click();
}, true);

// Of a text field browsers bring only the cursor's line into view, and not from under the start button.
document.addEventListener('keyup', (event) => {
  if (event.key === 'Tab' && event.target.tagName === 'TEXTAREA') event.target.scrollIntoView({ block: 'nearest' });
});

// ---- Pictures that are pasted or dropped anywhere on the page.
shared.givePicture = async (file) => {
  const body = new FormData();
  body.append('files', file, file.name || 'pasted.png');
  const root = (window.gradio_config?.root || '').replace(/\/$/, '');
  const prefix = window.gradio_config?.api_prefix ?? '/gradio_api';
  const reply = await fetch(`${root}${prefix}/upload`, { method: 'POST', body });
  if (!reply.ok) throw new Error(`The upload was refused (${reply.status}).`);
  const [path] = await reply.json();
  const url = `${root}${prefix}/file=${path}`;
  shared.picture = {
    path, url, orig_name: file.name || 'pasted.png', size: file.size, mime_type: file.type,
    meta: { _type: 'gradio.FileData' },
  };
  trigger('input');
};

const firstFile = (transfer) => [...(transfer?.files || [])][0];
document.addEventListener('paste', (event) => {
  const file = firstFile(event.clipboardData);
  if (!file) return;
  event.preventDefault();
  shared.givePicture(file).catch((error) => console.warn(error));
});
document.addEventListener('dragover', (event) => {
  if (![...(event.dataTransfer?.types || [])].includes('Files')) return;
  event.preventDefault();
  find('#set-image')?.classList.add('lt-dropping');
}, true);
for (const name of ['dragleave', 'drop', 'dragend']) {
  document.addEventListener(name, (event) => {
    if (name !== 'dragleave' || !event.relatedTarget) find('#set-image')?.classList.remove('lt-dropping');
  }, true);
}
document.addEventListener('drop', (event) => {
  const file = firstFile(event.dataTransfer);
  if (!file) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  shared.givePicture(file).catch((error) => console.warn(error));
}, true);

// Gradio's own button only changes to the field that is there already.
document.addEventListener('click', (event) => {
  if (!event.target.closest?.('#set-image [aria-label="Upload file"]')) return;
  requestAnimationFrame(() => find('#set-image input[type="file"]')?.click());
});

// ---- A finished job makes the estimate better.
function watchJobs() {
  new MutationObserver((changes) => {
    if (changes.some((change) => change.target.dataset.state === 'finished')) trigger('submit');
  }).observe(document.body, { subtree: true, attributeFilter: ['data-state'] });
}

// ---- Once the other components stand.
function settle(tries = 0) {
  if (!find('#set-image') || !find('#set-prompt textarea') || !prepareFolds()) {
    if (tries < 300) requestAnimationFrame(() => settle(tries + 1));
    return;
  }
  const hint = find('#set-prompt [data-testid="block-info"]');
  hint.dataset.hint = /Mac|iPhone|iPad/.test(navigator.platform) ? '⌘ Enter starts' : 'Ctrl + Enter starts';
  watchPicture();
  watchJobs();
  shared.preparePrompts?.();
  shared.preparePromptHelp?.();
  shared.restorePicture?.();
  tell();
}
watch('value', tell);
requestAnimationFrame(() => settle());

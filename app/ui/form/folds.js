// The folds of the form, each with its state at the right of its head, open or closed as this browser left them.
import { keep, recallTexts } from '../storage.js';

const FOLDS = ['look', 'output', 'memory'];
const head = (name) => document.querySelector(`#fold-${name} > button`);
const isOpen = (name) => head(name)?.classList.contains('open') ?? false;

function open(name) {
  if (head(name) && !isOpen(name)) head(name).click();
}

function watchFold(name) {
  const tell = () => head(name).setAttribute('aria-expanded', String(isOpen(name)));
  new MutationObserver(() => {
    tell();
    keep('folds', JSON.stringify(FOLDS.filter(isOpen)));
  }).observe(head(name), { attributeFilter: ['class'] });
  tell();
}

/** Return whether all folds are in the page. */
export const foldsAreThere = () => FOLDS.every(head);

/** Open the folds that were open last time, and keep which ones are open from now on. */
export function prepareFolds() {
  const wereOpen = recallTexts('folds');
  FOLDS.forEach(watchFold);
  FOLDS.filter((name) => wereOpen.includes(name)).forEach(open);
}

/** Write a summary of its settings beside each head. */
export function tellFolds(states) {
  for (const name of FOLDS) if (head(name)) head(name).dataset.state = states[name] || '';
}

/** Bring the control of a setting into the page: a closed fold does not hold its controls. */
export function openFoldOf(setting) {
  if (!document.querySelector(`#set-${setting}`)?.offsetParent) FOLDS.forEach(open);
}

// The folds of the form, with a summary at the right of each head. The browser remembers which ones are open.
import { keep, recallTexts } from '../storage.js';

const FOLDS = ['look', 'output', 'memory'];
const head = (name) => document.querySelector(`#fold-${name} > button`);
const isOpen = (name) => head(name)?.classList.contains('open') ?? false;

function open(name) {
  if (head(name) && !isOpen(name)) head(name).click();
}

function watchFold(name) {
  const report = () => head(name).setAttribute('aria-expanded', String(isOpen(name)));
  new MutationObserver(() => {
    report();
    keep('folds', JSON.stringify(FOLDS.filter(isOpen)));
  }).observe(head(name), { attributeFilter: ['class'] });
  report();
}

/** Return whether all folds are in the page. */
export const foldsAreThere = () => FOLDS.every(head);

/** Open the folds that were open last time, and from now on remember which ones are open. */
export function prepareFolds() {
  const wereOpen = recallTexts('folds');
  FOLDS.forEach(watchFold);
  FOLDS.filter((name) => wereOpen.includes(name)).forEach(open);
}

/** Write a summary of each fold's settings beside its head. */
export function reportFolds(states) {
  for (const name of FOLDS) if (head(name)) head(name).dataset.state = states[name] || '';
}

/** Show or hide the settings for experts when their button is pressed. */
export function offerExpert({ element }) {
  const button = element.querySelector('button');
  button.addEventListener('click', () => { button.ariaExpanded = String(button.ariaExpanded !== 'true'); });
}

/** Bring the control of a setting into the page, by opening the folds: a closed fold has no controls. */
export function openFoldOf(setting) {
  const isAway = () => !document.querySelector(`#set-${setting}`)?.offsetParent;
  if (isAway()) FOLDS.forEach(open);
  requestAnimationFrame(() => { if (isAway()) document.querySelector('#expert-head [aria-expanded="false"]')?.click(); });
}

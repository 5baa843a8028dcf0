// The folds of the form, with a summary at the right of each head. The browser remembers which ones are open.
import { keep, recallTexts } from '../storage.js';
import { facts } from './describe.js';

const FOLDS = ['when', 'look', 'output', 'memory'];
const fold = (name) => document.querySelector(`#fold-${name}`);

/** Open the folds that were open last time, and from now on remember which ones are open. */
export function prepareFolds() {
  const wereOpen = recallTexts('folds');
  for (const name of FOLDS) {
    fold(name).open = wereOpen.includes(name);
    fold(name).addEventListener('toggle', () => keep('folds', JSON.stringify(FOLDS.filter((one) => fold(one).open))));
  }
}

/** Write a summary of each fold's settings beside its head. */
export function reportFolds() {
  for (const name of FOLDS) fold(name).querySelector('summary').dataset.state = facts()[name] ?? '';
}

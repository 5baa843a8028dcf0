// The form, which shows the server's description beside the settings, and handles keys and clicks.
import { groupChoices } from './choices.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { connect, facts, offerModels } from './component.js';
import { reportCrop, watchPicture } from './crop.js';
import { foldsAreThere, prepareFolds, reportFolds } from './folds.js';
import { restorePictures } from './keep.js';
import { prepareLength } from './length.js';
import { showChosen } from './loras.js';
import { refill, watchNumbers } from './numbers.js';
import { acceptPictures } from './pictures.js';
import { prepareProgram, reportProgram } from './program.js';
import { hear, resume } from './press.js';
import { preparePromptHelp, reportPrompt } from './prompt_help.js';
import { preparePrompts, rememberPrompt } from './prompts.js';

const MOST_FRAMES = 300; // animation frames to wait for the other components
const PARTS = ['#set-image', '#set-prompt textarea', '#set-mode', '#set-seconds input[type="range"]'];

const find = (selector) => document.querySelector(selector);
const isForm = (target) => target === document.body || Boolean(target.closest?.('.lt-request'));
const isStartOrEnd = (target) => Boolean(target.closest?.('#start, #save, #end'));
const isEditing = () => Boolean(document.documentElement.dataset.editing);

function report() {
  const said = facts();
  reportFolds(said);
  showChosen();
  const label = find('#set-image label');
  if (label) label.dataset.hint = said.size || '';
  if (find('#start')) find('#start').dataset.missing = find('#set-image img') ? '' : 'choose a picture first';
  if (find('#start')) find('#start').dataset.many = said.many || '';
  if (said.model && find('#lt-model')) find('#lt-model').textContent = said.model;
  reportPrompt();
  reportProgram();
  reportCrop();
}

// A double click counts as one press.
function takeClick(event) {
  const button = event.target.closest?.('#start, #save, #end');
  if (!button) return;
  if (event.detail > 1) {
    event.preventDefault();
    event.stopImmediatePropagation();
    return;
  }
  if (button.id === 'start') rememberPrompt();
  hear(button);
}

// Ctrl + Enter starts from anywhere in the form; a key that is held down counts as one press.
function takeEnter(event) {
  if (event.key !== 'Enter') return;
  const isHeld = event.repeat && isStartOrEnd(event.target);
  const starts = (event.ctrlKey || event.metaKey) && isForm(event.target);
  if (!isHeld && !starts) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (event.repeat) return;
  refill(event.target);
  find(isEditing() ? '#save' : '#start')?.click();
}

// Browsers bring only the cursor's line of a text field into view, and leave it under the start button.
function showWholeField(event) {
  if (event.key === 'Tab' && event.target.tagName === 'TEXTAREA') event.target.scrollIntoView({ block: 'nearest' });
}

// A model can be added or removed at any time, also by another program.
function watchModels() {
  let known = '';
  onJobsReported(() => {
    const { models } = queueNow();
    if (models === known) return;
    known = models;
    offerModels();
  });
}

function prepare() {
  const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
  find('#set-prompt [data-testid="block-info"]').dataset.hint = isApple ? '⌘ Enter starts' : 'Ctrl + Enter starts';
  prepareFolds();
  watchPicture();
  watchNumbers();
  prepareLength();
  groupChoices();
  prepareProgram();
  watchModels();
  preparePrompts();
  preparePromptHelp();
  restorePictures().then(resume);
  report();
}

function prepareOnceThere(tries = 0) {
  if (PARTS.every(find) && foldsAreThere()) prepare();
  else if (tries < MOST_FRAMES) requestAnimationFrame(() => prepareOnceThere(tries + 1));
}

/** Set up the form. */
export default function startForm(component) {
  connect(component);
  document.addEventListener('click', takeClick, true);
  document.addEventListener('keydown', takeEnter, true);
  document.addEventListener('keyup', showWholeField);
  acceptPictures();
  component.watch('value', report);
  requestAnimationFrame(() => prepareOnceThere());
}

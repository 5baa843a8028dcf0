// The form: what its keys, clicks and buttons do, and what the server's description changes in it.
import { actOnce, fromTemplate, offerCopy, onPress, setText } from '../elements.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { finishFile } from '../live/finishing.js';
import { expectStage, showStage } from '../live/live.js';
import { post } from '../server.js';
import { keep, recall, recallTexts } from '../storage.js';
import { changed, describe, facts, fill, keptSettings, onDescribed, onWritten, put, read, refuse, restored, showNotice, take, takeSettings, values, write } from './describe.js';
import { startLoras } from './loras.js';
import { acceptPictures, restorePictures } from './pictures.js';
import { startPresets } from './presets.js';
import { press, resume } from './press.js';
import { preparePrompts, rememberPrompt } from './prompts.js';
import { startSections } from './sections.js';
import { prepareSliders, settle } from './sliders.js';

const FOLDS = ['when', 'look', 'output', 'memory'];
const USUAL_FRAME = 9; // of one picture: what suits most changes
const find = (selector) => document.querySelector(selector);
const fold = (name) => find(`#fold-${name}`);
const form = find('#form');

function prepareProgram() {
  const box = find('#lt-program');
  offerCopy(box.querySelector('button'), box.querySelector('pre code'));
  box.addEventListener('toggle', () => { if (box.open) box.scrollIntoView({ block: 'nearest' }); });
}

function prepareFolds() {
  const wereOpen = recallTexts('folds');
  for (const name of FOLDS) {
    fold(name).open = wereOpen.includes(name);
    fold(name).addEventListener('toggle', () => keep('folds', JSON.stringify(FOLDS.filter((other) => fold(other).open))));
  }
}

const example = (index, starts) => post('form_example', { model: read('model'), index, starts });

let known = null; // the text that changes with the list of models
let missed = ''; // the question whose answer has not renewed the form, since the server was away

const renew = (name) => post(`form_${name}`, { model: read('model'), mode: read('mode') }).then(fill, (error) => {
  if (error.isAway) missed = name;
  else refuse(error.message);
});

function report() {
  const said = facts();
  for (const name of FOLDS) fold(name).querySelector('summary').dataset.state = said[name];
  find('#lt-program pre code').textContent = said.program.replace('PAGE', () => new URL('.', document.baseURI).href);
  find('#set-image .lt-label').dataset.hint = said.size;
  find('#start').dataset.many = said.many;
  setText(find('#lt-model'), said.model);
  showMissing();
}

const makes = find('#in-makes');

const WANTED = { picture: 'Add a picture', words: 'Add a picture or a prompt' };

function showMissing() {
  const isEnough = read('image') || (facts().starts !== 'picture' && read('prompt')?.trim());
  find('#start').dataset.missing = isEnough ? '' : WANTED[facts().starts] || WANTED.words;
}

// A double click counts as one press.
function takePress(event) {
  const button = event.target.closest('#start, #save, #end');
  if (!button || event.detail > 1) return;
  if (button.id === 'start') rememberPrompt();
  press(button);
}

// Ctrl + Enter starts from anywhere in the form; a key that is held down counts as one press.
function takeEnter(event) {
  if (event.key !== 'Enter') return;
  const isHeld = event.repeat && event.target.closest?.('#start, #save, #end');
  const starts = (event.ctrlKey || event.metaKey) && (event.target === document.body || form.contains(event.target));
  if (!isHeld && !starts) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (event.repeat) return;
  if (settle(event.target)) changed();
  find(document.documentElement.dataset.editing ? '#save' : '#start').click();
}

function showJobs() {
  const { models, start, held, can_end: canEnd } = queueNow();
  find('#held').hidden = !held;
  setText(find('#start'), start);
  find('#end').disabled = !canEnd;
  if (models === known && !missed) return;
  const name = missed || 'models';
  [known, missed] = [models, ''];
  renew(name);
}

const showExamples = (isShown) => {
  document.documentElement.toggleAttribute('data-examples', isShown);
  find('#show-examples').setAttribute('aria-pressed', isShown);
};

async function startExample(index) {
  showExamples(false);
  expectStage();
  await example(index, true).then(fill, ({ message }) => refuse(message));
  showStage();
}

async function reset() {
  const before = values();
  fill(await post('form_reset', { model: read('model') }));
  showNotice(fromTemplate('was-reset').outerHTML);
  find('#notice button').addEventListener('click', () => {
    for (const [name, value] of Object.entries(before)) write(name, value);
    changed();
  });
}

function takeMemory({ preserved, recommended }) {
  find('#set-preserved_gb input').focus(); // the button is about to leave
  if (recommended) takeSettings(JSON.parse(recommended));
  else put('preserved_gb', Number(preserved));
}

function prepareBoxes() {
  const within = (selector, inner, act) => find(selector).addEventListener('click', ({ target }) => {
    const found = target.closest(inner);
    if (found) act(found);
  });
  within('#try-it', '[data-example]', (card) => actOnce(card, () => startExample(Number(card.dataset.example)), refuse));
  const indexOf = (button) => [...find('#examples').children].indexOf(button);
  within('#examples', 'button', (button) => actOnce(button, async () => fill(await example(indexOf(button), false)), refuse));
  within('#memory-plan', '[data-preserved], [data-recommended]', ({ dataset }) => takeMemory(dataset));
  for (const note of ['#end-note', '#timeline-note']) within(note, 'button', () => put('mode', 'inverted'));
  within('#acting', '[data-setting]', ({ dataset }) => {
    put(dataset.setting, '');
    find('#start').focus({ preventScroll: true }); // the button is about to disappear
  });
  within('#acting', '[data-finish]', ({ dataset }) => finishFile({ path: dataset.finish }));
  within('#acting', '[data-before]', ({ dataset }) => {
    put('extras', dataset.before);
    put('mode', 'inverted');
    put('image', null); // the video's last frame
    take({ notice: '' });
    find('#set-prompt textarea').focus(); // the button is about to disappear
  });
  const closeDemo = () => find('#demo-box').classList.toggle('lt-closed', recall('demo-box') === 'closed');
  within('#demo-box', '.lt-demo-close', () => {
    keep('demo-box', 'closed');
    closeDemo();
  });
  closeDemo();
  makes.addEventListener('change', ({ target: { value } }) => {
    write('one_frame', value === 'one_frame' ? USUAL_FRAME : 0);
    put('loop', value === 'loop' ? 'on' : 'off');
  });
  onWritten(() => { makes.value = (read('one_frame') && 'one_frame') || (read('loop') === 'on' ? 'loop' : ''); });
  find('#in-seed').addEventListener('input', () => write('random_seed', false)); // a number that is typed holds
  find('#show-examples').addEventListener('click', () => {
    showExamples(!('examples' in document.documentElement.dataset));
    find('#try-it').scrollIntoView({ block: 'nearest' });
  });
  onPress(find('#held'), () => post('jobs_go_on'), refuse);
  onPress(find('#reset'), reset, refuse);
}

function listen() {
  form.addEventListener('submit', (event) => event.preventDefault());
  form.addEventListener('click', takePress);
  form.addEventListener('input', ({ target }) => { if (!target.closest('.lt-loras')) changed(); });
  // This reacts to people only, since the settings of a restored model are restored with it.
  form.addEventListener('change', ({ target }) => {
    if (target.name === 'model') renew('model');
  });
  document.addEventListener('keydown', takeEnter, true);
  // Browsers bring only the cursor's line of a text field into view, and leave it under the start button.
  document.addEventListener('keyup', ({ key, target }) => {
    if (key === 'Tab' && target.tagName === 'TEXTAREA') target.scrollIntoView({ block: 'nearest' });
  });
}

export default async function startForm() {
  const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
  find('#start').title = isApple ? '⌘ Enter starts' : 'Ctrl + Enter starts';
  listen();
  prepareFolds();
  prepareSliders(changed);
  prepareBoxes();
  prepareProgram();
  preparePrompts();
  acceptPictures();
  startSections(find('#sections'));
  startLoras();
  startPresets();
  onDescribed(report);
  onJobsReported(showJobs);
  take(await post('form_restore', { kept: keptSettings() }));
  await restorePictures();
  restored();
  showMissing();
  await describe();
  document.documentElement.dataset.ready = '';
  resume();
}

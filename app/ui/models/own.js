// The user's own files below the models: what each of them is, and the form that makes a model of some of them.
import { chooseFiles, fromTemplate, hasChanged, make, makeTable, onPress, onSubmit, render, setOptions, setText } from '../elements.js';
import { post, postLong, upload } from '../server.js';

const PAUSE = 1000; // milliseconds between two looks at a model that is being added
const section = document.querySelector('.lt-own');
const find = (part) => section.querySelector(`.lt-own-${part}`);
const [list, form, base] = ['files', 'form', 'base'].map(find);
let rows = [];
let added = null; // called with the name of a new model, and shows it
let timer = 0;
let awaited = ''; // the model that was being added at the last look
let isSubmitting = false;
let isNamed = false; // whether the user has written a name
let asked = 0; // the number of the last request, since only the last answer counts

const report = (words) => setText(find('reported'), words);
const chosen = () => rows.filter(({ box }) => box.checked);

function factsTable(facts) {
  const types = Object.entries(facts.dtypes).map(([type, share]) => `${type} ${(100 * share).toFixed(1)} %`).join(', ');
  return makeTable([], [
    ['Format', facts.format], ['Model', [facts.model, facts.variant].filter(Boolean).join(' ')],
    ['Names of tensors', facts.key_style], ['Tensors', facts.tensors], ['Types', types],
    ['Quantised', facts.quantised || 'no'], ['Remarks', [...facts.hints, ...facts.problems].join(' ')],
  ].filter(([, value]) => value), 'lt-wide');
}

function makeRow(file) {
  const element = fromTemplate('own-file');
  const [box, fold] = ['input', 'details'].map((part) => element.querySelector(part));
  const inside = fold.lastElementChild;
  const row = { element, box, file };
  box.disabled = !file.part;
  box.addEventListener('change', () => choose(row));
  render(element, {
    ...file, about: [file.title, file.words].filter(Boolean).join(': '), id: `own: ${file.name}`.replaceAll(' ', '-'),
    inspect: `Inspect ${file.name}`, inside: `Inside ${file.name}`,
  });
  fold.addEventListener('toggle', async () => {
    if (!fold.open) return;
    const failed = (error) => make('p', { textContent: error.message });
    inside.replaceChildren(await post('models_inspect', { file: file.name }).then(factsTable).catch(failed));
  });
  return row;
}

/** A component has one file, so another file for the same component replaces it. */
function choose(row) {
  const { name, part } = row.file;
  const former = row.box.checked && chosen().find((other) => other !== row && other.file.part === part);
  if (former) former.box.checked = false;
  form.hidden = !chosen().length;
  report(former ? `${name} replaces ${former.file.name}, since a model has one file for each part.` : '');
  if (isNamed || form.hidden) return;
  const first = chosen().find(({ file }) => file.part === 'transformer') ?? chosen()[0];
  find('name').value = first.file.model;
}

function setBusy(isBusy) {
  find('add').ariaDisabled = isBusy ? 'true' : null; // `disabled` would take the focus away
  for (const { box, file } of rows) box.disabled = isBusy || !file.part;
}

function show(files) {
  if (!hasChanged(list, files)) return; // otherwise the rows stay, and with them the keyboard's place
  const ticked = chosen().map(({ file }) => file.name);
  rows = files.map(makeRow);
  for (const { box, file } of rows) box.checked = !box.disabled && ticked.includes(file.name);
  list.replaceChildren(...rows.map(({ element }) => element));
  form.hidden = !chosen().length;
}

// The check goes on if its page is closed, so any page may find a model that is being added.
function follow({ name, seconds, problem }) {
  const before = awaited;
  awaited = name;
  if (name) {
    report(`The names and shapes of all tensors of ${name} are being checked: ${seconds} s so far. You may close this tab.`);
    timer = setTimeout(loadFiles, PAUSE, true);
  } else if (before && !isSubmitting) {
    report(problem);
    if (!problem) added(before);
  }
  find('bar').hidden = !name;
  if (!isSubmitting) setBusy(Boolean(name));
}

export async function loadFiles(isQuiet = false) {
  clearTimeout(timer);
  asked += 1;
  const own = asked;
  const before = find('say').textContent;
  try {
    if (!isQuiet) setText(find('say'), 'Looking…');
    const { files, words, adding } = await post('models_files');
    if (own !== asked) return;
    show(files);
    follow(adding);
    setText(find('say'), words);
  } catch (error) {
    if (own !== asked) return;
    setText(find('say'), error.message || before); // the page says itself that the server is away
  }
  section.dataset.state = 'known';
}

async function submit() {
  if (find('add').ariaDisabled === 'true') return;
  const name = find('name').value.trim();
  const parts = Object.fromEntries(chosen().map(({ file }) => [file.part, file.name]));
  isSubmitting = true;
  setBusy(true);
  timer = setTimeout(loadFiles, PAUSE / 4, true);
  try {
    await postLong('models_add', { model: name, parts, base: base.value }); // it takes its time, which stands here
    await added(name); // the focus moves to the new card before the form goes
    for (const { box } of chosen()) box.checked = false;
    isNamed = false;
    base.value = '';
    form.hidden = true;
    report('');
  } catch (error) {
    report(error.message);
  } finally {
    isSubmitting = false;
    setBusy(false);
    loadFiles(true); // the next names to suggest
  }
}

export function offerBases(models) {
  const options = [['', 'Automatic'], ...models.map(({ model, title }) => [model, title])];
  if (hasChanged(base, options)) setOptions(base, options);
}

async function addFile() {
  const [given] = await chooseFiles('.safetensors,.gguf');
  if (!given) return;
  report(`${given.name} is being copied…`);
  const { path } = await upload(given);
  report(`${await postLong('models_file_add', { file: { path }, name: given.name })} is in the list now.`);
  await loadFiles(true);
}

export function prepareOwnFiles(showModel) {
  added = showModel;
  onPress(find('again'), () => loadFiles());
  onPress(find('new'), addFile, report);
  onSubmit(form, submit);
  find('name').addEventListener('input', ({ target }) => { isNamed = target.value !== ''; });
}

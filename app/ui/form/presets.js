// The presets: a button beside the form's end, and a dialog in which settings are saved, used and passed on.
import { chooseFiles, make, makeButton, onPress, onSubmit, saveFile, setText } from '../elements.js';
import { post, upload } from '../server.js';
import { keptSettings, restoreForm } from './describe.js';

const START = 'start'; // the preset with which the page begins
const dialog = document.querySelector('#presets');
const find = (selector) => dialog.querySelector(selector);
const name = find('[type="text"]');

const titleOf = (preset) => (preset === START ? 'Default' : preset);
const report = (words) => setText(find('[role="status"]'), words);
const asFile = (preset, text) => new File([text], `${preset}.json`, { type: 'application/json' });

function show(presets) {
  find('p').hidden = presets.length > 0;
  const ordered = presets.toSorted((first, second) => Number(second === START) - Number(first === START));
  find('ul').replaceChildren(...ordered.map(makeRow));
}

const makeAct = (label, ariaLabel, act) => makeButton(label, () => act().catch((error) => report(error.message)), { ariaLabel });

async function take(preset, given) {
  const { path } = await upload(given);
  show(await post('preset_import', { name: preset, file: { path } }));
}

function makeRow(preset) {
  const title = titleOf(preset);
  const act = (label, run) => makeAct(label, `${label}: ${title}`, run);
  return make(
    'li', {},
    make('b', { textContent: title }),
    act('Use', async () => {
      await restoreForm(await post('preset_load', { name: preset }));
      dialog.close();
    }),
    ...(preset === START ? [] : [act('Make default', async () => {
      show(await post('preset_default', { name: preset }));
      report(`New pages and “Reset to defaults” now use “${title}”.`);
    })]),
    act('Export', async () => saveFile(asFile(preset, await post('preset_export', { name: preset })))),
    act('Remove', async () => {
      const text = await post('preset_export', { name: preset });
      show(await post('preset_remove', { name: preset }));
      const undo = makeAct('Undo', `Bring ${title} back`, async () => {
        await take(preset, asFile(preset, text));
        report('The preset is back.');
      });
      find('[role="status"]').replaceChildren(`“${title}” has been removed. `, undo);
      undo.focus();
    }),
  );
}

async function open() {
  report('');
  dialog.showModal();
  name.focus();
  show(await post('preset_list'));
}

async function save() {
  const preset = name.value.trim();
  show(await post('preset_save', { name: preset, form: keptSettings() || '{}' }));
  name.value = '';
  report(`“${titleOf(preset)}” is saved.`);
}

async function takeFile() {
  const [given] = await chooseFiles('.json,.mp4,.png');
  if (!given) return;
  const preset = given.name.replace(/\.[^.]*$/, '').slice(0, 50).trim();
  await take(preset, given);
  report(`“${preset}” is saved.`);
}

export function startPresets() {
  onPress(document.querySelector('#open-presets'), open, report);
  onSubmit(find('form'), save, report);
  onPress(find('.lt-preset-ends button'), takeFile, report);
}

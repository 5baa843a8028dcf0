// The Models tab: a card for each model, kept up to date while something happens to one of them.
import { arrange, setText } from '../elements.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { post } from '../server.js';
import { place, whenShown } from '../tabs.js';
import { Card } from './card.js';
import { loadFiles, offerBases, prepareOwnFiles } from './own.js';

const PAUSE = 1000; // milliseconds between two looks while something is downloaded or checked
const section = document.querySelector('.lt-models');
const find = (selector) => section.querySelector(selector);
const cards = new Map(); // by name
let asked = 0; // the number of the last request, since only the last answer counts
let open = 0; // changes that the server has not answered yet
let timer = 0;
let revision = null; // that of the news at the last load
let wanted = ''; // the model that the address names, or that was added

const isShown = () => place()[0] === 'models' && !document.hidden;
const revisionNow = () => `${queueNow().revision} ${queueNow().models}`;
const complain = (words) => setText(find('.lt-models-problem'), words);
const report = (words) => setText(find('.lt-models-reported'), words);

function draw(models, disk) {
  const names = models.map(({ model }) => model);
  for (const [name, card] of cards) {
    if (names.includes(name)) continue;
    if (card.element.contains(document.activeElement)) document.querySelector('#tab-models').focus();
    cards.delete(name);
  }
  for (const model of models) {
    if (!cards.has(model.model)) cards.set(model.model, new Card(change, report));
    cards.get(model.model).show(model);
  }
  arrange(find('.lt-model-cards'), names.map((name) => cards.get(name).element));
  offerBases(models);
  setText(find('.lt-models-say'), disk);
  section.dataset.state = 'known';
  cards.get(wanted)?.lead();
  wanted = '';
}

async function load() {
  clearTimeout(timer);
  asked += 1;
  const own = asked;
  revision = revisionNow();
  let isActive = false;
  try {
    const { models, disk, is_busy: isBusy } = await post('models_list');
    if (own !== asked || open) return;
    draw(models, disk);
    isActive = isBusy;
    complain('');
  } catch (error) {
    if (own !== asked) return;
    // The page says itself that it has lost the server, so that only a first look complains here.
    if (section.dataset.state === 'unknown') complain(error.message);
    isActive = true;
  }
  if (isActive && isShown()) timer = setTimeout(load, PAUSE);
}

/** Do something with a model, and show what became of it; a refusal stands on the card. */
async function change(card, act) {
  open += 1;
  card.complain('');
  try {
    await act();
  } catch (error) {
    card.complain(error.message);
  } finally {
    open -= 1;
  }
  await load();
}

function leadTo(name) {
  wanted = name;
  return load();
}

export default function startModels() {
  prepareOwnFiles(leadTo);
  whenShown('models', (name) => {
    leadTo(name);
    loadFiles();
  });
  onJobsReported(() => { if (isShown() && revisionNow() !== revision) load(); });
  document.addEventListener('visibilitychange', () => { if (isShown()) load(); });
}

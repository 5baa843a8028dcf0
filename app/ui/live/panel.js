// The panel under the strip: other words for what comes next, other sections from a cut on, or further ones.
import { actOnce, make, onPress, onSubmit, render } from '../elements.js';
import { newSeed } from '../form/describe.js';
import { post } from '../server.js';

const LABELS = {
  steer: { title: 'What comes next', words: 'What happens next', act: 'Change the words', takes: 'Three takes of the next section' },
  cut: { words: 'Prompt for the new sections', act: 'Make this branch', takes: 'Three takes of it' },
  longer: { title: 'Make it longer', act: 'Make it longer' },
};

function controlOf({ name, value, choices, low, high, step }) {
  const options = choices.map(([choice, textContent]) => make('option', { value: choice, textContent }));
  if (options.length) return Object.assign(make('select', { name }, ...options), { value });
  const isNumber = typeof value === 'number';
  return make('input', isNumber ? { name, type: 'number', min: low, max: high, step, value } : { name, type: 'text', value });
}

export class Panel {
  #form;
  #find;
  #cut;
  #report;
  #expect;
  #scene = {};
  #mode = ''; // a key of LABELS while the panel is open
  #keep = 0; // the sections that stay, in the order of making
  #branch = null; // what the server said about branches of the video, unless only the head is shown
  #known = ''; // the words that the server said last, so that its news does not replace what is being typed
  #shown = ''; // the same as the field has it

  /** `cut` shows how many sections stay, `report` a sentence with a link to a job; `expect` hears that a video is queued. */
  constructor(form, cut, report, expect) {
    this.#form = form;
    this.#find = (name) => form.querySelector(`.lt-panel-${name}`);
    [this.#cut, this.#report, this.#expect] = [cut, report, expect];
    const find = this.#find;
    onSubmit(form, () => ({ steer: () => this.#changeWords(), cut: () => this.#makeBranch(), longer: () => this.#extend() })[this.#mode](), report);
    onPress(find('takes'), () => this.#threeTakes(), report);
    onPress(find('here'), () => this.open('cut', this.#keep), report);
    find('close').addEventListener('click', () => this.#close());
    find('new').addEventListener('click', () => { find('seed').value = newSeed(); });
    find('wait').addEventListener('change', () => actOnce(find('wait'), () => this.#wait(), report));
  }

  async open(mode, keep = 0) {
    [this.#keep, this.#branch] = [keep, null];
    if (mode === 'steer') {
      this.#known = '';
      this.#showWords();
    } else await this.#askBranch();
    this.#mode = mode;
    this.#draw();
    this.#form.scrollIntoView({ block: 'nearest' });
    this.#find(mode === 'longer' ? 'add' : 'words').focus({ preventScroll: true });
  }

  /** Let the cut be before a section that was pressed; where the panel is closed, only its head is shown. */
  press(cell) {
    if (!cell.mayBranch || this.#mode === 'steer') return;
    this.#keep = cell.number - 1;
    if (this.#mode !== 'cut') [this.#mode, this.#branch] = ['cut', null];
    this.#draw();
  }

  /** Let the video go on with the words in the field, and without a wait for the user if it does not wait. */
  async goOn(waits = true) {
    const { job } = this.#scene;
    await this.#saveWords();
    if (!waits) await post('jobs_wait', { jobs: [job], wait: false });
    await post('jobs_resume', { jobs: [job] });
  }

  show(scene) {
    const isOther = scene.job !== this.#scene.job;
    this.#scene = scene;
    if (this.#mode === 'steer' ? !scene.steering : isOther) this.#mode = '';
    if (scene.steering && this.#find('wait').ariaBusy !== 'true') this.#find('wait').checked = scene.steering.waits;
    if (this.#mode === 'steer' && document.activeElement !== this.#find('words')) this.#showWords();
    this.#draw();
  }

  #close() {
    this.#mode = '';
    this.#draw();
  }

  #draw() {
    const [form, mode, branch] = [this.#form, this.#mode, this.#branch];
    form.hidden = !mode;
    const isHead = mode !== 'steer' && !branch;
    const why = { cut: branch?.whyNot, longer: branch?.whyNotLonger }[mode] ?? '';
    for (const part of form.querySelectorAll('[data-of]')) {
      part.hidden = isHead || why || !part.dataset.of.includes(mode);
      // What is not shown does not hold up the others.
      for (const field of part.querySelectorAll('input')) field.disabled = part.hidden;
    }
    this.#cut(mode === 'cut' && branch && !why ? this.#keep : null);
    if (!mode) return;
    const { steering } = this.#scene;
    const { title = why ? 'Change from a section' : this.#titleOfCut(), words = '', act, takes = '' } = LABELS[mode];
    const longer = branch && `Whole sections of ${branch.section} s are added. ${branch.keptByLonger}`;
    const hints = { steer: steering?.hint, cut: branch?.kept[this.#keep - 1], longer };
    render(form, {
      title, words, act, takes, hint: why || hints[mode] || '', isHead, hasTakes: takes && !why, isTooEarly: mode === 'steer' && !steering.mayTake,
    });
  }

  #titleOfCut() {
    const { cells } = this.#scene;
    const { label = '' } = cells.find(({ number }) => number === this.#keep + 1) ?? {};
    return `Again: section ${label}${this.#keep + 1 < cells.length ? ' and those made after it' : ''}`;
  }

  #showWords() {
    const { words } = this.#scene.steering;
    if (words === this.#known) return;
    this.#find('words').value = this.#known = words;
    this.#shown = this.#find('words').value;
  }

  async #askBranch() {
    const { job } = this.#scene;
    const { branch } = await post('history_open', { job });
    if (job !== this.#scene.job) return;
    const find = this.#find;
    this.#branch = branch;
    this.#keep ||= branch.kept.length;
    for (const [name, value] of Object.entries({ words: branch.prompt, seed: newSeed(), seconds: branch.seconds })) find(name).value = value;
    find('more').open = false;
    find('further').replaceChildren(...branch.further.map((setting) => make('label', {}, make('span', { textContent: setting.label }), controlOf(setting))));
    Object.assign(find('add'), { min: branch.section, max: branch.longer, value: Math.min(branch.longer, 2 * branch.section) });
  }

  async #wait() {
    const { checked } = this.#find('wait');
    await post('jobs_wait', { jobs: [this.#scene.job], wait: checked });
    this.#report(checked ? 'It waits for you after each section; the device is free meanwhile.' : 'It goes on by itself.');
  }

  async #saveWords() {
    if (this.#mode === 'steer' && this.#find('words').value !== this.#shown) await this.#changeWords();
  }

  async #changeWords() {
    const { value } = this.#find('words');
    await post('jobs_change', { job: this.#scene.job, changes: { prompt: value.trim() } });
    this.#shown = value;
    this.#report('What comes next has the new words. What is made keeps its own.');
  }

  async #makeBranch() {
    const [{ job, isOpen }, branch, keep, find] = [this.#scene, this.#branch, this.#keep, this.#find];
    const own = ['prompt', 'seed', 'seconds'].map((name) => [name, branch[name], find(name === 'prompt' ? 'words' : name)]);
    const further = branch.further.map(({ name, value }) => [name, value, find('further').querySelector(`[name="${name}"]`)]);
    const changes = {};
    for (const [name, before, field] of [...own, ...further]) {
      const value = field.value.trim();
      if (value !== String(before).trim()) changes[name] = name === 'seed' || typeof before === 'number' ? Number(value) : value;
    }
    const made = await post('jobs_branch', { job, keep, changes });
    if (isOpen) await post('jobs_pause', { jobs: [job] }); // the branch comes first
    this.#tell(`The branch is in the queue. ${branch.kept[keep - 1]}`, made.id);
  }

  async #extend() {
    const { keptByLonger } = this.#branch;
    const made = await post('jobs_branch', { job: this.#scene.job, longer: Number(this.#find('add').value) });
    this.#tell(`The longer video is in the queue. ${keptByLonger}`, made.id);
  }

  #tell(words, job) {
    this.#close();
    this.#expect();
    this.#report(words, job);
  }

  async #threeTakes() {
    const { job } = this.#scene;
    if (this.#mode === 'steer') {
      await this.#saveWords();
      await post('jobs_takes', { job });
      this.#close();
      this.#report('Three takes are in the queue. Each waits after one section, so that you can keep the best.');
      return;
    }
    const takes = await post('jobs_takes', { job, keep: this.#keep });
    this.#report('Three takes of this section are in the queue. What was made stays.', takes[0].id);
  }
}

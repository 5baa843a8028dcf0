// The actions on a video: those on the job while it is made, and those that lead on from it once it rests, such as
// branches: another continuation from one of its sections, or a longer version.
import { make, makeItem, onPress, onSubmit, setText } from '../elements.js';
import { offerPicture, restoreForm } from '../form/describe.js';
import { newSeed } from '../form/values.js';
import { setFavourite, showStar } from '../history/card.js';
import { get, post } from '../server.js';
import { prepareSteer } from './steer.js';

function controlOf({ name, value, choices, low, high, step }) {
  const options = choices.map(([choice, textContent]) => make('option', { value: choice, textContent }));
  if (options.length) return Object.assign(make('select', { name }, ...options), { value });
  const isNumber = typeof value === 'number';
  return make('input', isNumber ? { name, type: 'number', min: low, max: high, step, value, required: true } : { name, type: 'text', value });
}

class Branch {
  #folds;
  #find;
  #report;
  #video = null;
  #job = ''; // the video that the fields were filled for

  constructor(fold, longerFold, report) {
    this.#folds = [fold, longerFold];
    this.#find = (name) => fold.querySelector(`.lt-${name}`) ?? longerFold.querySelector(`.lt-${name}`);
    this.#report = report;
    fold.querySelector('.lt-pair button').addEventListener('click', () => { this.#find('new-seed').value = newSeed(); });
    this.#find('keep').addEventListener('input', () => this.#showKept());
    onSubmit(fold.querySelector('form'), () => this.#branch(), report);
    onSubmit(longerFold.querySelector('form'), () => this.#extend(), report);
  }

  show(video) {
    const { branch } = video;
    this.#video = video;
    [branch.whyNot, branch.whyNotLonger].forEach((why, index) => {
      const fold = this.#folds[index];
      fold.hidden = video.isOpen && Boolean(why);
      fold.querySelector('form').hidden = Boolean(why);
      setText(fold.querySelector('.lt-why'), why);
    });
    this.#find('keep').max = branch.kept.length;
    if (this.#job !== video.job) this.#fill(branch);
    this.#showKept();
    setText(this.#find('longer-kept'), `Whole sections of ${branch.section} s are added. ${branch.keptByLonger}`);
  }

  choose(keep) {
    this.#find('keep').value = keep;
    this.#showKept();
    this.#find('new-prompt').focus();
  }

  #fill(branch) {
    this.#job = this.#video.job;
    const values = { keep: branch.kept.length, 'new-prompt': branch.prompt, 'new-seed': newSeed(), 'new-seconds': branch.seconds };
    for (const [name, value] of Object.entries(values)) this.#find(name).value = value;
    const further = this.#find('further');
    further.parentElement.open = false;
    further.replaceChildren(...branch.further.map((setting) => make('label', {}, make('span', { textContent: setting.label }), controlOf(setting))));
    Object.assign(this.#find('more-seconds'), { min: branch.section, max: branch.longer, value: Math.min(branch.longer, 2 * branch.section) });
    this.#find('fixed').replaceChildren(...branch.fixed.map(makeItem));
  }

  #showKept() {
    const { branch, cells } = this.#video;
    const keep = Number(this.#find('keep').value);
    this.#find('keep').setAttribute('aria-valuetext', `${keep} of ${cells.length} sections`);
    setText(this.#find('kept-words'), branch.kept[keep - 1] ?? '');
    this.#find('kept-strip').replaceChildren(...cells.map(({ number, thumb }) => {
      const picture = make('img', { alt: '', ...(thumb ? { src: thumb } : {}) });
      picture.dataset.kept = number <= keep;
      return picture;
    }));
  }

  async #branch() {
    const { branch, job, isOpen } = this.#video;
    const keep = Number(this.#find('keep').value);
    const given = [['prompt', branch.prompt, 'new-prompt'], ['seed', branch.seed, 'new-seed'], ['seconds', branch.seconds, 'new-seconds']];
    const further = branch.further.map(({ name, value }) => [name, value, `further [name="${name}"]`]);
    const changes = {};
    for (const [name, before, field] of [...given, ...further]) {
      const value = this.#find(field).value.trim();
      if (value !== String(before).trim()) changes[name] = name === 'seed' || typeof before === 'number' ? Number(value) : value;
    }
    const made = await post('queue/branch', { job, keep, changes });
    if (isOpen) await post('queue/pause', { jobs: [job] }); // the branch comes first
    this.#report(`The branch is in the queue. ${branch.kept[keep - 1]}`, made.id);
  }

  async #extend() {
    const { branch, job } = this.#video;
    const made = await post('queue/branch', { job, longer: Number(this.#find('more-seconds').value) });
    this.#report(`The longer video is in the queue. ${branch.keptByLonger}`, made.id);
  }
}

export class Actions {
  #find;
  #jobs; // the buttons that act on the job, by the names that the server gives them
  #onward;
  #folds;
  steer;
  #branch;
  #offered = ''; // the job from which the others lead on
  #scene = {};
  #told = ''; // the job that the sentence is about, which may take the stage at once
  #expect;

  /** `expect` is called when a user has queued or resumed a video. */
  constructor(box, expect) {
    this.#find = (selector) => box.querySelector(selector);
    this.#expect = expect;
    this.#jobs = { resume: this.#find('.lt-resume'), pause: this.#find('.lt-pause'), stop_after_section: this.#find('.lt-stop'), cancel: this.#find('.lt-end') };
    this.#onward = box.querySelectorAll('.lt-after');
    this.#folds = [this.#find('.lt-change'), this.#find('.lt-longer')];
    this.#branch = new Branch(...this.#folds, (words, made) => {
      if (made) this.#expect();
      this.report(words, made);
    });
    this.steer = prepareSteer(this.#find('.lt-steer'), (words, job) => this.report(words, job));
    this.#listen();
  }

  #listen() {
    const on = (button, act) => onPress(button, act, (words) => this.report(words));
    on(this.#jobs.pause, () => post('queue/pause', { jobs: [this.#scene.job] }));
    on(this.#jobs.stop_after_section, () => post('queue/cancel', { jobs: [this.#scene.job], after_section: true }));
    on(this.#jobs.cancel, () => post('queue/cancel', { jobs: [this.#scene.job] }));
    on(this.#jobs.resume, async () => {
      this.#expect();
      await this.steer.goOn();
      this.report('The video continues; finished work is not repeated.');
    });
    on(this.#find('.lt-again'), async () => {
      const seed = newSeed();
      this.#expect();
      const made = await post('queue/duplicate', { job: this.#scene.job, changes: { seed } });
      this.report(`The same video with the seed ${seed} is in the queue.`, made.id);
    });
    on(this.#find('.lt-continue'), async () => {
      await restoreForm(await get(`history/${encodeURIComponent(this.#scene.job)}/continue`));
      document.querySelector('#set-prompt textarea').focus();
    });
    on(this.#find('.lt-first'), () => offerPicture(this.#scene.first));
    on(this.#find('.lt-favourite'), async () => {
      this.#scene = await setFavourite(this.#scene);
      this.#showStar();
    });
    for (const fold of this.#folds) {
      fold.addEventListener('toggle', () => {
        if (fold.open) this.#offerBranch().catch((error) => this.report(error.message));
      });
    }
  }

  show(scene) {
    const isOther = scene.job !== this.#scene.job;
    this.#scene = scene;
    this.steer.show(scene);
    for (const [name, button] of Object.entries(this.#jobs)) {
      const shown = scene.buttons?.[name];
      button.hidden = !shown;
      if (!shown) continue;
      setText(button, shown.label);
      button.disabled = !shown.enabled;
    }
    this.#find('.lt-first').hidden = !scene.first;
    this.#find('.lt-continue').hidden = !scene.continues;
    const offered = scene.offersMore ? scene.job : '';
    if (offered) this.#showStar();
    if (offered === this.#offered) return;
    this.#offered = offered;
    if ((isOther || offered) && scene.job !== this.#told) this.report('');
    for (const fold of this.#folds) fold.open &&= !isOther;
    for (const part of this.#onward) part.hidden = !offered && !part.open;
  }

  async branchFrom(keep) {
    const [fold] = this.#folds;
    fold.hidden = false;
    await this.#offerBranch();
    fold.open = true;
    this.#branch.choose(keep);
    fold.scrollIntoView({ block: 'nearest' });
  }

  #showStar() { showStar(this.#find('.lt-favourite'), this.#scene.favourite, this.#scene.prompt); }

  async #offerBranch() {
    const { job } = this.#scene;
    const opened = await get(`history/${encodeURIComponent(job)}`);
    if (job === this.#scene.job) this.#branch.show(opened);
  }

  report(words, job = '') {
    this.#told = job;
    const link = make('a', { href: `#history/${job}`, textContent: 'Show it' });
    this.#find('.lt-after-say').replaceChildren(words, ...(job ? [' ', link] : []));
  }
}

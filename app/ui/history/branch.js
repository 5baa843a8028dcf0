// Branches of a video: another continuation from one of its sections, or a longer version.
import { call } from '../calls/call.js';
import { make, makeItem, onSubmit, setText } from '../elements.js';
import { newSeed } from '../form/values.js';

function controlOf({ name, value, choices, low, high, step }) {
  const options = choices.map(([choice, textContent]) => make('option', { value: choice, textContent }));
  if (options.length) return Object.assign(make('select', { name }, ...options), { value });
  const isNumber = typeof value === 'number';
  return make('input', isNumber ? { name, type: 'number', min: low, max: high, step, value, required: true } : { name, type: 'text', value });
}

/** The two folds with forms for branches. */
export class Branch {
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

  /** Offer the branches that a video can have. */
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

  /** Choose how many sections are kept, and another seed. */
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
    further.replaceChildren(...branch.further.map((one) => make('label', {}, make('span', { textContent: one.label }), controlOf(one))));
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
    const made = await call('jobs_branch', job, keep, null, changes);
    if (isOpen) await call('jobs_pause', [job]); // the branch comes first
    this.#report(`The branch is in the queue. ${branch.kept[keep - 1]}`, made.id);
  }

  async #extend() {
    const { branch, job } = this.#video;
    const made = await call('jobs_branch', job, null, Number(this.#find('more-seconds').value), null);
    this.#report(`The longer video is in the queue. ${branch.keptByLonger}`, made.id);
  }
}

// Branches of a video: another continuation from one of its sections, or a longer version.
import { call } from '../calls/call.js';
import { actOnce, make, setText } from '../elements.js';
import { newSeed } from '../form/values.js';

function controlOf({ value, choices, low, high, step }) {
  if (choices.length) {
    const options = choices.map(([name, label]) => make('option', { value: name, textContent: label }));
    const select = make('select', {}, ...options);
    select.value = value;
    return select;
  }
  const isNumber = typeof value === 'number';
  return make('input', isNumber ? { type: 'number', min: low, max: high, step, value, required: true } : { type: 'text', value });
}

/** A fold with a field per setting. */
class Further {
  element = make('details', {}, make('summary', { textContent: 'Further settings for the new sections' }));
  #fields = []; // pairs of a setting and its element

  /** Make fields for these settings, with the video's own values. */
  fill(settings) {
    this.element.open = false;
    this.#fields = settings.map((setting) => [setting, controlOf(setting)]);
    const labels = this.#fields.map(([{ label }, field]) => make('label', {}, make('span', { textContent: label }), field));
    this.element.replaceChildren(this.element.firstElementChild, make('div', { className: 'lt-further' }, ...labels));
  }

  /** Return the settings that differ from the video's own, by name. */
  get changes() {
    const read = ([{ name, value }, field]) => [name, typeof value === 'number' ? Number(field.value) : field.value];
    return Object.fromEntries(this.#fields.filter(([{ value }, field]) => field.value !== String(value)).map(read));
  }
}

const field = (label, control) => make('label', {}, make('span', { textContent: label }), control);
const main = (textContent) => make('button', { type: 'submit', className: 'lt-main-button', textContent });

/** The two folds with forms for branches. */
export class Branch {
  #fold;
  #longerFold;
  #report;
  #video = null;
  #job = ''; // the video that the fields were filled for
  #strip = make('div', { className: 'lt-kept-strip', ariaHidden: 'true' });
  #keep = make('input', { type: 'range', min: 1, step: 1 });
  #kept = make('p', { className: 'lt-hint', role: 'status' });
  #prompt = make('textarea', { rows: 3, maxLength: 4000 });
  #seed = make('input', { type: 'text', inputMode: 'numeric', pattern: '[0-9]{1,16}', required: true });
  #seconds = make('input', { type: 'number', min: 1, max: 120, step: 0.1, required: true });
  #further = new Further();
  #fixed = make('ul', { className: 'lt-fixed' });
  #longer = make('input', { type: 'number', step: 0.1, required: true });
  #longerKept = make('p', { className: 'lt-hint' });
  #whys = [make('p', { className: 'lt-hint' }), make('p', { className: 'lt-hint' })]; // why a fold has no form

  constructor(fold, longerFold, report) {
    this.#fold = fold;
    this.#longerFold = longerFold;
    this.#report = report;
    this.#build();
    this.#keep.addEventListener('input', () => this.#showKept());
  }

  #build() {
    const dice = make('button', { type: 'button', textContent: 'New seed' });
    dice.addEventListener('click', () => { this.#seed.value = newSeed(); });
    const why = make('details', {}, make('summary', { textContent: 'What stays as it is, and why' }), this.#fixed);
    const form = make(
      'form', {},
      field('Sections to keep', this.#keep), this.#strip, this.#kept,
      field('Prompt for the new sections', this.#prompt),
      make('div', { className: 'lt-pair' }, field('Seed', this.#seed), dice),
      field('Length of the whole video, in seconds', this.#seconds),
      this.#further.element, why, main('Make this branch'),
    );
    this.#fold.append(this.#whys[0], form);
    this.#submit(form, () => this.#branch());
    const longer = make('form', {}, field('Seconds to add', this.#longer), this.#longerKept, main('Make it longer'));
    this.#longerFold.append(this.#whys[1], longer);
    this.#submit(longer, () => this.#extend());
  }

  #submit(form, act) {
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      actOnce(form.querySelector('[type="submit"]'), act, this.#report);
    });
  }

  /** Offer the branches that a video can have. */
  show(video) {
    const { branch } = video;
    this.#video = video;
    [[this.#fold, branch.whyNot], [this.#longerFold, branch.whyNotLonger]].forEach(([fold, why], index) => {
      fold.hidden = video.isOpen && Boolean(why);
      fold.querySelector('form').hidden = Boolean(why);
      setText(this.#whys[index], why);
    });
    this.#keep.max = branch.kept.length;
    if (this.#job !== video.job) this.#fill(branch);
    this.#showKept();
    setText(this.#longerKept, `Whole sections of ${branch.section} s are added. ${branch.keptByLonger}`);
  }

  /** Choose how many sections are kept, and another seed. */
  choose(keep) {
    this.#keep.value = keep;
    this.#showKept();
    this.#prompt.focus();
  }

  #fill(branch) {
    this.#job = this.#video.job;
    this.#keep.value = branch.kept.length;
    this.#prompt.value = branch.prompt;
    this.#seed.value = newSeed();
    this.#seconds.value = branch.seconds;
    this.#further.fill(branch.further);
    this.#longer.min = branch.section;
    this.#longer.max = branch.longer;
    this.#longer.value = Math.min(branch.longer, 2 * branch.section);
    this.#fixed.replaceChildren(...branch.fixed.map((textContent) => make('li', { textContent })));
  }

  #showKept() {
    const { branch, cells } = this.#video;
    const keep = Number(this.#keep.value);
    const words = branch.kept[keep - 1] ?? '';
    this.#keep.setAttribute('aria-valuetext', `${keep} of ${cells.length} sections`);
    setText(this.#kept, words);
    this.#strip.replaceChildren(...cells.map(({ number, thumb }) => {
      const picture = make('img', { alt: '', ...(thumb ? { src: thumb } : {}) });
      picture.dataset.kept = number <= keep;
      return picture;
    }));
  }

  async #branch() {
    const { branch, job, isOpen } = this.#video;
    const seed = this.#seed.value.trim();
    const changes = {
      ...(this.#prompt.value === branch.prompt ? {} : { prompt: this.#prompt.value }),
      ...(seed === branch.seed ? {} : { seed: Number(seed) }),
      ...(Number(this.#seconds.value) === branch.seconds ? {} : { seconds: Number(this.#seconds.value) }),
      ...this.#further.changes,
    };
    const made = await call('jobs_branch', job, Number(this.#keep.value), null, changes);
    if (isOpen) await call('jobs_pause', [job]); // the branch comes first
    this.#report(`The branch is in the queue. ${branch.kept[Number(this.#keep.value) - 1]}`, made.id);
  }

  async #extend() {
    const { branch, job } = this.#video;
    const made = await call('jobs_branch', job, null, Number(this.#longer.value), null);
    this.#report(`The longer video is in the queue. ${branch.keptByLonger}`, made.id);
  }
}

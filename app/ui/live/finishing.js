// What is done to a finished video in a job of its own: it becomes larger, smoother, is cut, joined with others, or gets
// another sound. And the comparison with the video from before.
import { actOnce, fromTemplate, make, makeButton, onPress, onSubmit, setOptions, setText } from '../elements.js';
import { get, post, upload } from '../server.js';
import { goTo } from '../tabs.js';
import { clock, dayOf } from '../text.js';
import { offerUndo } from '../undo.js';
import { compare } from './compare.js';

const PAUSE = 300; // milliseconds without a change before the plan is asked for
const MOST = 100; // videos to choose from
const MOST_WORDS = 80; // characters of a video's name
const VALUES = ['speed', 'enlarge', 'smooth'];
const FLAGS = ['reverse', 'loop', 'colours', 'mute'];
const ASK = 'Choose what to change; what comes out is told here before it is made.';

/** The form for what is done to a video, which is `{ job }` or the `{ path }` of an upload. */
class Finishing {
  #video;
  #joined = []; // the jobs of the videos that follow, with their names
  #sound = null; // the upload
  #timer = 0;
  #asked = 0; // the number of the last question, since only the last answer counts

  /** `time` tells the time that a player shows, `close` takes the form away, `done` gets a sentence and the new job. */
  constructor(video, { time, close, done }) {
    this.#video = video;
    const form = this.form = fromTemplate('finishing');
    const { other, sound } = form.elements;
    form.addEventListener('input', () => this.#change());
    other.addEventListener('change', () => this.#join(other));
    sound.addEventListener('change', () => actOnce(sound, () => this.#take(sound), (words) => this.#report(words)));
    for (const button of form.querySelectorAll('[data-here]')) {
      button.hidden = !time;
      button.addEventListener('click', () => {
        form.elements[button.dataset.here].value = time().toFixed(2);
        this.#change();
      });
    }
    form.querySelector('.lt-panel-close').addEventListener('click', close);
    onSubmit(form, async () => {
      if (this.#isEmpty) return;
      const { id } = await post('finish', this.#message);
      close();
      done('The new video is in the queue.', id);
    }, (words) => this.#report(words));
    this.#plan();
    this.#offer(other).catch((error) => this.#report(error.message));
  }

  get #steps() {
    const { elements } = this.form;
    const value = (name) => elements[name].value.trim();
    const words = VALUES.filter(value).map((name) => `${name}:${value(name)}`);
    words.push(...FLAGS.filter((name) => elements[name].checked));
    if (value('from') || value('to')) words.push(`trim:${value('from')}-${value('to')}`);
    if (this.#joined.length) words.push(`join:${value('fade') || 0}`);
    return words.join(',');
  }

  get #isEmpty() { return !this.#steps && !this.#sound; }

  get #message() {
    return { video: this.#video, steps: this.#steps || 'speed:1', join: this.#joined.map(({ job }) => ({ job })), sound: this.#sound };
  }

  #report(words) { setText(this.form.querySelector('[role="status"]'), words); }

  #change() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#plan(), PAUSE);
  }

  async #plan() {
    this.#asked += 1;
    const own = this.#asked;
    const answer = this.#isEmpty ? ASK : await post('finish/plan', this.#message).then(({ words }) => words, (error) => error.message);
    if (own === this.#asked) this.#report(answer);
  }

  async #take(field) {
    const [file] = field.files;
    this.#sound = file ? { path: (await upload(file)).path } : null;
    this.#change();
  }

  async #offer(select) {
    const { cards } = await get('history', { limit: MOST });
    const name = ({ created, words }) => `${dayOf(created)}, ${clock(created)} · ${words || 'No prompt'}`.slice(0, MOST_WORDS);
    const videos = cards.filter((card) => card.video && !card.sentence && card.length !== 'Picture');
    setOptions(select, [['', 'Add a video…'], ...videos.map((card) => [card.job, name(card)])]);
  }

  #join(select) {
    const [{ value: job, text: name }] = select.selectedOptions;
    select.value = '';
    if (job) this.#joined.push({ job, name });
    this.#drawJoined();
  }

  #drawJoined() {
    this.form.querySelector('.lt-finish-fade').hidden = !this.#joined.length;
    this.form.querySelector('ol').replaceChildren(...this.#joined.map(({ name }, index) => make('li', {}, name, makeButton('×', () => {
      this.#joined.splice(index, 1);
      this.#drawJoined();
      this.#change();
    }, { ariaLabel: `Leave out ${name}` }))));
  }
}

/** Offer in a dialog to finish an upload, and show the job that does it. */
export function finishFile({ path }) {
  const dialog = document.querySelector('#finish-file');
  const done = (words, job) => goTo('history', job);
  dialog.replaceChildren(new Finishing({ path }, { close: () => dialog.close(), done }).form);
  dialog.showModal();
}

/** Let a button choose a video file that is finished. */
export function offerToFinish(button, input, report) {
  button.addEventListener('click', () => input.click());
  input.addEventListener('change', () => actOnce(button, async () => {
    const [file] = input.files;
    if (file) finishFile(await upload(file));
    input.value = '';
  }, report));
}

function compareWithBefore({ job, prompt, before, video }) {
  const remove = (gone) => async () => {
    await post('queue/remove', { jobs: [gone] });
    offerUndo([gone], prompt || gone);
  };
  compare([
    { name: 'Before', url: before.url, begin: 0, keep: 'Keep before, remove after', act: remove(job) },
    { name: 'After', url: video.url, begin: 0, keep: 'Keep after, remove before', act: remove(before.job) },
  ]);
}

/** Set up the actions that finish the video of a view. The result shows them for a scene. */
export function prepareFinishing(view, player, report, expect) {
  const find = (name) => view.querySelector(`.lt-${name}`);
  const panel = find('finish-place');
  let scene = {};
  const close = () => panel.replaceChildren();
  const done = (words, job) => {
    expect();
    report(words, job);
  };
  find('finish').addEventListener('click', () => {
    panel.replaceChildren(new Finishing({ job: scene.job }, { time: () => player.at, close, done }).form);
    panel.scrollIntoView({ block: 'nearest' });
    panel.querySelector('select').focus({ preventScroll: true });
  });
  onPress(find('enlarge'), async () => {
    const { id } = await post('finish', { video: { job: scene.job }, steps: 'enlarge:4' });
    done('The larger video is in the queue.', id);
  }, report);
  find('before').addEventListener('click', () => compareWithBefore(scene));
  return (now) => {
    if (now.job !== scene.job) close();
    scene = now;
    find('enlarge').hidden = !now.isSmall;
    find('finish').hidden = !now.offersMore || now.video.isPicture;
    // A finishing has no model that could make more of it.
    if (now.isFinishing) for (const name of ['again', 'longer', 'change']) find(name).hidden = true;
    find('before').hidden = !now.before || !now.video;
  };
}

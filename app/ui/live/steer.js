// How a user directs a video: other words for what comes next, a wait, takes of a section, and a section again.
import { actOnce, arrange, dropVideo, fromTemplate, onPress, onSubmit, reducedMotion, setText } from '../elements.js';
import { post } from '../server.js';

/** Set up the fold that directs a video. `report` shows a sentence, with a link to a job if one is given. */
export function prepareSteer(fold, report) {
  const find = (name) => fold.querySelector(`.lt-steer-${name}`);
  let scene = {};
  let known = ''; // the words that the server said last, so that its news does not replace what is being typed
  let shown = ''; // the same as the field has it

  async function wait() {
    const { checked } = find('wait');
    await post('queue/wait', { jobs: [scene.job], wait: checked });
    report(checked ? 'It waits for you after each section; the device is free meanwhile.' : 'It goes on by itself.');
  }

  async function change() {
    const { value } = find('words');
    await post('queue/change', { job: scene.job, changes: { prompt: value.trim() } });
    shown = value;
    report('What comes next has the new words. What is made keeps its own.');
  }

  async function threeTakes() {
    await post('queue/takes', { job: scene.job });
    report('Three takes are in the queue. Each waits after one section, so that you can keep the best.');
  }

  find('wait').addEventListener('change', () => actOnce(find('wait'), wait, report));
  onSubmit(fold.querySelector('form'), change, report);
  onPress(find('takes'), threeTakes, report);
  return {
    /** Let the video go on with the words in the field, and without a wait for the user if it does not wait. */
    async goOn(waits = true) {
      const { job, steering } = scene;
      if (steering && find('words').value !== shown) await change();
      if (!waits) await post('queue/wait', { jobs: [job], wait: false });
      await post('queue/resume', { jobs: [job] });
    },
    edit() {
      fold.open = true;
      find('words').focus();
    },
    show(now) {
      scene = now;
      const { steering } = now;
      fold.hidden = !steering;
      if (!steering) return;
      if (find('wait').ariaBusy !== 'true') find('wait').checked = steering.waits;
      if (steering.words !== known && document.activeElement !== find('words')) {
        find('words').value = known = steering.words;
        shown = find('words').value;
      }
      setText(find('hint'), steering.hint);
      find('takes').disabled = !steering.mayTake;
    },
  };
}

/** Set up the offer to make a pressed section again. `branch` opens the form that keeps so many sections. */
export function prepareAnew(box, branch, report) {
  let pressed = { job: '', kept: 0 }; // the sections before it, in the order of making
  onPress(box.querySelector('.lt-anew-branch'), () => branch(pressed.kept), report);
  onPress(box.querySelector('.lt-anew-takes'), async () => {
    const takes = await post('queue/takes', { job: pressed.job, keep: pressed.kept });
    report('Three takes of this section are in the queue. What was made stays.', takes[0].id);
  }, report);
  return {
    offer(job, cell) {
      pressed = { job, kept: cell.number - 1 };
      box.hidden = !cell.mayBranch;
      setText(box.querySelector('span'), `Section ${cell.label}`);
    },
    show(scene) { if (scene.job !== pressed.job) box.hidden = true; },
  };
}

/** A take, which plays over and over. A press shows it on the stage, at the end of the film so far. */
function makeTake(open, report) {
  const element = fromTemplate('take');
  const [button] = element.children;
  const [video, name, about] = button.children;
  video.muted = true; // its attribute alone does not mute a copy in every browser
  let take = {};
  const again = () => {
    video.currentTime = take.begin;
    if (!reducedMotion.matches) video.play().catch(() => {});
  };
  onPress(button, () => open(take.job), report);
  for (const event of ['loadedmetadata', 'ended']) video.addEventListener(event, again);
  video.addEventListener('timeupdate', () => { if (video.currentTime >= take.end) again(); });
  return {
    element,
    show(now, isChosen) {
      take = now;
      element.dataset.job = take.job;
      button.setAttribute('aria-pressed', String(isChosen));
      setText(name, take.name);
      setText(about, take.now || `seed ${take.seed}`);
      video.poster = take.still;
      if (take.video && !take.now && video.getAttribute('src') !== take.video) video.src = take.video;
    },
    remove: () => dropVideo(video),
  };
}

/**
 * Set up the takes of a section, of which a user keeps one. `open` shows the video of a job. The result shows takes
 * while a job is on the stage; null for none.
 */
export function prepareTakes(box, steer, open, report) {
  const find = (name) => box.querySelector(`.lt-takes-${name}`);
  const shown = new Map(); // by job
  let takes = null;
  let chosen = null;
  const tileOf = (job) => shown.get(job) ?? shown.set(job, makeTake(open, report)).get(job);
  const on = (name, work) => onPress(find(name), work, report);
  on('keep', async () => {
    const { name } = chosen;
    await steer.goOn(takes.waits);
    report(`${name} goes on. The others stay in the history.`);
  });
  on('words', () => steer.edit());
  on('more', () => post('queue/takes', { job: takes.of, keep: takes.keep }));
  return (now, job) => {
    takes = now;
    box.hidden = !takes;
    const tiles = takes?.tiles ?? [];
    chosen = tiles.find((tile) => tile.job === job && tile.mayGoOn) ?? null;
    for (const [gone, removed] of shown) {
      if (tiles.some((tile) => tile.job === gone)) continue;
      removed.remove();
      shown.delete(gone);
    }
    for (const take of tiles) tileOf(take.job).show(take, take.job === job);
    arrange(box.querySelector('ul'), tiles.map((tile) => tileOf(tile.job).element));
    if (!takes) return;
    setText(box.querySelector('h3'), takes.title);
    setText(find('hint'), takes.hint);
    for (const name of ['keep', 'words']) find(name).hidden = !chosen;
    if (chosen) setText(find('keep'), chosen.keep);
    const ask = tiles.some((tile) => tile.job === job) ? '' : 'Press a take to see it after the film so far.';
    setText(find('next'), chosen ? 'Without an answer it waits.' : ask);
  };
}

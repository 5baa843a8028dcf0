// The takes of a section, of which a user keeps one.
import { arrange, dropVideo, fromTemplate, onPress, reducedMotion, render, setText } from '../elements.js';
import { post } from '../server.js';
import { compare } from './compare.js';

function makeTake(open, report) {
  const element = fromTemplate('take');
  const [button] = element.children;
  const [video] = button.children;
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
      render(element, { ...take, isChosen: String(isChosen), about: take.now || `seed ${take.seed}`, clip: (!take.now && take.video) || video.getAttribute('src') });
    },
    remove: () => dropVideo(video),
  };
}

/** Set up the takes of a section. `open` shows a job's video. The result shows takes, null for none, and the job on the stage. */
export function prepareTakes(box, panel, open, report) {
  const find = (name) => box.querySelector(`.lt-takes-${name}`);
  const shown = new Map(); // by job
  let takes = null;
  let chosen = null;
  let shownJob = ''; // the job on the stage
  const tileOf = (job) => shown.get(job) ?? shown.set(job, makeTake(open, report)).get(job);
  const on = (name, work) => onPress(find(name), work, report);
  const watchable = () => takes.tiles.filter(({ video, now }) => video && !now);

  async function choose(job, name) {
    if (!takes.waits) await post('jobs_wait', { jobs: [job], wait: false });
    await post('jobs_resume', { jobs: [job] });
    report(`${name} goes on. The others stay in the history.`);
  }

  on('keep', async () => {
    const { name } = chosen;
    await panel.goOn(takes.waits);
    report(`${name} goes on. The others stay in the history.`);
  });
  on('words', () => panel.open('steer'));
  on('compare', () => {
    const tiles = watchable();
    const first = Math.max(0, tiles.findIndex(({ job }) => job === shownJob));
    compare(tiles.map(({ job, name, video, begin, end, keep, mayGoOn }) => ({
      name, url: video, begin, end, keep: mayGoOn && keep, act: () => choose(job, name),
    })), [first, first ? 0 : 1]);
  });
  on('more', () => post('jobs_takes', { job: takes.of, keep: takes.keep }));
  return (now, job) => {
    [takes, shownJob] = [now, job];
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
    find('compare').hidden = watchable().length < 2;
    for (const name of ['keep', 'words']) find(name).hidden = !chosen;
    if (chosen) setText(find('keep'), chosen.keep);
    const ask = tiles.some((tile) => tile.job === job) ? '' : 'Press a take to see it after the film so far.';
    setText(find('next'), chosen ? 'Without an answer it waits.' : ask);
  };
}

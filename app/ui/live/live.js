// The live view. A video that has just finished stays on the stage while the next one is made; an announcement beside it leads
// to that one, and in windows in which the stage may be out of view, a line of progress above the buttons leads to it.
import { render, setText } from '../elements.js';
import { describe } from '../form/describe.js';
import { reportJobs } from '../jobs.js';
import { post } from '../server.js';
import { keep, recall } from '../storage.js';
import { makeFilm } from './film.js';
import { preparePreview } from './preview.js';
import { connect, follow, preparePulse } from './pulse.js';

const TICK = 1000; // milliseconds
const view = document.querySelector('.lt-view');
const find = (selector) => view.querySelector(selector);
const film = makeFilm(view, openOnStage, () => expectStage());
const pulse = preparePulse(view);
const showPreview = preparePreview(view);
const line = document.querySelector('.lt-line'); // the card says the same to screen readers
const narrow = window.matchMedia('(max-width: 900px)'); // then the stage is not beside the form
let now = null; // what the server sent last
let shown = null; // the scene on the stage
let stays = false; // whether that is one that has ended, while the server sends another
let revision = ''; // of the jobs, when the scene of the job on the stage was requested
let isExpecting = false; // whether a user has started a job that is not shown yet
let chosen = ''; // the running job for which the server was asked, until it sends that
let watched = false; // whether this page was open when the job on the stage ended

// An id begins with the time of its creation.
const comesAfter = (scene, other) => scene.isOpen || scene.job > other.job;
const say = (words) => setText(find('.lt-say'), words.trim());
const load = (job) => post('jobs_scene', { job });

/** Give the stage to the job that a user is about to start, or not, unless another one is being made. */
export function expectStage(isExpected = true) {
  isExpecting = isExpected && !now?.isOpen;
}

function bringStage() {
  if (narrow.matches) find('.lt-stage').scrollIntoView({ block: 'start' });
}

export function showStage() {
  if (document.querySelector('#notice .lt-error')) expectStage(false);
  else bringStage();
}

/** Show a job that is being made, by default the one that the server sends, which is asked for any other one. */
export function watchRunning(job = now?.job) {
  if (job !== now?.job) {
    chosen = job;
    connect(job);
    return;
  }
  [stays, revision] = [false, ''];
  if (now) showOnStage(now);
}

export async function openOnStage(job) {
  const scene = await load(job);
  watched = true;
  stays = scene.job !== now?.job;
  showOnStage({ ...scene, isFollowed: false }); // it was asked for
  if (stays && now?.job) announceNext(scene);
  bringStage();
}

/** Show on the line what the card shows of a scene, or, after a word such as "Next", the headline of another job. */
function showLine({ isOpen, percent, headline: other }, word = '') {
  line.hidden = !narrow.matches || !isOpen;
  if (line.hidden) return;
  const [headline, times] = ['.lt-headline', '.lt-eta'].map((part) => find(part).textContent);
  const parts = word ? [`${word}: ${other}`] : [headline, times.split(' · ')[0]];
  render(line, { words: parts.filter(Boolean).join(' · '), done: `transform:scaleX(${percent / 100})` });
}

function announce(scene) {
  const box = find('.lt-next');
  box.hidden = !scene;
  if (!scene) return;
  const { job, state, isRunning, percent, announcement } = scene;
  const done = `transform:scaleX(${(isRunning ? percent : 0) / 100})`;
  render(box, { ...announcement, job, state, done, name: `${announcement.label}: ${announcement.prompt}` });
}

const canNotify = () => 'Notification' in window && window.isSecureContext;
const isOn = () => recall('notify') === 'yes' && Notification.permission === 'granted';

function showNotify(isOpen) {
  const button = find('.lt-notify');
  button.hidden = !canNotify() || !isOpen;
  if (button.hidden) return;
  button.setAttribute('aria-pressed', String(isOn()));
  const label = isOn() ? 'You will be notified' : 'Notify me when done';
  button.textContent = Notification.permission === 'denied' ? 'Notifications are blocked in the browser' : label;
}

async function turnNotify() {
  const wasOn = find('.lt-notify').getAttribute('aria-pressed') === 'true';
  if (!wasOn && Notification.permission === 'default') await Notification.requestPermission();
  keep('notify', wasOn ? 'no' : 'yes');
  showNotify(true);
}

function notify({ ending, announcement, job }) {
  if (!canNotify() || !isOn()) return;
  const notice = new Notification(`Longtake: ${ending.sentence.toLowerCase()}`, { body: announcement.prompt, tag: job });
  notice.onclick = () => {
    window.focus();
    notice.close();
  };
}

function show(scene) {
  // On a narrow screen the video comes first while it is made, and does not leave when it is finished.
  view.dataset.first = scene.isOpen || watched;
  film.show(scene);
  showNotify(scene.isOpen);
  showPreview(scene.preview || null);
}

function showOnStage(scene) {
  note(scene);
  show(scene);
  pulse.receive(scene);
  if (!stays) {
    announce(null);
    showLine(scene);
  }
  if (isExpecting && scene.isOpen) {
    isExpecting = false;
    bringStage();
  }
}

function note(scene) {
  const before = shown;
  const isOther = before?.job !== scene.job;
  shown = scene;
  if (isOther) watched = false;
  // A job may be over before its first update arrives.
  if (before && (isOther ? scene.job && !scene.isOpen : before.isOpen && !scene.isOpen)) end(scene);
  else if (isOther && scene.isOpen) say(scene.headline);
  else if (before && scene.isOpen && before.section !== scene.section) say(`Section ${scene.section} of ${scene.sections} is being made.`);
}

function end(scene) {
  if (scene.job === shown.job) watched = true;
  say(scene.failure ? '' : `${scene.ending.sentence}.`); // the card shows a failure as an alert
  notify(scene);
  describe(); // a finished job improves the form's estimate
}

function announceNext(scene) {
  const isTake = scene.takes?.tiles.some(({ job }) => job === now.job);
  announce(isTake ? null : now);
}

function stay(scene) {
  const isNew = !stays;
  stays = true;
  showOnStage(scene);
  announceNext(scene);
  showLine(now, 'Next');
  if (!scene.isWorthKeeping || scene.takes) lookAgain(scene);
  const { kind, prompt } = now.announcement;
  const sentence = watched && !scene.failure ? `${scene.ending.sentence}.` : '';
  if (isNew && now.isOpen) say(`${sentence} ${kind}: ${prompt}.`);
}

// The job on the stage, or one of its takes, may have moved on while the server sends another one: it may be over, or be
// paused, or removed.
async function lookAgain({ job }) {
  if (revision === now.queue.revision) return;
  revision = now.queue.revision;
  const scene = await load(job).catch(() => null);
  if (shown.job !== job || now.job === job) return;
  if (!stays && !scene?.isWorthKeeping) watchRunning();
  else if (scene) stay(scene);
}

/** Decide what is shown now that the server sends a job other than the one on the stage. */
function meetOther(before) {
  const isNews = before?.job === now.job ? before.isOpen : comesAfter(now, shown);
  if (isNews && !now.isOpen) end(now);
  if (now.job === chosen) {
    chosen = '';
    watchRunning();
  } else if (isExpecting && comesAfter(now, shown)) {
    watchRunning();
    isExpecting = false; // also for a job that was over before its first update came
  } else if (shown.isFollowed && now.before?.job === shown.job) watchRunning();
  else if (stays || (watched && shown.isWorthKeeping && comesAfter(now, shown))) stay(shown);
  else if (shown.isOpen && now.isOpen) lookAgain(shown);
  else watchRunning();
}

function titleOf(scene) {
  if (scene.isRunning) return `${Math.floor(scene.percent)} % · Longtake`;
  if (scene.isOpen) return 'Waiting · Longtake';
  return watched ? `${scene.ending.title} · Longtake` : 'Longtake';
}

function receive(news) {
  const before = now;
  now = 'job' in news ? news : { ...before, ...news };
  if (shown && now.job !== shown.job) meetOther(before);
  else watchRunning();
  document.title = titleOf(now);
  reportJobs(now);
  view.dataset.beat = now.beat; // shows that an update has arrived
}

function tick() {
  const isLost = pulse.tick();
  if (isLost) document.title = 'Connection lost · Longtake';
  if (now) showLine(now, stays ? 'Next' : '');
}

export default function startLive() {
  find('.lt-next button').addEventListener('click', () => watchRunning());
  find('.lt-notify').addEventListener('click', turnNotify);
  line.addEventListener('click', bringStage);
  // While the stage is in sight, the window keeps it in its place, and not the form that comes after it.
  new IntersectionObserver(([stage]) => {
    document.documentElement.dataset.stage = stage.isIntersecting ? 'seen' : 'away';
  }).observe(find('.lt-stage'));
  show({ job: '', state: 'idle' });
  follow(receive);
  setInterval(tick, TICK);
}

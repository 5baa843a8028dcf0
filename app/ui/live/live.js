// The live view, which shows each scene that `app/ui/live/scene.py` makes and tells screen readers what changed.
//
// The server sends the scene of the job that is being made. A video that has just finished stays on the stage while
// the next one is made; an announcement beside it leads to that one.
import { call } from '../calls/call.js';
import { setText } from '../elements.js';
import { describe } from '../form/describe.js';
import { reportJobs } from '../jobs.js';
import { announce, bringStage, notify, prepareLine, prepareNotify, showNotify } from './beside.js';
import { makeFilm } from './film.js';
import { preparePreview } from './preview.js';
import { preparePulse } from './pulse.js';
import { connect, follow } from './updates.js';

const TICK = 1000; // milliseconds
const view = document.querySelector('.lt-view');
const find = (selector) => view.querySelector(selector);
const film = makeFilm(view, openOnStage, () => expectStage());
const pulse = preparePulse(view);
const showPreview = preparePreview(view);
const showLine = prepareLine(view);
let now = null; // what the server sent last
let shown = null; // the scene on the stage
let stays = false; // whether that is one that has ended, while the server sends another
let asked = ''; // the job whose last scene has been requested
let revision = ''; // of the jobs, when the scene of a job that stays was requested
let isExpecting = false; // whether a user has started a job that is not shown yet
let chosen = ''; // the running job for which the server was asked, until it sends that
let watched = false; // whether this page was open when the job on the stage ended

// An id begins with the time of its creation.
const comesAfter = (scene, other) => scene.isOpen || scene.job > other.job;
const say = (words) => setText(find('.lt-say'), words.trim());
const sceneOf = (job) => call('jobs_scene', job).catch(() => null);

/** Give the stage to the job that a user is about to start, or not, unless another one is being made. */
export function expectStage(isExpected = true) {
  isExpecting = isExpected && !now?.isOpen;
}

/** Bring the stage into view after a start, unless it was refused. */
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
  stays = false;
  if (now) showOnStage(now);
}

/** Show a job of any age on the stage, until the user moves on. */
async function openOnStage(job) {
  const scene = await call('jobs_scene', job);
  watched = true;
  stays = scene.job !== now?.job;
  showOnStage(scene);
  if (stays && now?.job) announceNext(scene);
  bringStage();
}

function show(scene) {
  // On a narrow screen the video comes first while it is made, and does not leave when it is finished.
  view.dataset.first = scene.isOpen || watched;
  film.show(scene);
  showNotify(find('.lt-notify'), scene.isOpen);
  showPreview(scene.preview || null);
}

/** Show a scene on the stage, whether or not it has shown one before. */
function showOnStage(scene) {
  note(scene);
  show(scene);
  pulse.receive(scene);
  if (!stays) {
    announce(find('.lt-next'), null);
    showLine(scene);
  }
  if (isExpecting && scene.isOpen) {
    isExpecting = false;
    bringStage();
  }
}

/** Say what is new in a scene that goes onto the stage. */
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
  const { sentence } = scene.ending;
  if (scene.job === shown.job) watched = true;
  say(scene.failure ? '' : `${sentence}.`); // the card shows a failure as an alert
  notify(`Longtake: ${sentence.toLowerCase()}`, scene.prompt, scene.job);
  describe(); // a finished job improves the form's estimate
}

/** Announce what the server sends beside the scene on the stage, unless that has it among its takes. */
function announceNext(scene) {
  const isTake = scene.takes?.tiles.some(({ job }) => job === now.job);
  announce(find('.lt-next'), isTake ? null : now);
}

function keep(scene) {
  const isNew = !stays;
  stays = true;
  showOnStage(scene);
  announceNext(scene);
  showLine(now, 'Next');
  if (!scene.isWorthKeeping || scene.takes) catchUp(scene);
  const { kind, prompt } = now.announcement;
  const sentence = watched && !scene.failure ? `${scene.ending.sentence}.` : '';
  if (isNew && now.isOpen) say(`${sentence} ${kind}: ${prompt}.`);
}

// A job that is not over, or one of its takes, may have moved on while the server sends another one.
async function catchUp({ job }) {
  if (revision === now.queue.revision) return;
  revision = now.queue.revision;
  const scene = await sceneOf(job);
  if (scene && stays && shown.job === job && now.job !== job) keep(scene);
}

// The job on the stage may have ended between two updates, or be paused, or removed.
async function askForEnd(job) {
  if (asked === job) return;
  asked = job;
  const scene = await sceneOf(job);
  asked = '';
  if (shown.job !== job || now.job === job) return;
  if (scene?.isWorthKeeping) {
    end(scene);
    keep(scene);
  } else watchRunning();
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
  } else if (stays || (watched && shown.isWorthKeeping && comesAfter(now, shown))) keep(shown);
  else if (shown.isOpen && now.isOpen) askForEnd(shown.job);
  else watchRunning();
}

function titleOf(scene) {
  if (scene.isRunning) return `${Math.floor(scene.percent)} % · Longtake`;
  if (scene.isOpen) return 'Waiting · Longtake';
  return watched ? `${scene.ending.title} · Longtake` : 'Longtake';
}

/** Take a scene from the server, or only the times that have moved since the last one. */
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

/** Set up the live view. */
export default function startLive() {
  find('.lt-next button').addEventListener('click', () => watchRunning());
  prepareNotify(find('.lt-notify'));
  show({ job: '', state: 'idle' });
  follow(receive);
  setInterval(tick, TICK);
}

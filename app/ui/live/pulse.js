// The stream of updates from the server, which begins again whenever it ends; the times, which advance between two
// updates; and the signs of life of the engine and the connection.
import { reducedMotion, setText } from '../elements.js';
import { noteBack, sayLost } from '../server.js';
import { translated } from '../language.js';
import { duration } from '../text.js';

const AGAIN = 3000; // milliseconds between two attempts to connect
const LOST_AFTER = 5500; // milliseconds without an update; the server sends one every 2.5 seconds at least
const RETRY_EVERY = 10000; // a broken connection is noticed at once; this is for one that only hangs
const GRACE = 10000; // for the very first update, which waits for the page to be set up
const JUST_NOW = 1.5; // seconds
const NEARLY_DONE = 95; // percent
const LATE = 5; // seconds
const BEAT = { boxShadow: ['0 0 0 0 color-mix(in srgb, var(--lt-ok) 60%, transparent)', '0 0 0 8px transparent'], easing: 'ease-out' };

const own = new URL(import.meta.url).pathname.split('/').at(-3); // the version of the scripts

let source = null;
let chosen = ''; // the job whose updates a user wants, as long as it runs
let take = () => {};

// A server that was started again may ask for the password first.
async function open() {
  const { status } = await fetch('api/live', { method: 'HEAD' }).catch(() => ({}));
  if (status === 401) window.location.reload();
  connect();
}

export function connect(job = chosen) {
  chosen = job;
  source?.close();
  const now = source = new EventSource(`api/live?job=${encodeURIComponent(job)}`);
  source.onmessage = ({ data }) => {
    const news = JSON.parse(data);
    if (news.version && news.version !== own) window.location.reload(); // these scripts are older than the server
    else take(news);
  };
  // The browser itself tries again, unless it got an answer that is no stream.
  source.onerror = () => {
    if (now.readyState === EventSource.CLOSED) setTimeout(() => { if (source === now) open(); }, AGAIN);
  };
}

export function follow(listener) {
  take = listener;
  connect();
}

function timeText(scene, since, isLost) {
  if (isLost) return `${duration(scene.elapsed)} so far, when it was last heard of`;
  const soFar = `${duration(scene.elapsed + since)} so far`;
  if (scene.due) return `${scene.due} · ${soFar}`;
  if (scene.left === null) return soFar;
  const left = scene.left - since;
  const rest = scene.isGuess ? `a guess: ${duration(left)} left` : `about ${duration(left)} left`;
  if (left >= 1) return `${rest} · ${soFar}`;
  if (scene.percent >= NEARLY_DONE) return `nearly done · ${soFar}`;
  return left < -LATE ? `longer than expected · ${soFar}` : soFar;
}

/** How long the present stage has been going on, beside its estimate, and then the scene's remark. */
function remarkText({ spent, expected, expectedText, remark }, since) {
  const time = duration(spent + since);
  const isDue = expected && spent + since >= expected;
  const text = (isDue && `for ${time}, longer than expected.`) || (expected ? `${time} of ${expectedText}.` : `for ${time}.`);
  return `${translated(text)} ${remark}`.trim();
}

function signOfLife(scene, since, isLost) {
  if (isLost) return ['lost', 'This was the last that was heard of the video.'];
  if (!scene.isRunning) return ['none', ''];
  const quiet = scene.quiet + since;
  if (quiet > scene.calm) return ['quiet', `No sign of life for ${duration(quiet)}: ${scene.usual}.`];
  return ['alive', quiet < JUST_NOW ? 'Last sign of life just now.' : `Last sign of life ${duration(quiet)} ago.`];
}

export function preparePulse(view) {
  const find = (selector) => view.querySelector(selector);
  let scene = {};
  let received = performance.now() + GRACE;
  let retried = 0;
  let sign = null;

  /** Advance the times, which stand still while the connection is lost; the result says if it is. */
  function tick() {
    const now = performance.now();
    const waited = Math.max(0, now - received);
    const isLost = waited > LOST_AFTER;
    const [kind, words] = signOfLife(scene, waited / 1000, isLost);
    find('.lt-pulse').dataset.kind = kind;
    setText(find('.lt-pulse-text'), words);
    if (scene.isRunning) setText(find('.lt-eta'), timeText(scene, waited / 1000, isLost));
    if (typeof scene.expected === 'number') setText(find('.lt-remark'), remarkText(scene, isLost ? 0 : waited / 1000));
    // The page cannot distinguish a broken connection from a server that has ended.
    const more = scene.isOpen ? ' If the server has ended, the video continues once it runs again.' : '';
    sayLost(isLost ? `This page reconnects by itself.${more}` : '');
    if (isLost && now - retried >= RETRY_EVERY) {
      retried = now;
      connect();
    }
    return isLost;
  }

  return {
    tick,
    receive(news) {
      scene = news;
      received = performance.now();
      noteBack();
      if (scene.job && scene.sign !== sign && !reducedMotion.matches) find('.lt-dot').animate(BEAT, 700);
      sign = scene.job ? scene.sign : sign;
      tick();
    },
  };
}

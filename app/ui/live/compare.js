// The dialog in which two videos play in step under one slider, and a user keeps one of them.
import { dropVideo, onPress, reducedMotion, setOptions, setText } from '../elements.js';

const OFF = 0.07; // seconds by which the right video may be off before it is put right

const dialog = document.querySelector('#compare');
const find = (name) => dialog.querySelector(`.lt-compare-${name}`);
const [split, seek, play, say, close] = ['split', 'seek', 'play', 'say', 'close'].map(find);
const [videos, selects, keeps] = ['video', 'select', '.lt-compare-keep'].map((selector) => [...dialog.querySelectorAll(selector)]);
const [left, right] = videos;
let entries = [];

const entry = (side) => entries[selects[side].value];
const start = () => left.play().catch(() => {});
const toBegin = () => { left.currentTime = entry(0).begin; };

/** Bring the right video to the left one's time, and to its rest or play, and show the time and the border. */
function follow() {
  const { begin, end } = entry(0);
  const length = Math.max(0.1, (end ?? left.duration) - begin || 0.1);
  if (left.currentTime >= begin + length) {
    toBegin();
    start();
  }
  const at = left.currentTime - begin;
  const time = Math.min(entry(1).begin + at, right.duration || 0);
  if (Math.abs(right.currentTime - time) > (left.paused ? 0.001 : OFF) && !right.seeking) right.currentTime = time;
  if (left.paused) right.pause();
  else if (right.paused && time < right.duration - OFF) right.play().catch(() => {});
  seek.max = length;
  seek.value = at;
  seek.setAttribute('aria-valuetext', `${at.toFixed(1)} of ${length.toFixed(1)} seconds`);
  setText(play, left.paused ? 'Play' : 'Pause');
  dialog.style.setProperty('--split', `${split.value}%`);
  split.setAttribute('aria-valuetext', `${split.value} % left, ${100 - split.value} % right`);
}

function step() {
  if (!dialog.open) return;
  follow();
  requestAnimationFrame(step);
}

function load() {
  videos.forEach((video, side) => {
    const { url, name, keep } = entry(side);
    if (video.getAttribute('src') !== url) video.src = url;
    video.ariaLabel = name;
    keeps[side].hidden = !keep;
    setText(keeps[side], keep ?? '');
  });
}

/**
 * Compare two of these videos, each with a `name`, a `url`, the second in it from which they correspond, `begin`, perhaps an
 * `end`, and what keeps it: the words of a button, `keep`, and `act`, which is called with the other one.
 */
export function compare(all, chosen = [0, 1]) {
  entries = all;
  selects.forEach((select, side) => {
    setOptions(select, entries.map(({ name }, index) => [index, name]));
    select.value = chosen[side];
  });
  setText(say, '');
  split.value = 50;
  dialog.showModal();
  load();
  step();
}

export default function startCompare() {
  split.addEventListener('input', follow);
  seek.addEventListener('input', () => {
    left.currentTime = entry(0).begin + Number(seek.value);
    follow();
  });
  play.addEventListener('click', () => {
    if (left.paused) start();
    else left.pause();
    follow();
  });
  for (const select of selects) select.addEventListener('change', load);
  left.addEventListener('loadeddata', () => {
    dialog.style.setProperty('--ratio', left.videoWidth / left.videoHeight);
    toBegin();
    if (!reducedMotion.matches) start();
  });
  keeps.forEach((button, side) => onPress(button, async () => {
    await entry(side).act(entry(1 - side));
    dialog.close();
  }, (words) => setText(say, words)));
  close.addEventListener('click', () => dialog.close());
  dialog.addEventListener('close', () => videos.forEach(dropVideo));
}
